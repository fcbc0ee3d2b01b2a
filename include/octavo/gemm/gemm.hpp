/// @file
/// GEMMs, their manifest and their algorithms.
#pragma once

#include <octavo/gemm/expert_gemms.hpp>
#include <octavo/gemm/few_rows.hpp>
#include <octavo/gemm/gemm_key.hpp>
#include <octavo/gemm/gemm_planning.hpp>
#include <octavo/gemm/manifest.hpp>
#include <octavo/gemm/matmul.hpp>
#include <octavo/gemm/symmetric_gemms.hpp>

/// @file
/// Matrix products and their manifest.
#pragma once

#include <octavo/gemm/manifest.hpp>
#include <octavo/gemm/matmul.hpp>

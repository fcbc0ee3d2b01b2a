/// @file
/// The whole library for the `Cpu` device; programs for `Cuda` include `octavo/cuda.cuh` instead.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/attention/cached_attention.hpp>
#include <octavo/comm/comm.hpp>
#include <octavo/core/version.hpp>
#include <octavo/data/data.hpp>
#include <octavo/formats/formats.hpp>
#include <octavo/gemm/gemm.hpp>
#include <octavo/inference/inference.hpp>
#include <octavo/io/io.hpp>
#include <octavo/kernels/kernels.hpp>
#include <octavo/layers/layers.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/models/models.hpp>
#include <octavo/optim/optim.hpp>
#include <octavo/precision/precision.hpp>
#include <octavo/tensor/tensor.hpp>
#include <octavo/train/train.hpp>

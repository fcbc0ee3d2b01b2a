/// @file
/// Every kernel: contracts and implementations for the `Cpu` device.
#pragma once

#include <octavo/kernels/adamw.hpp>
#include <octavo/kernels/adapter.hpp>
#include <octavo/kernels/bias.hpp>
#include <octavo/kernels/cross_entropy.hpp>
#include <octavo/kernels/dequantize.hpp>
#include <octavo/kernels/embedding.hpp>
#include <octavo/kernels/experts.hpp>
#include <octavo/kernels/fp8_weights.hpp>
#include <octavo/kernels/gelu.hpp>
#include <octavo/kernels/hash.hpp>
#include <octavo/kernels/initialize.hpp>
#include <octavo/kernels/key_value_cache.hpp>
#include <octavo/kernels/layer_norm.hpp>
#include <octavo/kernels/muon.hpp>
#include <octavo/kernels/packed_parts.hpp>
#include <octavo/kernels/positions.hpp>
#include <octavo/kernels/quantize.hpp>
#include <octavo/kernels/rank_sums.hpp>
#include <octavo/kernels/rms_norm.hpp>
#include <octavo/kernels/rope.hpp>
#include <octavo/kernels/router.hpp>
#include <octavo/kernels/step_status.hpp>
#include <octavo/kernels/swiglu.hpp>
#include <octavo/kernels/vocabulary_parallel.hpp>

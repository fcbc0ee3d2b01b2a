/// @file
/// Views of dense and quantised tensors, and of a batch's documents.
#pragma once

#include <octavo/tensor/batch.hpp>
#include <octavo/tensor/expert_rows.hpp>
#include <octavo/tensor/head_layout.hpp>
#include <octavo/tensor/operand.hpp>
#include <octavo/tensor/partial_view.hpp>
#include <octavo/tensor/quantized_view.hpp>
#include <octavo/tensor/scaling_slot.hpp>
#include <octavo/tensor/swizzled_scales.hpp>
#include <octavo/tensor/tensor_view.hpp>

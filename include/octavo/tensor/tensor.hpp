/// @file
/// Views of dense and quantised tensors.
#pragma once

#include <octavo/tensor/operand.hpp>
#include <octavo/tensor/quantized_view.hpp>
#include <octavo/tensor/scaling_slot.hpp>
#include <octavo/tensor/tensor_view.hpp>

/// @file
/// Precision policies and recipes.
#pragma once

#include <octavo/precision/attention_forward.hpp>
#include <octavo/precision/emulated.hpp>
#include <octavo/precision/gpu_precisions.hpp>
#include <octavo/precision/inference.hpp>
#include <octavo/precision/layer_precision.hpp>
#include <octavo/precision/layerwise.hpp>
#include <octavo/precision/linear_role.hpp>
#include <octavo/precision/lora.hpp>
#include <octavo/precision/named_precisions.hpp>
#include <octavo/precision/policy.hpp>
#include <octavo/precision/scaling.hpp>

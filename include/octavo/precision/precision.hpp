/// @file
/// Precision policies and recipes.
#pragma once

#include <octavo/precision/layerwise.hpp>
#include <octavo/precision/policy.hpp>
#include <octavo/precision/scaling.hpp>

/// @file
/// Every model.
#pragma once

#include <octavo/models/decoder.hpp>
#include <octavo/models/llama_config.hpp>
#include <octavo/models/step_hooks.hpp>

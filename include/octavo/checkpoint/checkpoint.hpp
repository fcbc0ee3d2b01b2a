/// @file
/// Checkpoints and weights in files: saving, loading, conversion and export.
#pragma once

#include <octavo/checkpoint/adapters.hpp>
#include <octavo/checkpoint/checkpoint_export.hpp>
#include <octavo/checkpoint/checkpoint_load.hpp>
#include <octavo/checkpoint/checkpoint_weights.hpp>
#include <octavo/checkpoint/checkpoints.hpp>
#include <octavo/checkpoint/hugging_face.hpp>

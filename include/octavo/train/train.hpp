/// @file
/// Training steps, evaluation, generation, interruption.
#pragma once

#include <octavo/train/gemm_plan_file.hpp>
#include <octavo/train/generate.hpp>
#include <octavo/train/interrupt.hpp>
#include <octavo/train/session.hpp>
#include <octavo/train/trainable_model.hpp>

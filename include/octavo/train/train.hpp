/// @file
/// Training steps, runs, evaluation, interruption.
#pragma once

#include <octavo/train/adapters.hpp>
#include <octavo/train/batch.hpp>
#include <octavo/train/chat_batches.hpp>
#include <octavo/train/checkpoint_export.hpp>
#include <octavo/train/checkpoint_load.hpp>
#include <octavo/train/checkpoint_weights.hpp>
#include <octavo/train/checkpoints.hpp>
#include <octavo/train/data_parallel.hpp>
#include <octavo/train/evaluation_batches.hpp>
#include <octavo/train/gemm_plan_file.hpp>
#include <octavo/train/hugging_face.hpp>
#include <octavo/train/interrupt.hpp>
#include <octavo/train/operand_health.hpp>
#include <octavo/train/replica_check.hpp>
#include <octavo/train/session.hpp>
#include <octavo/train/spikes.hpp>
#include <octavo/train/stage_hooks.hpp>
#include <octavo/train/state.hpp>
#include <octavo/train/tally.hpp>
#include <octavo/train/token_batches.hpp>
#include <octavo/train/trainable_model.hpp>
#include <octavo/train/training_run.hpp>
#include <octavo/train/training_session.hpp>
#include <octavo/train/weights.hpp>

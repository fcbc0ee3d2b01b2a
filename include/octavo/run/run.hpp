/// @file
/// Training with texts and files: sessions, ranks, batches, checkpoints, and the loop of a run.
#pragma once

#include <octavo/checkpoint/checkpoint.hpp>
#include <octavo/parallel/parallel.hpp>
#include <octavo/run/chat_batches.hpp>
#include <octavo/run/evaluation_batches.hpp>
#include <octavo/run/gemm_plan_file.hpp>
#include <octavo/run/gpu_telemetry.hpp>
#include <octavo/run/interrupt.hpp>
#include <octavo/run/run_totals.hpp>
#include <octavo/run/spikes.hpp>
#include <octavo/run/step_replay.hpp>
#include <octavo/run/token_batches.hpp>
#include <octavo/run/training_run.hpp>
#include <octavo/session/operand_health.hpp>
#include <octavo/session/session.hpp>
#include <octavo/session/state.hpp>
#include <octavo/session/timed_hooks.hpp>
#include <octavo/session/trainable_model.hpp>
#include <octavo/session/training_session.hpp>
#include <octavo/session/weights.hpp>

/// @file
/// A session's step: the work that it enqueues, the preparation of the first step, and error
/// recovery.
#pragma once

#include <octavo/attention/libraries.hpp>
#include <octavo/core/random.hpp>
#include <octavo/parallel/gemms_of_ranks.hpp>
#include <octavo/session/session_core.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

template <Device D>
Index SessionCore<D>::count_targets_of_ranks(const Batch& batch) {
  const Index documents =
      most_documents_of(batch.documents, options_.micro_batches, options_.batch);
  const bool is_refused = !batch.documents.empty() && documents > options_.batch.most_documents;
  const Index counted =
      collectives().total_targets(is_refused ? -documents : count_targets(batch.targets));
  if (counted >= 0) return counted;
  timeline_.abandon();
  throw TooManyDocumentsError(-counted, options_.batch);
}

template <Device D>
void SessionCore<D>::copy_inputs(const Batch& batch, Index counted, double learning_rate) {
  inputs_->copy_batch(batch, context_);
  inputs_->copy_gradient_scale(counted, context_);
  inputs_->copy_limits(
      {loss_limit_ * static_cast<double>(std::max<Index>(1, counted)), gradient_norm_limit_},
      context_);
  parts_.weights->begin_step();
  optimizer().prepare(learning_rate, inputs_->staging(), context_);
}

template <Device D>
StepResult SessionCore<D>::step(const Batch& batch, double learning_rate) {
  check_batch(batch, options_.micro_batches, options_.batch, facts_.vocabulary);
  require<ConfigError>(learning_rate >= 0 && std::isfinite(static_cast<float>(learning_rate)),
                       "the learning rate must be finite in FP32 and at least 0, but is ",
                       learning_rate, "; set another");
  bind();
  timeline_.begin_step_sync(context_);
  weights_may_have_moved_ = true;
  collectives().compare(batch);
  const Index counted = count_targets_of_ranks(batch);
  copy_inputs(batch, counted, learning_rate);
  const bool compares = parts_.replicas->begin_step();
  const bool was_read = state_.take_was_read();
  try {
    if (must_calibrate_ != 0) {
      wait_for_reading();
      reset_scaling_sync();  // an evaluation may have calibrated them
    }
    cast_frozen_if_due();
    if (must_calibrate_ != 0) fill_histories(options_.micro_batches);
    scaling().snapshot(context_);
    const bool is_as_usual = !compares && !timeline_.is_on() && !was_read;
    typename Replay<D>::Turn turn(*replay_, context_, is_as_usual);
    if (turn.enqueues()) enqueue_step(compares, was_read);
    turn.finish();
  } catch (...) {
    undo_step();
    throw;
  }
  collectives().weights_moved();
  const StepStatus status = read_status_sync();
  timeline_.end_step_sync(context_);
  if (status.skip == 0) {
    optimizer().advance();
    must_calibrate_ = 0;
  } else if (must_calibrate_ != 0) {
    reset_scaling_sync();
  }
  StepResult result{LossSum{status.loss_sum, counted}.mean(),
                    static_cast<double>(status.gradient_norm), status.skip != 0};
  result.is_above_limits = status.skip == StepStatus::skip_above_limits;
  if (compares)
    parts_.replicas->compare_sync(communicator_, options_.sharding.tensor_ranks, context_);
  return result;
}

template <Device D>
void SessionCore<D>::choose_gemms() {
  const std::vector<GemmKey> keys = gemm_keys(manifest(), gemm_rows());
  if (prepare_gemms(keys, options_.gemm_choice, context_) > 0) rehearse_gemms();
  share_gemm_plans_sync(
      communicator_, libraries_text(context_), [&] { return octavo::gemm_plans(context_); },
      [&](const std::vector<GemmPlanRecord>& records) { take_gemm_plans(records, context_); });
}

template <Device D>
void SessionCore<D>::rehearse_gemms() {
  const Index micro_batches = options_.micro_batches;
  copy_random_inputs();
  cast_frozen_if_due();
  const auto pass = [&] {
    prepare_weights(Evaluates{false});
    for (Index m = 0; m < std::min<Index>(micro_batches, 2); ++m) {
      train(m, {.first = m == 0, .last = false});
    }
    scaling().update(context_);
  };
  collectives().rehearse(true);
  rehearse_gemms_sync(pass, context_);
  collectives().rehearse(false);
  reset_counts();
  reset_scaling_sync();
}

template <Device D>
void SessionCore<D>::copy_random_inputs() {
  const auto vocabulary = static_cast<std::uint64_t>(facts_.vocabulary);
  const Index count = rows() * std::min<Index>(options_.micro_batches, 2);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>(random_word({options_.seed, 0}, i) * vocabulary >> 32);
  }
  inputs_->copy_batch({tokens, tokens}, context_);
  inputs_->copy_gradient_scale(count, context_);
}

template <Device D>
void SessionCore<D>::calibrate(const Batch& batch) {
  check_batch(batch, 1, options_.batch, facts_.vocabulary);
  if (must_calibrate_ == 0) return;
  bind();
  weights_may_have_moved_ = true;  // their casts get other scales
  collectives().compare(batch);
  const Index own = count_targets(batch.targets);
  const Index targets = collectives().total_targets(own);
  wait_for_reading();
  try {
    reset_scaling_sync();
    cast_frozen_if_due();
    inputs_->copy_batch(batch, context_);
    inputs_->copy_gradient_scale(targets, context_);
    fill_histories(1);
    communicator_.wait_sync(context_, "calibration");
  } catch (...) {
    undo_step();
    throw;
  }
  collectives().weights_moved();
}

template <Device D>
void SessionCore<D>::fill_histories(Index micro_batches) {
  constexpr int passes = 2;
  for (int pass = 0; pass < passes; ++pass) {
    prepare_weights(Evaluates{false});
    for (Index m = 0; m < micro_batches; ++m) {
      train(m, {.first = m == 0, .last = false});
    }
    collectives().join(context_);
    update_scaling();
  }
}

template <Device D>
void SessionCore<D>::enqueue_step(bool compares, bool was_read) {
  StepCollectives<D>& ranks = collectives();
  const TensorView<StepStatus, 1, D> status = buffers_.status;
  const TensorView<const StepLimits, 1, D> limits = buffers_.limits;
  reset_counts();
  // A recording of the step gathers weights, even if they are already gathered. Weights that are
  // being read are already gathered and must not be written.
  if (!was_read) ranks.weights_moved();
  fill_zero(status.data(), status.bytes(), context_);
  scaling().clear_statistics(context_);
  prepare_weights(Evaluates{false});
  const bool each = options_.sharding.reduces_each_micro_batch();
  for (Index m = 0; m < options_.micro_batches; ++m) {
    ranks.begin_micro_batch(m, context_);
    train(m, {.first = each || m == 0, .last = each || m + 1 == options_.micro_batches});
    add_losses(buffers_.losses, status, context_);
  }
  verify_step();
  ranks.join(context_);
  if (compares) parts_.replicas->enqueue(context_);
  if (was_read) wait_for_reading();
  update_scaling();
  timeline_.begin_stage("gradient norm", nullptr, context_);
  optimizer().add_squared_norms(status, context_);
  scaling().add_nonfinite(status, context_);
  timeline_.end_stage(context_);
  ranks.sum(status, context_);
  timeline_.begin_stage("optimizer", nullptr, context_);
  decide_step(options_.max_gradient_norm, limits, status, context_);
  optimizer().step(status, ranks, timeline_, context_);
  scaling().restore_if_skipped(status, context_);
  timeline_.end_stage(context_);
}

template <Device D>
void SessionCore<D>::finish_after_error() noexcept {
  weights_may_have_moved_ = true;
  attempt([this] { collectives().join(context_); });
  attempt([this] { communicator_.wait_sync(context_, "end of what threw"); });
  attempt([this] { collectives().weights_moved(); });  // a recording that threw gathered no weights
  timeline_.abandon();
}

template <Device D>
void SessionCore<D>::undo_step() noexcept {
  wait_for_reading();
  finish_after_error();
  attempt([this] {
    if (must_calibrate_ != 0) {
      scaling().reset_sync(context_);
    } else {
      scaling().restore(context_);
    }
    frozen_are_cast_ = false;  // their casts may have thrown
  });
}

}  // namespace octavo OCTAVO_ABI::detail

#pragma once

#include <gtest/gtest.h>

#include "support/small_model.hpp"

/// Short trainings that compare precisions.
namespace short_training {

/// Trains `session` for one step, on the batch of that number.
template <class Session>
octavo::StepResult step(Session& session, unsigned number) {
  const support::TokenBatch batch = support::step_batch(support::small_options(), number);
  return session.step({batch.tokens, batch.targets}, 3e-3);
}

/// Returns the mean loss of the last five of 30 steps.
template <class Precision>
double trained_loss() {
  octavo::Context<octavo::Cpu> context(2);
  support::SmallSession<Precision> session(support::small_options(), context);
  double sum = 0;
  for (unsigned i = 0; i < 30; ++i) {
    const octavo::StepResult result = step(session, i);
    EXPECT_FALSE(result.skipped);
    if (i >= 25) sum += result.loss / 5;
  }
  return sum;
}

}  // namespace short_training

// Sessions that train with Muon: the norm of gradients, and weights that a program sets.
#include <octavo/optim/muon.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "support/small_model.hpp"

namespace muon_session_test {

using namespace octavo;

StepResult take_step(TrainingSession& session, double rate) {
  const support::TokenBatch batch = support::step_batch(support::small_options(), 0);
  return session.step({batch.tokens, batch.targets}, rate);
}

TEST(MuonSession, NormCoversAllGradients) {
  Context<Cpu> context(1);
  SessionOptions options = support::small_options();
  options.optimizer = MuonSettings{};
  support::SmallSession<Fp32, Muon<>> session(options, context);
  const StepResult result = take_step(session, 0);
  double of_matrices = 0;
  double of_others = 0;
  session.model().visit([&](auto& parameter) {
    double& sum = parameter.matrices.empty() ? of_others : of_matrices;
    for (Index i = 0; i < parameter.gradient.size(); ++i) {
      const auto value = static_cast<double>(parameter.gradient.data()[i]);
      sum += value * value;
    }
  });
  EXPECT_NEAR(result.gradient_norm, std::sqrt(of_matrices + of_others),
              1e-6 * result.gradient_norm);
  EXPECT_GT(of_matrices, 1e-3 * of_others);
  EXPECT_GT(of_others, 1e-3 * of_matrices);
}

TEST(MuonSession, SettingWeightsUpdatesMasters) {
  Context<Cpu> context(1);
  SessionOptions options = support::small_options();
  options.optimizer = MuonSettings{};
  support::SmallSession<Bf16, Muon<>> session(options, context);
  (void)take_step(session, 1e-3);
  for (const std::string name : {"embedding.weight", "blocks.1.qkv.weight"}) {
    const Index rows = name == "embedding.weight" ? 96 : 256;
    std::vector<float> wanted(static_cast<std::size_t>(rows * 128));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      wanted[i] = 1.0f / static_cast<float>(i + 3);  // most are not BF16 numbers
    }
    session.weights().set(name, wanted);
    const SavedState state = save_state_sync(session.state().entries());
    std::vector<float> masters(wanted.size());
    std::memcpy(masters.data(), state.at("optimizer.master." + name).bytes.data(),
                masters.size() * sizeof(float));
    EXPECT_EQ(masters, wanted) << name;
  }
}

}  // namespace muon_session_test

#pragma once

#include <octavo/session/training_session.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace support {

/// A session without a model, for tests of what uses sessions: they replace what they look at.
class SessionStub : public octavo::TrainingSession {
 public:
  octavo::StepResult step(const octavo::Batch&, double) override { return {}; }
  void begin_evaluation() override {}
  using octavo::TrainingSession::evaluate;
  octavo::LossSum evaluate(const octavo::Batch&, std::span<float>) override { return {}; }
  void next_token_logits(std::span<const std::int32_t>, std::span<float>) override {}
  const octavo::SessionFacts& facts() const override { return facts_; }
  octavo::SessionWeights& weights() override { return weights_; }
  octavo::SessionState& state() override { return state_; }
  octavo::SessionRanks& ranks() override { return ranks_; }
  const octavo::Manifest& manifest() const override { return manifest_; }
  const octavo::ReplayCounts& replays() const override { return replays_; }
  std::vector<octavo::OperandReport> operands() override { return {}; }

 protected:
  octavo::SessionFacts facts_ = [] {
    octavo::SessionFacts facts;
    facts.precision = facts.optimizer = "none";
    facts.run_shape = {1, 1};
    return facts;
  }();

 private:
  struct NoWeights final : octavo::SessionWeights {
    std::vector<octavo::WeightInfo> list() const override { return {}; }
    void set(const std::string&, std::span<const float>) override {}
    void set(const std::string&, const octavo::WeightSource&) override {}
    void read_sync(const octavo::WeightSink&) override {}
    std::uint64_t hash_sync() override { return 0; }
  };
  struct NoState final : octavo::SessionState {
    std::vector<octavo::StateEntry> entries() override { return {}; }
  };

  NoWeights weights_;
  NoState state_;
  octavo::SessionRanks ranks_;
  octavo::Manifest manifest_;
  octavo::ReplayCounts replays_;
};

}  // namespace support

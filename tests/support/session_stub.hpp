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
  const octavo::Manifest& manifest() const override { return manifest_; }
  const octavo::MemoryPlan& memory() const override { return memory_; }
  std::size_t allocated_bytes() const override { return 0; }
  const octavo::ModelFacts& facts() const override { return facts_; }
  octavo::BatchShape run_shape() const override { return {1, 1}; }
  octavo::Index micro_batches() const override { return 1; }
  std::string precision() const override { return "none"; }
  std::string optimizer() const override { return "none"; }
  octavo::Index head_chunks() const override { return 1; }
  const octavo::ReplayCounts& replays() const override { return replays_; }
  std::vector<octavo::OperandReport> operands() override { return {}; }
  std::uint64_t hash_weights_sync() override { return 0; }
  std::vector<octavo::StateEntry> state() override { return {}; }
  void set_weight(const std::string&, std::span<const float>) override {}
  void set_weight(const std::string&, const octavo::WeightSource&) override {}
  std::vector<octavo::WeightInfo> weights() const override { return {}; }
  void read_weights_sync(const octavo::WeightSink&) override {}

 protected:
  octavo::ModelFacts facts_;

 private:
  octavo::Manifest manifest_;
  octavo::ReplayCounts replays_;
  octavo::MemoryPlan memory_;
};

}  // namespace support

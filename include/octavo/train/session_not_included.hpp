/// @file
/// Takes the place of a session whose device is not included, so that the compiler says only that.
#pragma once

#include <octavo/train/session.hpp>

namespace octavo {

/// A device whose headers are not included; they define `Replay`.
template <class D>
concept NotIncludedDevice = Device<D> && !requires {
  sizeof(Replay<D>);
};

/// Declares what programs call, and defines nothing: `Context<D>`, which the constructor takes,
/// does not compile.
template <class Model, class Optimizer>
requires NotIncludedDevice<typename Model::DeviceType>
class ModelSession<Model, Optimizer> final : public TrainingSession {
 public:
  using D = typename Model::DeviceType;
  using Tokens = std::span<const std::int32_t>;

  ModelSession(const SessionOptions&, Context<D>&);
  StepResult step(Tokens, Tokens, double) override;
  void begin_evaluation() override;
  LossSum evaluate(Tokens, Tokens) override;
  void next_token_logits(Tokens, std::span<float>) override;
  [[nodiscard]] const Manifest& manifest() const override;
  [[nodiscard]] const MemoryPlan& memory() const override;
  [[nodiscard]] std::size_t allocated_bytes() const override;
  [[nodiscard]] const LlamaConfig& config() const override;
  [[nodiscard]] std::string precision() const override;
  [[nodiscard]] std::string optimizer() const override;
  [[nodiscard]] Index head_chunks() const override;
  [[nodiscard]] const ReplayCounts& replays() const override;
  [[nodiscard]] std::vector<OperandReport> operands() override;
};

}  // namespace octavo

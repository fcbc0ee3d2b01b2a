// A custom optimizer: the rule of Lion for each element; the library adds master weights, shards of
// ranks, state in host memory and checkpoints. Exit code 1: the loss does not fall.
#include <fmt/format.h>
#include <octavo/octavo.hpp>

#include <cmath>

using namespace octavo;

/// Moves each weight by the sign of its momentum. Chen et al. 2023, arXiv 2302.06675.
struct LionRule {
  static constexpr const char* name = "Lion";
  static constexpr std::size_t moments = 1;  // each element has one moment

  /// Constants of a training.
  struct Settings {
    float beta1 = 0.9f;
    float beta2 = 0.99f;
    float weight_decay = 0.1f;
  };
  static void check(const Settings& settings) {
    require<ConfigError>(settings.beta1 >= 0 && settings.beta1 < 1, "beta1 is ", settings.beta1,
                         "; pass a number from 0 to below 1");
  }

  /// Values that change from step to step; the library copies them to the device.
  struct Step {
    float learning_rate;
  };
  static Step at(const Settings&, const StepNumbers& numbers) {
    return {static_cast<float>(numbers.learning_rate)};
  }

  /// Updates the elements of one parameter, unless the step is skipped.
  template <class W, class G>
  static void update(const UpdatedElements<W, G, float, moments, Cpu>& elements,
                     const Settings& settings, TensorView<const Step, 1, Cpu> step,
                     TensorView<const StepStatus, 1, Cpu> status, const Context<Cpu>& context) {
    if (status.data()->skip != 0) return;
    const float clip = status.data()->clip_coefficient, rate = step.data()->learning_rate;
    const float decay = elements.parameter.is_matrix() ? settings.weight_decay : 0.0f;
    float* master = elements.state.master.data();  // null if the weights are in FP32
    float* moment = elements.state.moments[0].data();
    W* weight = elements.weight.data();
    parallel_for(elements.weight.size(), 1, context, [&](Index i) {
      const float gradient = static_cast<float>(elements.gradient.data()[i]) * clip;
      const float direction = std::lerp(gradient, moment[i], settings.beta1);
      const float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : 0.0f;
      const float old = master != nullptr ? master[i] : static_cast<float>(weight[i]);
      const float updated = old - rate * (sign + decay * old);
      if (master != nullptr) master[i] = updated;
      weight[i] = W(updated);
      moment[i] = std::lerp(gradient, moment[i], settings.beta2);
    });
  }
};

int main() {
  using Model = Llama<llama_tiny, Bf16, Cpu>;
  SessionOptions options{.batch = {.sequences = 2, .tokens = 32}};
  options.optimizer = LionRule::Settings{.weight_decay = 0.01f};
  Context<Cpu> context;
  ModelSession<Model, ElementwiseOptimizer<LionRule>> session(options, context);
  std::vector<std::int32_t> tokens, targets;
  for (int i = 0; i < 64; ++i) tokens.push_back(i % 7), targets.push_back((i + 1) % 7);
  fmt::print("{}\n", session.facts().optimizer);
  double first = 0, last = 0;
  for (int step = 1; step <= 10; ++step) {
    last = session.step({tokens, targets}, 1e-3).loss;
    if (step == 1) first = last;
    fmt::print("step {:>2} | loss {:.4f}\n", step, last);
  }
  return last < first / 2 ? 0 : 1;
}

/// @file
/// Optimizers that update each element from its gradient and its own state.
#pragma once

#include <octavo/optim/optimizer.hpp>
#include <octavo/optim/optimizer_state.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The data about a step that is known on the host.
struct StepNumbers {
  double learning_rate;
  std::int64_t step;   ///< from 1; skipped steps do not count
  std::uint64_t seed;  ///< of stochastic rounding
};

/// The rule by which an optimizer updates each element from its gradient and its own state:
/// - `Settings`, constants of a training, and `static void check(settings)`, which throws a
///   ConfigError for invalid ones;
/// - `Step`, the values that change from step to step, trivially copyable, and `static Step
///   at(settings, numbers)`;
/// - `moments`, the number of moments of each element, 1 or 2, and `name`, such as "AdamW";
/// - `static void update(elements, settings, step, status, context)`, which enqueues the update of
///   `UpdatedElements` in all formats and on all devices that the rule supports. It changes nothing
///   if the status requests skipping.
template <class Rule>
concept UpdateRule = std::is_trivially_copyable_v<typename Rule::Step> &&
                     requires(const typename Rule::Settings& settings, const StepNumbers& numbers) {
                       Rule::check(settings);
                       { Rule::at(settings, numbers) } -> std::same_as<typename Rule::Step>;
                       { Rule::name } -> std::convertible_to<std::string>;
                       requires Rule::moments == 1 || Rule::moments == 2;
                     };

namespace detail {

/// The memory of an optimizer with a rule; see OptimizerState for its parameters.
template <UpdateRule Rule, class W, class G, class Moment, Device D>
class RuleMemory {
 public:
  using Settings = typename Rule::Settings;
  using Step = typename Rule::Step;

  RuleMemory(Arena<D>& arena, const std::vector<FlatShard<W, G, D>>& shards,
             const Settings& settings, std::uint64_t seed, const Offload& offload, bool has_master)
      : settings_(checked(settings)),
        state_(arena, shards, seed, offload, has_master),
        step_(arena.template allocate<Step>(MemoryKind::optimizer, 1), {1}) {}

  /// Returns the number of steps that were not skipped.
  [[nodiscard]] std::int64_t steps() const { return state_.steps(); }

 private:
  static const Settings& checked(const Settings& settings) {
    Rule::check(settings);
    return settings;
  }

 protected:
  Settings settings_;
  OptimizerState<W, G, Moment, Rule::moments, D> state_;
  TensorView<Step, 1, D> step_;
};

template <UpdateRule Rule, class W, class G, class Moment, Device D>
class OptimizerOfRule : public RuleMemory<Rule, W, G, Moment, D>, public Optimizer<D> {
  using Memory = RuleMemory<Rule, W, G, Moment, D>;
  using Memory::settings_;
  using Memory::state_;
  using Memory::step_;

 public:
  using Memory::Memory;
  using typename Memory::Step;

  void initialize(const Context<D>& context) override { state_.initialize(context); }
  void prepare(double learning_rate, Staging<D>& staging, const Context<D>& context) override {
    const Step step = Rule::at(settings_, {learning_rate, state_.steps() + 1, state_.seed()});
    staging.copy(step_.data(), &step, sizeof(step), context);
  }
  [[nodiscard]] std::size_t staged_bytes() const override { return sizeof(Step); }
  void add_squared_norms(TensorView<StepStatus, 1, D> status,
                         const Context<D>& context) const override {
    state_.add_squared_norms(status, context);
  }
  void step(TensorView<const StepStatus, 1, D> status, [[maybe_unused]] ShardExchange<D>& ranks,
            Timeline<D>& timeline, const Context<D>& context) const override {
    const TensorView<const Step, 1, D> numbers = step_;
    auto pass = state_.update(timeline);
    while (const auto* chunk = pass.next()) {
      for (const auto& elements : chunk->elements) {
        Rule::update(elements, settings_, numbers, status, context);
      }
    }
  }
  void advance() override { state_.advance(); }
  void set_master(const std::string& name, Index begin, std::span<const float> values,
                  const Context<D>& context) const override {
    state_.set_master(name, begin, values, context);
  }
  void visit_state(StateVisitor<D>& visitor) override { state_.visit_state(visitor); }
};

/// Describes the formats of an optimizer's state, such as "fp32 master weights and fp32 moments".
/// FP32 weights have no master weights.
template <class W, class MasterFormat, class MomentFormat>
std::string state_text() {
  const std::string weights = std::is_same_v<W, float>
                                  ? "fp32 weights"
                                  : message(FormatTraits<MasterFormat>::name, " master weights");
  return message(weights, " and ", FormatTraits<MomentFormat>::name, " moments");
}

/// Whether weights in `W` have separate FP32 master weights.
template <class W, class MasterFormat>
inline constexpr bool has_master = std::is_same_v<MasterFormat, Fp32> && !std::is_same_v<W, float>;

}  // namespace detail

/// An optimizer that applies an update rule to each element.
/// @tparam Master  `MasterWeights<Fp32>` or `MasterWeights<Bf16>`
/// @tparam Moment  `Moments<Fp32>`, `Moments<Bf16>` or `Moments<EightBit>`
template <UpdateRule Rule, class Master = MasterWeights<Fp32>, class Moment = Moments<Fp32>>
struct ElementwiseOptimizer;

template <UpdateRule Rule, class MasterFormat, class MomentFormat>
struct ElementwiseOptimizer<Rule, MasterWeights<MasterFormat>, Moments<MomentFormat>> {
  static_assert(sizeof(MasterWeights<MasterFormat>) > 0 && sizeof(Moments<MomentFormat>) > 0);
  using Settings = typename Rule::Settings;

  /// Its memory, for plans, which need no code for the device.
  template <class W, class G, Device D>
  class Memory : public detail::RuleMemory<Rule, W, G, MomentFormat, D> {
   public:
    Memory(Arena<D>& arena, const std::vector<FlatShard<W, G, D>>& shards, const Settings& settings,
           std::uint64_t seed, const Offload& offload)
        : detail::RuleMemory<Rule, W, G, MomentFormat, D>(arena, shards, settings, seed, offload,
                                                          detail::has_master<W, MasterFormat>) {}
  };

  /// The optimizer of a model, or of one rank's shards of it.
  /// @tparam W  format of the weights
  /// @tparam G  format of the gradients used for the update
  template <class W, class G, Device D>
  class For final : public detail::OptimizerOfRule<Rule, W, G, MomentFormat, D> {
   public:
    /// Returns a description, such as "AdamW with fp32 master weights and fp32 moments".
    static std::string name() {
      return message(Rule::name, " with ", detail::state_text<W, MasterFormat, MomentFormat>());
    }

    /// Lays the state out in the arena, without writing to it.
    /// @param shards  the shards that this rank updates
    /// @param seed    of stochastic rounding
    For(Arena<D>& arena, const std::vector<FlatShard<W, G, D>>& shards, const Settings& settings,
        std::uint64_t seed, const Offload& offload = {})
        : detail::OptimizerOfRule<Rule, W, G, MomentFormat, D>(
              arena, shards, settings, seed, offload, detail::has_master<W, MasterFormat>) {}
  };
};

}  // namespace octavo

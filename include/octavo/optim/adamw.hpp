/// @file
/// AdamW for a whole model; its state's formats are types.
#pragma once

#include <octavo/kernels/adamw.hpp>
#include <octavo/kernels/initialize.hpp>
#include <octavo/memory/arena.hpp>

#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

namespace octavo {

/// The format of the weights that the optimizer updates: `Fp32` keeps a copy beside BF16 weights;
/// `Bf16` updates the BF16 weights themselves, rounding stochastically.
template <class Format>
struct MasterWeights {
  static_assert(std::is_same_v<Format, Fp32> || std::is_same_v<Format, Bf16>,
                "MasterWeights: choose MasterWeights<Fp32> or MasterWeights<Bf16>");
};

/// The format of the optimizer's moments: `Fp32`, or `Bf16` with stochastic rounding.
template <class Format>
struct Moments {
  static_assert(std::is_same_v<Format, Fp32> || std::is_same_v<Format, Bf16>,
                "Moments: choose Moments<Fp32> or Moments<Bf16>");
};

/// AdamW's state and update.
/// @tparam Master  `MasterWeights<Fp32>` or `MasterWeights<Bf16>`
/// @tparam Moment  `Moments<Fp32>` or `Moments<Bf16>`
/// Source: Loshchilov and Hutter 2017, arXiv 1711.05101.
template <class Master = MasterWeights<Fp32>, class Moment = Moments<Fp32>>
struct AdamW;

template <class MasterFormat, class MomentFormat>
struct AdamW<MasterWeights<MasterFormat>, Moments<MomentFormat>> {
  /// The optimizer of one model.
  template <class Model>
  class For {
   public:
    using D = typename Model::DeviceType;
    using W = typename Model::T;
    using G = typename Model::G;
    static constexpr bool has_master =
        std::is_same_v<MasterFormat, Fp32> && !std::is_same_v<W, float>;

    /// What it keeps, such as "AdamW with fp32 master weights and fp32 moments". Weights in FP32
    /// have no masters, whatever `Master` is: "AdamW with fp32 weights and fp32 moments".
    static std::string name() {
      const std::string weights =
          std::is_same_v<W, float> ? "fp32 weights"
                                   : message(FormatTraits<MasterFormat>::name, " master weights");
      return message("AdamW with ", weights, " and ", FormatTraits<MomentFormat>::name, " moments");
    }

    /// Lays the state out in the arena. Writes nothing: see `initialize`.
    For(Arena<D>& arena, Model& model, const AdamWSettings& settings) : settings_(settings) {
      constexpr auto kind = MemoryKind::optimizer;
      model.visit([&](auto& parameter) {
        const Index size = parameter.weight.size();
        Update update;
        update.weight = {parameter.weight.data(), {size}};
        update.gradient = {parameter.gradient.data(), {size}};
        if constexpr (has_master) update.master = {arena.template take<float>(kind, size), {size}};
        update.first_moment = {arena.template take<MomentFormat>(kind, size), {size}};
        update.second_moment = {arena.template take<MomentFormat>(kind, size), {size}};
        update.weight_decay = parameter.is_matrix() ? settings.weight_decay : 0.0f;
        update.random_stream = static_cast<std::uint64_t>(updates_.size());
        updates_.push_back(update);
      });
      step_ = {arena.template take<AdamWStep>(kind, 1), {1}};
    }

    /// Zeroes the moments and copies the weights to the masters.
    /// @note enqueues; does not synchronise
    void initialize(const Context<D>& context) {
      for (const Update& update : updates_) {
        fill_zero(update.first_moment.data(), update.first_moment.bytes(), context);
        fill_zero(update.second_moment.data(), update.second_moment.bytes(), context);
        if constexpr (has_master) {
          widen(TensorView<const W, 1, D>(update.weight), update.master, context);
        }
      }
      steps_ = 0;
    }

    /// Sets what the next `step` uses. Outside of a captured graph.
    void prepare(double learning_rate, Staging<D>& staging, const Context<D>& context) {
      const double t = static_cast<double>(steps_ + 1);
      const AdamWStep step{
          static_cast<float>(learning_rate),
          static_cast<float>(1.0 - std::pow(static_cast<double>(settings_.beta1), t)),
          static_cast<float>(1.0 - std::pow(static_cast<double>(settings_.beta2), t)),
          static_cast<std::uint32_t>(steps_ + 1)};
      staging.copy(step_.data(), &step, sizeof(step), context);
    }

    /// Adds all gradients to the status' squared norm.
    void add_squared_norms(TensorView<StepStatus, 1, D> status, const Context<D>& context) const {
      for (const Update& update : updates_) add_squared_norm(update.gradient, status, context);
    }

    /// Updates all weights, unless the status says to skip.
    /// @note enqueues; does not synchronise
    void step(TensorView<const StepStatus, 1, D> status, const Context<D>& context) const {
      const TensorView<const AdamWStep, 1, D> now = step_;
      for (const Update& update : updates_) {
        adamw_update(update, settings_, now, status, context);
      }
    }

    /// Counts a step that was not skipped.
    void advance() { ++steps_; }
    [[nodiscard]] std::int64_t steps() const { return steps_; }

   private:
    using Update = AdamWParameter<W, G, MomentFormat, D>;

    AdamWSettings settings_;
    std::vector<Update> updates_;
    TensorView<AdamWStep, 1, D> step_;
    std::int64_t steps_ = 0;
  };
};

}  // namespace octavo

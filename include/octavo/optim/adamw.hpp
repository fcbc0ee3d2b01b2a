/// @file
/// AdamW for a whole model; its state's formats are types.
#pragma once

#include <octavo/kernels/adamw.hpp>
#include <octavo/kernels/initialize.hpp>
#include <octavo/layers/parameter_run.hpp>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

/// The format of the weights that the optimizer updates: `Fp32` keeps a copy beside BF16 weights;
/// `Bf16` updates the BF16 weights themselves, rounding stochastically.
template <class Format>
struct MasterWeights {
  static_assert(std::is_same_v<Format, Fp32> || std::is_same_v<Format, Bf16>,
                "MasterWeights: choose MasterWeights<Fp32> or MasterWeights<Bf16>");
};

/// The format of the optimizer's moments: `Fp32`, or `Bf16` or `EightBit` with stochastic rounding.
template <class Format>
struct Moments {
  static_assert(std::is_same_v<Format, Fp32> || std::is_same_v<Format, Bf16> ||
                    std::is_same_v<Format, EightBit>,
                "Moments: choose Moments<Fp32>, Moments<Bf16> or Moments<EightBit>");
};

/// What an AdamW keeps and does. Whether it keeps master weights is no type, so that it is compiled
/// once for both.
/// @tparam W  format of the weights
/// @tparam G  format of the gradients that it updates with
template <class W, class G, class MomentFormat, Device D>
class AdamWState {
 public:
  static constexpr bool has_scales = detail::has_moment_scales<MomentFormat>;

  /// Lays the state out in the arena. Writes nothing: see `initialize`.
  /// @param shards      what this rank updates
  /// @param seed        of stochastic rounding
  /// @param has_master  it keeps master weights in FP32, beside weights that are not
  AdamWState(Arena<D>& arena, const std::vector<RunShard<W, G, D>>& shards,
             const AdamWSettings& settings, std::uint64_t seed, bool has_master)
      : settings_(settings), seed_(static_cast<std::int64_t>(seed)), has_master_(has_master) {
    constexpr auto kind = MemoryKind::optimizer;
    std::uint64_t number = 0;
    for (const RunShard<W, G, D>& shard : shards) {
      const Index size = shard.weights.size();
      float* master = has_master ? arena.template take<float>(kind, size) : nullptr;
      auto* first_moment = arena.template take<MomentFormat>(kind, size);
      auto* second_moment = arena.template take<MomentFormat>(kind, size);
      const Index groups = ceil_divide(size, detail::moment_group);
      [[maybe_unused]] E8M0* first_scale =
          has_scales ? arena.template take<E8M0>(kind, groups) : nullptr;
      [[maybe_unused]] E8M0* second_scale =
          has_scales ? arena.template take<E8M0>(kind, groups) : nullptr;
      for (const ParameterPlace& parameter : shard.parameters) {
        const auto [begin, end] = shard.part_of(parameter);
        const std::uint64_t random_stream = number++;
        if (begin == end) continue;
        // Parameters and shards begin with a group: at multiples of ParameterRun::alignment.
        const Index place = shard.place_of(parameter, {begin, end});
        const Index length = end - begin;
        const auto part = [place, length](auto* of_shard, Index group = 1) {
          return TensorView<std::remove_pointer_t<decltype(of_shard)>, 1, D>{
              of_shard == nullptr ? nullptr : of_shard + place / group,
              {ceil_divide(length, group)}};
        };
        Update update;
        update.weight = part(shard.weights.data());
        update.gradient = part(shard.gradients.data());
        update.master = part(master);
        update.first_moment = part(first_moment);
        update.second_moment = part(second_moment);
        if constexpr (has_scales) {
          update.first_scale = part(first_scale, detail::moment_group);
          update.second_scale = part(second_scale, detail::moment_group);
        }
        update.weight_decay = parameter.is_matrix() ? settings.weight_decay : 0.0f;
        update.random_stream = random_stream;
        update.first_element = begin;
        updates_.push_back(update);
        parameters_.push_back(parameter);
      }
    }
    step_ = {arena.template take<AdamWStep>(kind, 1), {1}};
  }

  /// Zeroes the moments and copies the weights to the masters.
  /// @note enqueues; does not synchronise
  void initialize(const Context<D>& context) {
    for (const Update& update : updates_) {
      fill_zero(update.first_moment.data(), update.first_moment.bytes(), context);
      fill_zero(update.second_moment.data(), update.second_moment.bytes(), context);
      fill_zero(update.first_scale.data(), update.first_scale.bytes(), context);
      fill_zero(update.second_scale.data(), update.second_scale.bytes(), context);
      if (has_master_) widen(update.weight, update.master, context);
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
        static_cast<std::uint32_t>(steps_ + 1), static_cast<std::uint64_t>(seed_)};
    staging.copy(step_.data(), &step, sizeof(step), context);
  }

  /// Adds all gradients that count to the status' squared norm.
  void add_squared_norms(TensorView<StepStatus, 1, D> status, const Context<D>& context) const {
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      if (parameters_[i].is_counted) add_squared_norm(updates_[i].gradient, status, context);
    }
  }

  /// Updates all weights, unless the status says to skip.
  /// @note enqueues; does not synchronise
  void step(TensorView<const StepStatus, 1, D> status, const Context<D>& context) const {
    for (const Update& update : updates_) {
      adamw_update(update, settings_, step_, status, context);
    }
  }

  /// Calls `visitor(name, view)` for masters, moments and their scales of whole parameters,
  /// `visitor(name, view, begin, shape)` for parts of them, from element `begin` of such a shape
  /// on, and `visitor(name, number)` for the number of steps and the seed of rounding: all that
  /// the next steps depend on.
  template <class Visitor>
  void visit_state(Visitor& visitor) {
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      const Update& update = updates_[i];
      const ParameterPlace& parameter = parameters_[i];
      const auto show = [&]<class T, std::size_t Rank>(const char* kind, TensorView<T, 1, D> state,
                                                       const Array<Index, Rank>& whole,
                                                       Index begin) {
        const std::string name = message("optimizer.", kind, '.', parameter.name);
        const TensorView<T, Rank, D> all(state.data(), whole);
        if (state.size() == all.size()) {
          visitor(name, all);
        } else {
          visitor(name, state, begin, whole);
        }
      };
      if (has_master_) show("master", update.master, parameter.shape, update.first_element);
      show("first_moment", update.first_moment, parameter.shape, update.first_element);
      show("second_moment", update.second_moment, parameter.shape, update.first_element);
      if constexpr (has_scales) {
        const Index first = update.first_element / detail::moment_group;
        const Array<Index, 1> groups{ceil_divide(parameter.size(), detail::moment_group)};
        show("first_moment_scale", update.first_scale, groups, first);
        show("second_moment_scale", update.second_scale, groups, first);
      }
    }
    visitor("optimizer.steps", steps_);
    visitor("optimizer.seed", seed_);
  }

  /// Sets elements of the master of parameter `name`, those that this rank has, if there are
  /// masters; waits for it.
  /// @param name    of a parameter of the model
  /// @param begin   of the first value in the parameter
  void set_master_sync(const std::string& name, Index begin, std::span<const float> values,
                       const Context<D>& context) const {
    for (std::size_t i = 0; has_master_ && i < updates_.size(); ++i) {
      if (parameters_[i].name != name) continue;
      const TensorView<float, 1, D> master = updates_[i].master;
      const Index first = updates_[i].first_element;
      const Index from = std::max(begin, first);
      const Index to = std::min(begin + static_cast<Index>(values.size()), first + master.size());
      if (from >= to) continue;
      copy_to_device_sync(master.data() + from - first, values.data() + from - begin,
                          static_cast<std::size_t>(to - from) * sizeof(float), context);
    }
  }

  /// Counts a step that was not skipped.
  void advance() { ++steps_; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }

 private:
  using Update = AdamWParameter<W, G, MomentFormat, D>;

  AdamWSettings settings_;
  std::vector<Update> updates_;
  std::vector<ParameterPlace> parameters_;  ///< that the updates are of
  TensorView<AdamWStep, 1, D> step_;
  std::int64_t steps_ = 0;
  std::int64_t seed_;
  bool has_master_;
};

/// AdamW's state and update.
/// @tparam Master  `MasterWeights<Fp32>` or `MasterWeights<Bf16>`
/// @tparam Moment  `Moments<Fp32>`, `Moments<Bf16>` or `Moments<EightBit>`
/// Source: Loshchilov and Hutter 2017, arXiv 1711.05101.
template <class Master = MasterWeights<Fp32>, class Moment = Moments<Fp32>>
struct AdamW;

template <class MasterFormat, class MomentFormat>
struct AdamW<MasterWeights<MasterFormat>, Moments<MomentFormat>> {
  /// The optimizer of one model, or of one rank's shards of it.
  /// @tparam W  format of the weights
  /// @tparam G  format of the gradients that it updates with
  template <class W, class G, Device D>
  class For : public AdamWState<W, G, MomentFormat, D> {
   public:
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

    /// See AdamWState.
    For(Arena<D>& arena, const std::vector<RunShard<W, G, D>>& shards,
        const AdamWSettings& settings, std::uint64_t seed)
        : AdamWState<W, G, MomentFormat, D>(arena, shards, settings, seed, has_master) {}
  };
};

}  // namespace octavo

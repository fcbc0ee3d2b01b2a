// What the optimizer's state is on a card, and what to change so that a training fits it.
#pragma once

#include <plan_memory/options.hpp>
#include <plan_memory/predict.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace planner {

/// GiB of a GPU that a plan cannot have: what CUDA and its libraries take, 0.6 with one rank
/// and 2.1 with four, and up to 0.6 by which the memory is smaller than it is called: an H200 of
/// 141 GiB has 140.4. Measured on H200s, with cuDNN.
inline double cuda_gib(const Options& options) { return options.world == 1 ? 1.25 : 2.75; }
inline constexpr double bytes_in_gib = 1 << 30;

/// GiB of a card that the plan leaves, below 0 if it does not fit.
inline double left_on(double card, const Options& options, const octavo::MemoryPlan& plan) {
  return card - cuda_gib(options) - static_cast<double>(plan.peak) / bytes_in_gib;
}

/// Whether there is a Hopper GPU, the only kind that Octavo runs on, with so many GiB: those have
/// 64 to 144.
inline bool is_of_hopper(double card) { return card >= 60 && card <= 150; }

/// Whether a plan fits one of the GPUs that are asked for.
inline bool fits_one(const Options& options, const octavo::MemoryPlan& plan) {
  return std::ranges::any_of(options.card_memory,
                             [&](double card) { return left_on(card, options, plan) >= 0; });
}

/// The plans of one model in one precision.
class Planner {
 public:
  /// @param app  says which flags the command line names: these are kept
  Planner(const CLI::App& app, Plan plan) : app_(&app), plan_(std::move(plan)) {}

  /// One for which the command line names nothing.
  [[nodiscard]] Planner free_of_flags() const { return Planner(plan_); }

  [[nodiscard]] octavo::ModelFacts facts() const { return plan_.facts(); }

  [[nodiscard]] octavo::MemoryPlan plan(const Options& options) const {
    return plan_.memory(request_of(options));
  }

  [[nodiscard]] std::string run_shape_note(const Options& options) const {
    return octavo::run_shape_note(options.sequence_length, plan_.run_shape(request_of(options)));
  }

  /// GiB of a card that these options leave, below 0 if they do not fit.
  [[nodiscard]] double left(double card, const Options& options) const {
    return left_on(card, options, plan(options));
  }

  /// @param memory  the plan of these options
  [[nodiscard]] Prediction time(const Options& options, const octavo::MemoryPlan& memory) const {
    return predict(options, plan_, plan_.gemms(request_of(options)), memory);
  }

  /// `auto` replaced as the trainer does it: FP32 where the card has memory for it.
  [[nodiscard]] Options resolved(const Options& options, double card) const {
    Options wide = with_state(options, "fp32", "fp32");
    if (options.device != "cuda" || left(card, wide) >= 0) return wide;
    return with_state(options, "bf16", "bf16");
  }

  /// Every choice of state, where it lives, weight copies and recomputation. What the command line
  /// names stays.
  [[nodiscard]] std::vector<Options> all_choices(const Options& options) const {
    std::vector<Options> result;
    std::vector<std::string> seen;
    for (const auto& [masters, moments] :
         {std::pair{"fp32", "fp32"}, {"bf16", "bf16"}, {"bf16", "8bit"}}) {
      Options with = with_state(options, masters, moments);
      const std::string state = with.master_weights + with.moments;
      if (std::find(seen.begin(), seen.end(), state) != seen.end()) continue;
      seen.push_back(state);
      for (const std::string& place :
           named("--offload", options.offload, programs::offload_names)) {
        with.offload = place;
        const std::vector<Options> some = choices(with);
        result.insert(result.end(), some.begin(), some.end());
      }
    }
    return result;
  }

  /// Every choice of weight copies and recomputation, the fastest first. What the command line
  /// names stays.
  [[nodiscard]] std::vector<Options> choices(const Options& options) const {
    std::vector<Options> result;
    const bool quantized = plan(options).bytes(octavo::MemoryKind::quantized_weights) > 0;
    for (const std::string& policy :
         named("--recompute", options.recompute, programs::recompute_names)) {
      for (const std::string& copies :
           named("--weight-copies", options.weight_copies,
                 quantized ? programs::weight_copies_names
                           : std::vector<std::string>{options.weight_copies})) {
        result.push_back(options);
        result.back().recompute = policy;
        result.back().weight_copies = copies;
      }
    }
    return result;
  }

  /// The first choice that fits the card: of those with this batch and state, then with smaller
  /// state, each also with weights in shards that travel in FP8, which changes no bit; then with
  /// the batch cut in halves: as twice the micro-batches, or else in a smaller step; then with this
  /// state in the host's memory.
  [[nodiscard]] std::optional<Options> suggest(const Options& asked, double card) const {
    std::vector<Options> candidates{asked};
    const auto add_smaller = [&](const Options& options) {
      for (const Options& smaller : smaller_states(options)) candidates.push_back(smaller);
    };
    add_smaller(asked);
    for (Options cut = asked; cut.batch % 2 == 0;) {
      cut.batch /= 2;
      Options whole_step = cut;
      whole_step.micro_batches *= asked.batch / cut.batch;
      add_smaller(whole_step);
      add_smaller(cut);
    }
    candidates.push_back(with_least_offload(asked));
    for (const Options& candidate : with_fp8_gathers(candidates)) {
      if (!can_run(candidate)) continue;
      for (const Options& choice : choices(candidate)) {
        if (left(card, choice) >= 0) return choice;
      }
    }
    return std::nullopt;
  }

  /// The choice that needs least.
  [[nodiscard]] Options least(const Options& options) const {
    std::vector<Options> candidates = smaller_states(with_least_offload(options));
    candidates.push_back(with_least_offload(options));
    std::vector<Options> all;
    for (const Options& candidate : with_fp8_gathers(candidates)) {
      for (const Options& choice : choices(candidate)) all.push_back(choice);
    }
    return *std::min_element(all.begin(), all.end(), [&](const Options& a, const Options& b) {
      return plan(a).peak < plan(b).peak;
    });
  }

  /// The fewest cards that would do, in powers of two, with all that ranks can share, and the first
  /// choice that fits them, with this state or smaller; nothing where no number is enough.
  [[nodiscard]] std::optional<Options> on_more_cards(const Options& options, double card) const {
    const auto shared_by = [&](int world) {
      Options more = options;
      more.zero = 3;
      more.world = world;
      // Of a model without weights that travel in FP8, or so many ranks that none would be fewer
      // bytes.
      if (!can_run(more)) more.gather = "stored";
      return more;
    };
    const auto fits = [&](const Options& choice) { return left(card, choice) >= 0; };
    const auto smallest_fits = [&](int world) {
      return std::ranges::any_of(with_fp8_gathers({smaller_states(shared_by(world)).back()}),
                                 [&](const Options& one) { return fits(choices(one).back()); });
    };
    int world = std::max(2, options.world);
    while (world <= most_ranks && !smallest_fits(world)) world *= 2;
    if (world > most_ranks) return std::nullopt;
    std::vector<Options> candidates{shared_by(world)};
    for (const Options& smaller : smaller_states(candidates[0])) candidates.push_back(smaller);
    for (const Options& candidate : with_fp8_gathers(candidates)) {
      for (const Options& choice : choices(candidate)) {
        if (fits(choice)) return choice;
      }
    }
    return std::nullopt;
  }

  /// The flags by which `other` differs, as one would write them.
  [[nodiscard]] std::string difference(const Options& asked, const Options& other) const {
    std::string flags;
    const auto add = [&](const char* flag, const auto& before, const auto& after) {
      if (before != after) flags += fmt::format(" {} {}", flag, after);
    };
    add("--master-weights", asked.master_weights, other.master_weights);
    add("--moments", asked.moments, other.moments);
    add("--offload", asked.offload, other.offload);
    add("--recompute", asked.recompute, other.recompute);
    add("--weight-copies", asked.weight_copies, other.weight_copies);
    add("--batch", asked.batch, other.batch);
    add("--micro-batches", asked.micro_batches, other.micro_batches);
    add("--world", asked.world, other.world);
    add("--zero", asked.zero, other.zero);
    add("--gather", asked.gather, other.gather);
    return flags;
  }

 private:
  explicit Planner(const Plan& plan) : plan_(plan) {}

  [[nodiscard]] bool is_named(const char* flag) const {
    return app_ != nullptr && app_->count(flag) > 0;
  }

  /// Each, and behind it the same with weights that travel in FP8, where ranks hold shards of
  /// weights that can and the command line says nothing of it.
  [[nodiscard]] std::vector<Options> with_fp8_gathers(const std::vector<Options>& all) const {
    std::vector<Options> result;
    for (Options options : all) {
      result.push_back(options);
      if (options.groups() == 1 || options.zero != 3 || is_named("--gather")) continue;
      options.gather = "fp8";
      if (can_run(options)) result.push_back(options);
    }
    return result;
  }

  /// Whether the precision can serve the shape.
  [[nodiscard]] bool can_run(const Options& options) const {
    try {
      (void)plan(options);
      return true;
    } catch (const octavo::ConfigError&) {
      return false;
    }
  }

  /// With what can live in the host's memory there, unless the command line says otherwise.
  [[nodiscard]] Options with_least_offload(Options options) const {
    if (!is_named("--offload")) options.offload = programs::offload_names.back();
    return options;
  }

  /// `auto` replaced.
  static Options with_state(Options options, const std::string& masters,
                            const std::string& moments) {
    if (options.master_weights == "auto") options.master_weights = masters;
    if (options.moments == "auto") options.moments = moments;
    return options;
  }

  /// With no more state, the largest first.
  static std::vector<Options> smaller_states(Options options) {
    std::vector<Options> result;
    options.master_weights = "bf16";
    if (options.moments != "8bit") {
      options.moments = "bf16";
      result.push_back(options);
    }
    options.moments = "8bit";
    result.push_back(options);
    return result;
  }

  [[nodiscard]] std::vector<std::string> named(const char* flag, const std::string& value,
                                               const std::vector<std::string>& all) const {
    return is_named(flag) ? std::vector<std::string>{value} : all;
  }

  const CLI::App* app_ = nullptr;  ///< null: names nothing
  Plan plan_;
};

/// Whether the weights have a format beside which masters are kept, or that they take the place of.
inline bool has_masters(const Options& options) { return options.precision != "fp32"; }

/// "bf16 master weights"; weights in FP32 are updated themselves.
inline std::string weights_text(const Options& options) {
  return has_masters(options) ? options.master_weights + " master weights" : "fp32 weights";
}

/// What `auto` came to on a card.
inline std::string state_text(const Options& asked, const Options& resolved) {
  if (asked.master_weights != "auto" && asked.moments != "auto") return "";
  return fmt::format(" (auto: {}, {} moments)", weights_text(resolved), resolved.moments);
}

inline const char* state_remark(const Options& asked) {
  if (asked.master_weights != "auto" && asked.moments != "auto") return "";
  return asked.device == "cuda" ? " (auto, on the largest of these GPUs)" : " (auto)";
}

}  // namespace planner

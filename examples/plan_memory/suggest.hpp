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

/// Memory of a GPU that CUDA and its libraries take beside the plan.
inline constexpr double cuda_gib = 1.0;
inline constexpr double bytes_in_gib = 1 << 30;

/// GiB of a card that the plan leaves, below 0 if it does not fit.
inline double left_on(double card, const octavo::MemoryPlan& plan) {
  return card - cuda_gib - static_cast<double>(plan.peak) / bytes_in_gib;
}

/// The plans of one preset in one precision.
class Planner {
 public:
  /// @param app  says which flags the command line names: these are kept
  Planner(const CLI::App& app, const Plan& plan) : app_(app), plan_(plan) {}

  [[nodiscard]] const octavo::ModelFacts& facts() const { return plan_.facts; }

  [[nodiscard]] octavo::MemoryPlan plan(const Options& options) const {
    return plan_.make(request_of(options));
  }

  [[nodiscard]] std::string run_shape_note(const Options& options) const {
    return octavo::run_shape_note(options.sequence_length, plan_.run_shape(request_of(options)));
  }

  [[nodiscard]] Prediction time(const Options& options) const {
    return predict(options, plan_, plan_.gemms(request_of(options)), plan(options));
  }

  /// `auto` replaced as the trainer does it: FP32 where the card has memory for it.
  [[nodiscard]] Options resolved(const Options& options, double card) const {
    Options wide = with_state(options, "fp32", "fp32");
    if (options.device != "cuda" || left_on(card, plan(wide)) >= 0) return wide;
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
  /// state, then with the batch cut in halves: as twice the micro-batches, or else in a smaller
  /// step; then with this state in the host's memory.
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
    for (const Options& candidate : candidates) {
      if (!can_run(candidate)) continue;
      for (const Options& choice : choices(candidate)) {
        if (left_on(card, plan(choice)) >= 0) return choice;
      }
    }
    return std::nullopt;
  }

  /// The choice that needs least.
  [[nodiscard]] Options least(const Options& options) const {
    std::vector<Options> all = choices(with_least_offload(options));
    for (const Options& smaller : smaller_states(with_least_offload(options))) {
      for (const Options& choice : choices(smaller)) all.push_back(choice);
    }
    return *std::min_element(all.begin(), all.end(), [&](const Options& a, const Options& b) {
      return plan(a).peak < plan(b).peak;
    });
  }

  /// The fewest cards that would do, in powers of two, with all that ranks can share, and the first
  /// choice that fits them, with this state or smaller; nothing where no number is enough.
  [[nodiscard]] std::optional<Options> on_more_cards(const Options& options, double card) const {
    Options more = options;
    more.zero = 3;
    more.world = std::max(2, options.world);
    for (; more.world <= most_ranks; more.world *= 2) {
      // Of a model without weights that travel in FP8, or so many ranks that none would be fewer
      // bytes.
      if (!can_run(more)) more.gather = "stored";
      std::vector<Options> candidates = smaller_states(more);
      candidates.insert(candidates.begin(), more);
      for (const Options& candidate : candidates) {
        for (const Options& choice : choices(candidate)) {
          if (left_on(card, plan(choice)) >= 0) return choice;
        }
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
    if (app_.count("--offload") == 0) options.offload = programs::offload_names.back();
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
    return app_.count(flag) > 0 ? std::vector<std::string>{value} : all;
  }

  const CLI::App& app_;
  const Plan& plan_;
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

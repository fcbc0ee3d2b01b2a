// Chooses the format of the optimizer state for a card, and options with which training fits it.
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

/// GiB of a GPU that are not available to a plan. CUDA and its libraries take 0.6 with one rank and
/// 2.1 with four, and the memory is up to 0.6 smaller than its nominal size: an H200 of 141 GiB has
/// 140.4. Measured on H200s, with cuDNN.
inline double cuda_gib(const Options& options) { return options.world == 1 ? 1.25 : 2.75; }
inline constexpr double bytes_in_gib = 1 << 30;

/// Returns the GiB of a card that the plan leaves free, negative if it does not fit.
inline double free_gib(double card, const Options& options, const octavo::MemoryPlan& plan) {
  return card - cuda_gib(options) - static_cast<double>(plan.peak) / bytes_in_gib;
}

/// Whether steps were measured on GPUs of this kind, Hopper, which have 64 to 144 GiB.
inline bool is_measured(const Options& options, double card) {
  return options.gpu.capability == 90 && card >= 60 && card <= 150;
}

/// Whether a plan fits one of the GPUs in --card-memory.
inline bool fits_one(const Options& options, const octavo::MemoryPlan& plan) {
  return std::ranges::any_of(options.card_memory,
                             [&](double card) { return free_gib(card, options, plan) >= 0; });
}

/// Plans of one model in one precision.
class Planner {
 public:
  /// @param app  the command line, whose flags stay fixed
  Planner(const CLI::App& app, Plan plan) : app_(&app), plan_(std::move(plan)) {}

  /// Returns a planner without fixed flags.
  [[nodiscard]] Planner free_of_flags() const { return Planner(plan_); }

  [[nodiscard]] octavo::ModelFacts facts() const { return plan_.facts(); }

  [[nodiscard]] octavo::MemoryPlan plan(const Options& options) const {
    return plan_.memory(request_of(options));
  }

  [[nodiscard]] std::string run_shape_note(const Options& options) const {
    return octavo::run_shape_note(options.sequence_length, plan_.run_shape(request_of(options)));
  }

  /// Returns the GiB of a card that these options leave free, negative if they do not fit.
  [[nodiscard]] double left(double card, const Options& options) const {
    return free_gib(card, options, plan(options));
  }

  /// @param memory  the plan of these options
  [[nodiscard]] Prediction time(const Options& options, const octavo::MemoryPlan& memory) const {
    return predict(options, plan_, plan_.gemms(request_of(options)), memory);
  }

  /// Replaces `auto` as the trainer does: FP32 if it fits the card.
  [[nodiscard]] Options resolved(const Options& options, double card) const {
    Options wide = with_state(options, "fp32", "fp32");
    if (options.device != "cuda" || left(card, wide) >= 0) return wide;
    return with_state(options, "bf16", "bf16");
  }

  /// Returns every combination of optimizer state, its place, weight copies and recomputation.
  /// Flags that were set stay fixed. Activations are offloaded only if --offload was set.
  [[nodiscard]] std::vector<Options> all_choices(const Options& options) const {
    std::vector<Options> result;
    std::vector<std::string> seen;
    for (const auto& [masters, moments] :
         {std::pair{"fp32", "fp32"}, {"bf16", "bf16"}, {"bf16", "8bit"}}) {
      Options with = with_state(options, masters, moments);
      const std::string state = with.master_weights + with.moments;
      if (std::find(seen.begin(), seen.end(), state) != seen.end()) continue;
      seen.push_back(state);
      for (const std::string& place : named("--offload", options.offload, {"none", "optimizer"})) {
        with.offload = place;
        const std::vector<Options> some = choices(with);
        result.insert(result.end(), some.begin(), some.end());
      }
    }
    return result;
  }

  /// Returns every combination of weight copies and recomputation, the fastest first. Flags that
  /// were set stay fixed.
  [[nodiscard]] std::vector<Options> choices(const Options& options) const {
    std::vector<Options> result;
    const bool quantized = plan(options).bytes(octavo::MemoryKind::quantized_weights) > 0;
    for (const std::string& policy :
         named("--recompute", options.recompute, programs::recompute_names)) {
      const bool recomputes_offloaded =
          policy == "block" && programs::offload_named(options.offload).activations;
      if (recomputes_offloaded) continue;
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

  /// Returns the first combination that fits the card. In order: this batch and state; smaller
  /// state; each also with weight shards gathered in FP8, with bitwise identical results; the batch
  /// halved repeatedly, with twice the micro-batches, or else in a smaller step; this state in host
  /// memory.
  [[nodiscard]] std::optional<Options> suggest(const Options& requested, double card) const {
    std::vector<Options> candidates{requested};
    const auto add_smaller = [&](const Options& options) {
      for (const Options& smaller : smaller_states(options)) candidates.push_back(smaller);
    };
    add_smaller(requested);
    for (Options cut = requested; cut.batch % 2 == 0;) {
      cut.batch /= 2;
      Options whole_step = cut;
      whole_step.micro_batches *= requested.batch / cut.batch;
      add_smaller(whole_step);
      add_smaller(cut);
    }
    candidates.push_back(with_least_offload(requested));
    for (const Options& candidate : with_fp8_gathers(candidates)) {
      if (!can_run(candidate)) continue;
      for (const Options& choice : choices(candidate)) {
        if (left(card, choice) >= 0) return choice;
      }
    }
    return std::nullopt;
  }

  /// Returns the combination that needs the least memory.
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

  /// Returns the smallest power of two of cards that is enough with ZeRO-3, with the first
  /// combination that fits them and the same or a smaller state; nothing if no number is enough.
  [[nodiscard]] std::optional<Options> with_more_cards(const Options& options, double card) const {
    const auto shared_by = [&](int world) {
      Options more = options;
      more.zero = 3;
      more.world = world;
      // The model has no weights that can be gathered in FP8, or there are too many ranks for this
      // to save bytes.
      if (!can_run(more)) more.gather = "stored";
      return more;
    };
    const auto fits = [&](const Options& choice) { return left(card, choice) >= 0; };
    const auto smallest_fits = [&](int world) {
      return std::ranges::any_of(with_fp8_gathers({smaller_states(shared_by(world)).back()}),
                                 [&](const Options& one) { return fits(choices(one).back()); });
    };
    int world = std::max(2, options.world);
    while (world <= max_ranks && !smallest_fits(world)) world *= 2;
    if (world > max_ranks) return std::nullopt;
    std::vector<Options> candidates{shared_by(world)};
    for (const Options& smaller : smaller_states(candidates[0])) candidates.push_back(smaller);
    for (const Options& candidate : with_fp8_gathers(candidates)) {
      for (const Options& choice : choices(candidate)) {
        if (fits(choice)) return choice;
      }
    }
    return std::nullopt;
  }

  /// Returns the flags by which `other` differs, as on the command line.
  [[nodiscard]] std::string difference(const Options& requested, const Options& other) const {
    std::string flags;
    const auto add = [&](const char* flag, const auto& before, const auto& after) {
      if (before != after) flags += fmt::format(" {} {}", flag, after);
    };
    add("--master-weights", requested.master_weights, other.master_weights);
    add("--moments", requested.moments, other.moments);
    add("--offload", requested.offload, other.offload);
    add("--recompute", requested.recompute, other.recompute);
    add("--weight-copies", requested.weight_copies, other.weight_copies);
    add("--batch", requested.batch, other.batch);
    add("--micro-batches", requested.micro_batches, other.micro_batches);
    add("--world", requested.world, other.world);
    add("--zero", requested.zero, other.zero);
    add("--gather", requested.gather, other.gather);
    return flags;
  }

 private:
  explicit Planner(const Plan& plan) : plan_(plan) {}

  [[nodiscard]] bool is_named(const char* flag) const {
    return app_ != nullptr && app_->count(flag) > 0;
  }

  /// Returns each choice, followed by the same with weights gathered in FP8 if ranks hold shards of
  /// such weights and --gather was not set.
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

  /// Whether the precision supports the shape.
  [[nodiscard]] bool can_run(const Options& options) const {
    try {
      (void)plan(options);
      return true;
    } catch (const octavo::ConfigError&) {
      return false;
    }
  }

  /// Returns the options with the optimizer state in host memory, unless the command line fixes its
  /// place. Activations need the least device memory if they are recomputed.
  [[nodiscard]] Options with_least_offload(Options options) const {
    if (!is_named("--offload")) options.offload = "optimizer";
    return options;
  }

  /// Returns the options with `auto` replaced.
  static Options with_state(Options options, const std::string& masters,
                            const std::string& moments) {
    if (options.master_weights == "auto") options.master_weights = masters;
    if (options.moments == "auto") options.moments = moments;
    return options;
  }

  /// Returns the options with the same or smaller optimizer states, the largest first.
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

  const CLI::App* app_ = nullptr;  ///< null if no flags are fixed
  Plan plan_;
};

/// Whether there are master weights, or formats that replace them.
inline bool has_masters(const Options& options) { return options.precision != "fp32"; }

/// Returns a text such as "bf16 master weights"; FP32 weights have none.
inline std::string weights_text(const Options& options) {
  return has_masters(options) ? options.master_weights + " master weights" : "fp32 weights";
}

/// Returns the state that `auto` chose on a card.
inline std::string state_text(const Options& requested, const Options& resolved) {
  if (requested.master_weights != "auto" && requested.moments != "auto") return "";
  return fmt::format(" (auto: {}, {} moments)", weights_text(resolved), resolved.moments);
}

inline const char* state_remark(const Options& requested) {
  if (requested.master_weights != "auto" && requested.moments != "auto") return "";
  return requested.device == "cuda" ? " (auto, on the largest of these GPUs)" : " (auto)";
}

}  // namespace planner

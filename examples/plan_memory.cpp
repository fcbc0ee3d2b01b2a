// Prints how much memory training needs, without a GPU and without allocating it, and suggests
// options that fit a GPU.
//
//   plan_memory --model llama3_8b --precision fp8-delayed --batch 1 --seq-len 8192
//   plan_memory --model hf:FOLDER --lora 16
//   plan_memory --model llama3_8b --all
//   plan_memory --model llama3_small --card "RTX 4090"
//
// Exit codes: 0 success, 1 runtime error, 2 invalid input.
#include <common/flags.hpp>
#include <plan_memory/options.hpp>
#include <plan_memory/plan.hpp>
#include <plan_memory/suggest.hpp>

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string_view>

namespace planner {
namespace {

double gib(std::size_t bytes) { return static_cast<double>(bytes) / bytes_in_gib; }

const char* kind_name(std::size_t kind) {
  return octavo::name_of(static_cast<octavo::MemoryKind>(kind));
}

/// Width of the column of a memory kind: its name, and numbers up to a TiB.
std::size_t column_width(std::size_t kind) {
  return std::max(std::string_view(kind_name(kind)).size(), std::string_view("1000.000").size());
}

void print_head(const Options& options, const octavo::ModelFacts& facts) {
  fmt::print("{}: {} parameters, on {}, {} micro-batch{} of {} x {} tokens, {} tokens per step\n",
             options.model, facts.parameters, options.device, options.micro_batches,
             options.micro_batches == 1 ? "" : "es", options.batch, options.sequence_length,
             options.batch * options.sequence_length * options.micro_batches * options.groups());
  if (options.lora != 0) {
    fmt::print("only adapters of rank {} are trained, on {}\n", options.lora,
               programs::joined(request_of(options).session.model.lora.target_names()));
  }
  const octavo::Offload offload = programs::offload_named(options.offload);
  if (offload.optimizer) fmt::print("the optimizer state is in host memory\n");
  if (offload.activations) fmt::print("activations of attention are in host memory\n");
  if (options.gather == "fp8" && options.groups() > 1) {
    fmt::print("weights that FP8 GEMMs use with one scale per tensor are gathered in FP8\n");
  }
  if (options.reduce != "stored") {
    fmt::print("gradients {}\n",
               options.reduce == "fp32" ? "are summed and kept in FP32" : "are reduced in E4M3");
  }
  if (options.world == 1) {
    const auto flags = programs::flags_of_several_ranks(options);
    if (!flags.empty()) {
      fmt::print("{}; pass --world\n", programs::no_effect_on_one_rank(flags));
    }
    return;
  }
  fmt::print("each of {} ranks, ", options.world);
  if (options.tensor_parallel > 1) {
    fmt::print("of which {} share each layer, ", options.tensor_parallel);
  }
  fmt::print("ZeRO-{}\n", options.zero);
}

void print_plan(const Options& options, const octavo::MemoryPlan& plan, const char* remark) {
  fmt::print("precision {}, recompute {}, weight copies {}, {} with {} and {} moments{}\n\n",
             options.precision, options.recompute, options.weight_copies,
             options.optimizer == "muon" ? "Muon" : "AdamW", weights_text(options), options.moments,
             remark);
  const auto line = [](const char* name, std::size_t bytes) {
    fmt::print("{:<17} | {:>10.3f} GiB | {:>15} bytes\n", name, gib(bytes), bytes);
  };
  for (std::size_t kind = 0; kind < octavo::memory_kinds; ++kind) {
    line(kind_name(kind), plan.by_kind[kind]);
  }
  line("peak", plan.peak);
  if (plan.host > 0) line("host, additional", plan.host);
  fmt::print(
      "\nAll memory is allocated once. The kinds of memory are those at the peak; memory that is "
      "never in "
      "use at the same time is shared.\nEvaluation and generation need no additional memory.\n");
}

/// Returns a text such as ": 125.3 GiB on each, which leaves 13.0 GiB; predicted for an H200: 1696
/// tokens/s per GPU".
std::string figures_text(const Planner& planner, const Options& options, double card) {
  const octavo::MemoryPlan plan = planner.plan(options);
  std::string text =
      fmt::format(": {:.1f} GiB{}, which leaves {:.1f} GiB", gib(plan.peak),
                  options.world > 1 ? " on each" : "", free_gib(card, options, plan));
  if (is_predictable(options) && is_measured(options, card)) {
    text += fmt::format("; predicted for an H200: {:.0f} tokens/s per GPU",
                        tokens_per_gpu(options) / planner.time(options, plan).step());
  }
  return text;
}

/// Prints what to change if the plan does not fit a card of this size.
void print_changes(const Planner& planner, const Options& options, double card) {
  const auto print = [&](const char* what, const Options& other) {
    fmt::print("  {}{}{}\n", what, planner.difference(options, other),
               figures_text(planner, other, card));
  };
  if (const auto fitting = planner.suggest(options, card)) return print("would fit with", *fitting);
  const Options least = planner.least(options);
  const std::string changes = planner.difference(options, least);
  fmt::print("  no combination fits: the smallest needs {:.1f} GiB{}{}\n",
             gib(planner.plan(least).peak), changes.empty() ? "" : " even with", changes);
  if (const auto more = planner.with_more_cards(options, card)) {
    return print("several GPUs would suffice, with", *more);
  }
  const Planner other = planner.free_of_flags();
  if (const auto fitting = other.suggest(options, card)) {
    return print("it would fit with other values of the flags that were set:", *fitting);
  }
  if (const auto more = other.with_more_cards(options, card)) {
    return print("several GPUs would suffice with other values of the flags that were set:", *more);
  }
  fmt::print(
      "  more GPUs would not help: activations and workspace, which each GPU needs, are too large; "
      "use a smaller batch or shorter sequences\n");
}

/// Prints whether the plan fits a card of this size, and what to change if it does not.
void print_card(const Planner& planner, const Options& requested, double card) {
  const Options options = planner.resolved(requested, card);
  const double left = planner.left(card, options);
  fmt::print("\n{} with {:g} GiB: ", options.card.empty() ? "a GPU" : options.card, card);
  if (left >= 0) {
    fmt::print("fits and leaves {:.1f} GiB{}\n", left, state_text(requested, options));
    return;
  }
  fmt::print("does not fit, it lacks {:.1f} GiB{}\n", -left, state_text(requested, options));
  print_changes(planner, options, card);
}

/// Prints how far Octavo is tested on a card that was named, and the precisions that it runs.
void print_gpu(const Options& options) {
  if (options.card.empty()) return;
  fmt::print("\n{}: compute capability {}.{}, {}\nit trains in {}\n", options.card,
             options.gpu.capability / 10, options.gpu.capability % 10,
             programs::tested_on(options.gpu.capability), octavo::precisions_of(options.gpu));
  if (options.precision == "bf16" && !options.gpu.fp8_gemms) {
    fmt::print("it has no FP8, so the plan is for --precision bf16\n");
  }
}

void print_one(const Planner& planner, const Options& requested) {
  const Options options =
      requested.device == "cuda"
          ? planner.resolved(requested, *std::max_element(requested.card_memory.begin(),
                                                          requested.card_memory.end()))
          : planner.resolved(requested, 0);
  print_head(requested, planner.facts());
  const std::string note = planner.run_shape_note(options);
  if (!note.empty()) fmt::print("{}\n", note);
  const octavo::MemoryPlan plan = planner.plan(options);
  print_plan(options, plan, state_remark(requested));
  if (requested.device != "cuda") return;
  print_gpu(requested);
  for (const double card : requested.card_memory) print_card(planner, requested, card);
  fmt::print("\n{:g} GiB of each GPU are reserved for CUDA.\n", cuda_gib(options));
  if (options.gpu.capability != 90) {
    fmt::print("\nNo time is predicted, because no step was measured on this GPU.\n");
  }
  if (!is_predictable(options)) return;
  if (fits_one(options, plan)) {
    print_prediction(options, planner.time(options, plan));
  } else {
    fmt::print("\nNo time is predicted, because the plan does not fit on any of these GPUs.\n");
  }
}

/// Returns the sizes of the cards that the plan fits, such as "80 141".
std::string fitting(const Options& options, const octavo::MemoryPlan& plan) {
  std::string cards;
  for (const double card : options.card_memory) {
    if (free_gib(card, options, plan) >= 0)
      cards += fmt::format("{}{:g}", cards.empty() ? "" : " ", card);
  }
  return cards.empty() ? "none" : cards;
}

/// @param width  width of the column of precisions
void print_all_head(const Options& options, std::size_t width) {
  fmt::print("GiB\n\n{:<{}} | {:<9} | {:<6} | {:<6} | {:<7} | {:<9}", "precision", width,
             "recompute", "copies", "master", "moments", "offload");
  for (std::size_t kind = 0; kind < octavo::memory_kinds; ++kind) {
    fmt::print(" | {:>{}}", kind_name(kind), column_width(kind));
  }
  fmt::print(" | {:>9}{}\n", "peak",
             options.device == "cuda" ? " | fits a GPU of | tokens/s predicted for an H200" : "");
}

void print_all_line(const Planner& planner, const Options& options, std::size_t width) {
  const octavo::MemoryPlan plan = planner.plan(options);
  fmt::print("{:<{}} | {:<9} | {:<6} | {:<6} | {:<7} | {:<9}", options.precision, width,
             options.recompute, options.weight_copies,
             has_masters(options) ? options.master_weights : "none", options.moments,
             options.offload);
  for (std::size_t kind = 0; kind < octavo::memory_kinds; ++kind) {
    fmt::print(" | {:>{}.3f}", gib(plan.by_kind[kind]), column_width(kind));
  }
  fmt::print(" | {:>9.3f}", gib(plan.peak));
  if (options.device == "cuda") {
    fmt::print(" | {:<13}", fitting(options, plan));
    if (is_predictable(options) && fits_one(options, plan)) {
      fmt::print(" | {:.0f}", tokens_per_gpu(options) / planner.time(options, plan).step());
    }
  }
  fmt::print("\n");
}

/// Prints one line for each combination of choices, with flags that were set fixed. If a precision
/// does not support the shape, its line gives the reason.
/// @throws ConfigError  if no precision supports the shape
void print_all(const CLI::App& app, const Options& requested, const Shape& shape) {
  std::exception_ptr refusal;
  bool any = false;
  std::vector<std::string> precisions;
  octavo::named_precisions.for_each([&](auto named) { precisions.emplace_back(named.name); });
  if (app.count("--precision") > 0) precisions = {requested.precision};
  print_head(requested, shape.facts());
  std::size_t width = std::string_view("precision").size();
  for (const std::string& precision : precisions) width = std::max(width, precision.size());
  print_all_head(requested, width);
  for (const std::string& precision : precisions) {
    Options options = requested;
    options.precision = precision;
    const Planner planner(app, {shape, precision});
    try {
      const std::string note = planner.run_shape_note(options);
      if (!note.empty()) fmt::print("{:<{}} | {}\n", precision, width, note);
      for (const Options& choice : planner.all_choices(options)) {
        print_all_line(planner, choice, width);
        any = true;
      }
    } catch (const octavo::ConfigError& error) {
      refusal = std::current_exception();
      fmt::print("{:<{}} | {}\n", precision, width, error.what());
    }
  }
  if (!any) std::rethrow_exception(refusal);
}

void run(const CLI::App& app, const Options& options) {
  const Shape shape = shape_of(options.model);
  require_possible(shape);
  require_supported(options, shape);
  if (options.all) {
    print_all(app, options, shape);
  } else {
    print_one(Planner(app, {shape, options.precision}), options);
  }
}

}  // namespace
}  // namespace planner

int main(int argc, char** argv) {
  CLI::App app(
      "Prints how much memory training needs, without a GPU, and suggests options that fit.",
      "plan_memory");
  planner::Options options;
  planner::declare(app, options);
  if (const auto code = programs::parse(app, argc, argv)) return *code;
  try {
    planner::make_consistent(app, options);
    planner::run(app, options);
    programs::flush_output();
  } catch (const octavo::IoError& error) {
    programs::print_stderr("plan_memory: {}\n", programs::text_of(error));
    return 1;
  } catch (const octavo::Error& error) {
    programs::print_stderr("plan_memory: {}\n", programs::visible(error.what()));
    return 2;
  } catch (const std::exception& error) {
    programs::print_stderr("plan_memory: {}\n", programs::text_of(error));
    return 1;
  }
  return 0;
}

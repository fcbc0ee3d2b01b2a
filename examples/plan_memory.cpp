// Says what memory a training needs, without a GPU and without allocating it.
//
//   plan_memory --model llama3_8b --precision fp8-delayed --batch 1 --seq-len 8192
//   plan_memory --model llama3_8b --all
//
// Exit codes: 0 done, 1 an error while running, 2 bad input.
#include <fmt/format.h>
#include <common/flags.hpp>
#include <plan_memory/plan.hpp>

#include <cstdio>
#include <exception>
#include <string_view>

namespace planner {
namespace {

using octavo::Index;

/// Memory of a GPU that CUDA and its libraries take beside the plan.
constexpr double cuda_gib = 1.0;
constexpr double bytes_in_gib = 1 << 30;

struct Options {
  std::string model = "llama3_8b";
  std::string precision = "fp8-delayed";
  std::string device = "cuda";
  std::string recompute = "none";
  std::string weight_copies = "kept";
  bool cudnn = false;
  int threads = 0;
  Index head_chunk = 0;
  Index batch = 1;
  Index sequence_length = 8192;
  Index micro_batches = 1;
  std::string master_weights = "fp32";
  std::string moments = "fp32";
  std::vector<double> card_memory{80, 141};
  bool all = false;
};

std::vector<Plan> all_plans() {
  std::vector<Plan> all;
  for (const auto& of_preset :
       {plans<octavo::llama_tiny>(), plans<octavo::llama3_small>(), plans<octavo::llama3_1b>(),
        plans<octavo::llama3_8b>(), plans<octavo::llama3_70b>()}) {
    all.insert(all.end(), of_preset.begin(), of_preset.end());
  }
  return all;
}

/// The distinct names that `name_of(plan)` gives.
template <class NameOf>
std::vector<std::string> names(const std::vector<Plan>& plans, const NameOf& name_of) {
  std::vector<std::string> result;
  for (const Plan& plan : plans) {
    if (std::find(result.begin(), result.end(), name_of(plan)) == result.end()) {
      result.emplace_back(name_of(plan));
    }
  }
  return result;
}

void declare(CLI::App& app, Options& options, const std::vector<Plan>& plans) {
  using namespace programs;
  const auto add = [&app](const std::string& name, auto& value, const std::string& text) {
    return app.add_option(name, value, text)->capture_default_str();
  };
  const auto choose = [&](const std::string& name, std::string& value, const std::string& text,
                          const std::vector<std::string>& choices) {
    add(name, value, text)->check(CLI::IsMember(choices));
  };
  const auto models = names(plans, [](const Plan& plan) { return plan.config.name.text(); });
  const auto precisions = names(plans, [](const Plan& plan) { return plan.precision; });
  choose("--model", options.model, "preset", models);
  choose("--precision", options.precision, "of the linear layers", precisions);
  choose("--device", options.device, "where it is to train", {"cpu", "cuda"});
  choose("--recompute", options.recompute, "what the backward makes again", recompute_names);
  choose("--weight-copies", options.weight_copies, "quantised copies of weights",
         weight_copies_names);
  add("--batch", options.batch, "sequences in a micro-batch")->check(at_least_one());
  add("--seq-len", options.sequence_length, "tokens in a sequence")->check(at_least_one());
  add("--micro-batches", options.micro_batches, "micro-batches in a step")->check(at_least_one());
  add("--head-chunk", options.head_chunk, "tokens whose logits exist at once; 0: chosen")
      ->check(not_negative_whole());
  choose("--master-weights", options.master_weights, "fp32, or bf16: none beside the BF16 weights",
         state_names);
  choose("--moments", options.moments, "of AdamW", state_names);
  app.add_flag("--with-cudnn,!--own-attention", options.cudnn,
               "attention on cuda may run through cuDNN, or runs in own kernels (default)");
  add("--threads", options.threads, "threads of the cpu device; 0: all")
      ->check(not_negative_whole());
  add("--card-memory", options.card_memory, "GiB of a GPU; may be given again")
      ->check(above_zero());
  app.add_flag("--all", options.all,
               "one line for every precision and recompute policy; what is named stays fixed");
  app.allow_extras();
}

Request request_of(const Options& options) {
  constexpr Index most = std::numeric_limits<std::int32_t>::max();
  const Index rows = options.batch * options.sequence_length;
  octavo::require<octavo::ConfigError>(rows <= most && rows * options.micro_batches <= most,
                                       "a step of ", options.batch, " x ", options.sequence_length,
                                       " x ", options.micro_batches,
                                       " tokens is too large; give at most ", most, " tokens");
  Request request;
  request.session.batch = {options.batch, options.sequence_length};
  request.session.micro_batches = options.micro_batches;
  request.session.model = {.recompute = programs::recompute_named(options.recompute),
                           .head_chunk = options.head_chunk,
                           .weight_copies = programs::weight_copies_named(options.weight_copies)};
  request.device = options.device;
  request.master_weights = options.master_weights;
  request.moments = options.moments;
  request.cpu = octavo::Context<octavo::Cpu>(options.threads);
  request.cuda.cudnn = options.cudnn;
  return request;
}

double gib(std::size_t bytes) { return static_cast<double>(bytes) / bytes_in_gib; }

const char* kind_name(std::size_t kind) {
  return octavo::name_of(static_cast<octavo::MemoryKind>(kind));
}

/// Width of a kind's column: its name, and numbers up to a TiB.
std::size_t column_width(std::size_t kind) {
  return std::max(std::string_view(kind_name(kind)).size(), std::string_view("1000.000").size());
}

/// GiB of a card that the plan leaves, below 0 if it does not fit.
double left_on(double card, const octavo::MemoryPlan& plan) {
  return card - cuda_gib - gib(plan.peak);
}

void print_head(const Options& options, const octavo::LlamaConfig& config) {
  fmt::print(
      "{}: {} parameters, on {}, {} micro-batch(es) of {} x {} tokens, AdamW with {} master "
      "weights and {} moments\n",
      options.model, config.parameters(), options.device, options.micro_batches, options.batch,
      options.sequence_length, options.master_weights, options.moments);
}

void print_one(const Options& options, const octavo::MemoryPlan& plan) {
  fmt::print("precision {}, recompute {}\n\n", options.precision, options.recompute);
  const auto line = [](const char* name, std::size_t bytes) {
    fmt::print("{:<17} | {:>10.3f} GiB | {:>15} bytes\n", name, gib(bytes), bytes);
  };
  for (std::size_t kind = 0; kind < octavo::memory_kinds; ++kind) {
    line(kind_name(kind), plan.by_kind[kind]);
  }
  line("peak", plan.peak);
  line("evaluation adds", 0);
  fmt::print(
      "\nAll is allocated once; the kinds are those at the peak, and what is never in use at once "
      "shares memory.\nEvaluation and generation run inside of the training's "
      "memory.\n{} tokens a step.\n",
      options.batch * options.sequence_length * options.micro_batches);
  if (options.device != "cuda") return;
  for (const double card : options.card_memory) {
    const double left = left_on(card, plan);
    fmt::print("a GPU with {:g} GiB: {} {:.1f} GiB, with {:g} GiB for CUDA itself\n", card,
               left >= 0 ? "fits and leaves" : "does not fit, it lacks", std::abs(left), cuda_gib);
  }
}

/// Which of the cards the plan fits, such as "80 141".
std::string fitting(const Options& options, const octavo::MemoryPlan& plan) {
  std::string cards;
  for (const double card : options.card_memory) {
    if (left_on(card, plan) >= 0) cards += fmt::format("{}{:g}", cards.empty() ? "" : " ", card);
  }
  return cards.empty() ? "none" : cards;
}

void print_all_head(const Options& options) {
  fmt::print("tokens a step {}; GiB; evaluation adds 0 bytes\n\n{:<22} | {:<9}",
             options.batch * options.sequence_length * options.micro_batches, "precision",
             "recompute");
  for (std::size_t kind = 0; kind < octavo::memory_kinds; ++kind) {
    fmt::print(" | {:>{}}", kind_name(kind), column_width(kind));
  }
  fmt::print(" | {:>9}{}\n", "peak", options.device == "cuda" ? " | fits a GPU of" : "");
}

void print_all_line(const Options& options, const octavo::MemoryPlan& plan) {
  fmt::print("{:<22} | {:<9}", options.precision, options.recompute);
  for (std::size_t kind = 0; kind < octavo::memory_kinds; ++kind) {
    fmt::print(" | {:>{}.3f}", gib(plan.by_kind[kind]), column_width(kind));
  }
  fmt::print(" | {:>9.3f}", gib(plan.peak));
  if (options.device == "cuda") fmt::print(" | {}", fitting(options, plan));
  fmt::print("\n");
}

/// One line for each precision and policy, but for those that the command line names. A line says
/// why its precision cannot serve the shape.
/// @throws ConfigError  if none can
void print_all(const CLI::App& app, Options options, const std::vector<Plan>& plans) {
  std::vector<std::string> policies = programs::recompute_names;
  if (app.count("--recompute") > 0) policies = {options.recompute};
  const std::string precision = app.count("--precision") > 0 ? options.precision : "";
  std::exception_ptr refusal;
  bool any = false;
  print_all_head(options);
  for (const Plan& plan : plans) {
    if (options.model != plan.config.name.text()) continue;
    if (!precision.empty() && plan.precision != precision) continue;
    options.precision = plan.precision;
    try {
      for (const std::string& policy : policies) {
        options.recompute = policy;
        print_all_line(options, plan.make(request_of(options)));
        any = true;
      }
    } catch (const octavo::ConfigError& error) {
      refusal = std::current_exception();
      fmt::print("{:<22} | {}\n", options.precision, error.what());
    }
  }
  if (!any) std::rethrow_exception(refusal);
}

void run(const CLI::App& app, const Options& options, const std::vector<Plan>& plans) {
  const auto chosen = std::find_if(plans.begin(), plans.end(), [&](const Plan& plan) {
    return options.model == plan.config.name.text() && plan.precision == options.precision;
  });
  if (options.all) {
    print_head(options, chosen->config);
    print_all(app, options, plans);
  } else {
    const octavo::MemoryPlan plan = chosen->make(request_of(options));
    print_head(options, chosen->config);
    print_one(options, plan);
  }
}

}  // namespace
}  // namespace planner

int main(int argc, char** argv) {
  CLI::App app("Says what memory a training needs, without a GPU and without allocating it.");
  planner::Options options;
  try {
    const std::vector<planner::Plan> plans = planner::all_plans();
    planner::declare(app, options, plans);
    app.parse(argc, argv);
    programs::require_no_rest(app);
    planner::run(app, options, plans);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "plan_memory: {}\n", error.what());
    return 2;
  } catch (const octavo::Error& error) {
    fmt::print(stderr, "plan_memory: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "plan_memory: {}\n", error.what());
    return 1;
  }
  return 0;
}

// Checks what this machine supports and whether its results are correct: the GEMMs of every recipe
// and one training step, on the Cpu device against FP64, and on a GPU against the Cpu device.
//
//   doctor
//   doctor --gpu 1
//   doctor --table "RTX 4090"
//
// Exit codes: 0 all checks passed, 1 a check failed, 2 invalid input.
#include <common/flags.hpp>
#include <doctor/cuda_checks.hpp>
#include <doctor/machine.hpp>
#include <doctor/table.hpp>

#include <exception>
#include <string>

namespace doctor {
namespace {

using octavo::Context;
using octavo::Cpu;

/// A recipe on the `Cpu` device.
struct Recipe {
  const char* name;
  Findings (*examine)(Context<Cpu>&);
};
constexpr std::array recipes{
    Recipe{"bf16", examine<octavo::Bf16, Cpu>},
    Recipe{"fp8-delayed", examine<octavo::Fp8Recipe<octavo::Delayed>, Cpu>},
    Recipe{"fp8-tensorwise", examine<octavo::Fp8Recipe<octavo::Tensorwise>, Cpu>},
    Recipe{"fp8-rowwise", examine<octavo::Fp8Recipe<octavo::Rowwise>, Cpu>},
    Recipe{"fp8-blockwise", examine<octavo::Fp8Recipe<octavo::Blockwise>, Cpu>},
    Recipe{"mxfp8", examine<octavo::Mxfp8, Cpu>},
    Recipe{"nvfp4", examine<octavo::Nvfp4, Cpu>},
};

void describe_machine(const Context<Cpu>& context) {
  Report::line("machine", "octavo", octavo::version_string);
  Report::line(
      "machine", "processor",
      octavo::message(context.threads(), context.threads() == 1 ? " thread" : " threads",
                      ", GEMMs through ", octavo::gemm_implementation<octavo::Bf16>(Cpu{})));
  const std::string driver = driver_version();
  Report::line("machine", "NVIDIA driver", driver.empty() ? "none" : driver);
  Report::line("machine", "NCCL", nccl_version());
}

/// An untrained model of 256 tokens predicts no better than a guess: its loss is about ln 256 =
/// 5.55.
bool plausible(const octavo::StepResult& step) {
  return !step.skipped && step.loss > 5.0 && step.loss < 6.0 && step.gradient_norm > 0 &&
         std::isfinite(step.gradient_norm);
}

std::vector<Reference> check_cpu(Context<Cpu>& context, Report& report) {
  std::vector<Reference> references;
  for (const Recipe& recipe : recipes) {
    const Findings findings = recipe.examine(context);
    const double worst = worst_error(findings, fp32_sums);
    const octavo::StepResult& step = findings.step;
    report.check(std::string("cpu ") + recipe.name, worst <= 1 && plausible(step),
                 text_of("products: %.3f of the allowed rounding error; step: loss %.4f, norm %.4f",
                         worst, step.loss, step.gradient_norm));
    references.push_back({recipe.name, findings});
  }
  return references;
}

/// Prints the table of a card by name, or of the GPU here.
void run_table(const std::string& card, int gpu) {
  if (!card.empty()) return print_table(table_card(card));
#if defined(OCTAVO_WITH_CUDA)
  print_table(card_here(gpu));
#else
  (void)gpu;
  throw octavo::ConfigError(
      "--table needs a card such as --table \"RTX 4090\", because this program has no Cuda device");
#endif
}

int run(int gpu, int threads) {
  Context<Cpu> context(threads);
  Report report;
  describe_machine(context);
  const std::vector<Reference> references = check_cpu(context, report);
#if defined(OCTAVO_WITH_CUDA)
  check_cuda(gpu, references, report);
#else
  (void)gpu;
  Report::line("machine", "GPU",
               "not checked: this program has no Cuda device; configure with -DOCTAVO_CUDA=ON if "
               "nvcc is installed");
#endif
  Report::line("result", report.failures() == 0 ? "all checks passed" : "DISAGREEMENT",
               octavo::message(report.failures(), " of ", report.checks(), " checks failed"));
  return report.failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace doctor

int main(int argc, char** argv) {
  CLI::App app("Checks what this machine supports, and whether its results are correct.", "doctor");
  int gpu = 0;
  int threads = 0;
  app.add_option("--gpu", gpu, "index of the GPU for the cuda device")
      ->check(programs::non_negative_integer())
      ->capture_default_str();
  app.add_option("--threads", threads, "number of CPU threads for the cpu device; 0 uses all")
      ->check(programs::non_negative_integer())
      ->capture_default_str();
  std::string card;
  CLI::Option* table =
      app.add_option("--table", card,
                     "print the recipes that a card supports, such as \"RTX 4090\" or a "
                     "compute capability such as 8.9; by default, the GPU that --gpu selects");
  table->expected(0, 1);
  if (const auto code = programs::parse(app, argc, argv)) return *code;
#if !defined(OCTAVO_WITH_CUDA)
  if (app.count("--gpu") > 0) {
    programs::print_stderr(
        "doctor: --gpu is for the cuda device, which is not compiled in; build again "
        "with -DOCTAVO_CUDA=ON, or leave --gpu out\n");
    return 2;
  }
#endif
  try {
    int code = 0;
    if (table->count() > 0) {
      doctor::run_table(card, gpu);
    } else {
      code = doctor::run(gpu, threads);
    }
    programs::flush_output();
    return code;
  } catch (const octavo::ConfigError& error) {
    programs::print_stderr("doctor: {}\n", programs::text_of(error));
    return 2;
  } catch (const std::exception& error) {
    programs::print_stderr("doctor: {}\n", programs::text_of(error));
    return 1;
  }
}

#include <doctor/cuda_checks.hpp>
#include <doctor/examine.hpp>
#include <octavo/core/capability.hpp>
#include <octavo/cuda.cuh>
#include <octavo/octavo.hpp>

#include <exception>
#include <type_traits>

namespace doctor {
namespace {

using octavo::Context;
using octavo::Cuda;
using octavo::Index;

/// Returns "13.0" for 13000.
std::string version_text(int version) {
  return octavo::message(version / 1000, ".", version / 10 % 100);
}

std::string cudnn_text() {
#if defined(OCTAVO_WITH_CUDNN)
  const std::size_t version = octavo::detail::CudnnAttention::version();
  return octavo::message("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100);
#else
  return "no cuDNN (attention uses Octavo's kernels)";
#endif
}

/// Prints each GPU, and why it is not supported if it is not.
void describe_gpus(int count) {
  for (int gpu = 0; gpu < count; ++gpu) {
    cudaDeviceProp properties{};
    octavo::check(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties");
    const std::string reason = octavo::capability_refusal(10 * properties.major + properties.minor);
    Report::line("machine", octavo::message("GPU ", gpu),
                 octavo::message(properties.name, ", compute capability ", properties.major, ".",
                                 properties.minor, ", ", properties.multiProcessorCount,
                                 " multiprocessors: ",
                                 reason.empty() ? "supported" : "not supported, " + reason));
  }
}

/// Prints the memory of the GPU and the versions of its libraries.
void describe_libraries() {
  std::size_t free = 0;
  std::size_t total = 0;
  int driver = 0;
  int runtime = 0;
  octavo::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  octavo::check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  octavo::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  constexpr double gib = 1 << 30;
  Report::line("machine", "GPU memory",
               text_of("%.1f GiB free of %.1f", static_cast<double>(free) / gib,
                       static_cast<double>(total) / gib));
  const std::size_t cublas = cublasLtGetVersion();
  Report::line("machine", "CUDA",
               octavo::message("runtime ", version_text(runtime), ", driver up to ",
                               version_text(driver), ", cuBLASLt ", cublas / 10000, ".",
                               cublas / 100 % 100, ".", cublas % 100, ", ", cudnn_text()));
}

/// Maximum relative difference of a step's loss.
constexpr double loss_tolerance = 1e-3;

/// Maximum relative difference of a step's gradient norm. The devices sum in different orders, and
/// a sum between two FP8 numbers may round to either, which are 6 % to 25 % apart. The gradients of
/// a whole step with such casts therefore agree less than its loss.
template <class P>
constexpr double norm_tolerance = octavo::QuantizedPrecision<P> ? 1e-2 : 1e-3;

/// Compares a recipe on the GPU with the results of the `Cpu` device.
/// @param sums  see worst_error
template <class P>
void compare(const Reference& reference, double (*sums)(Index), Context<Cuda>& context,
             Report& report) {
  const std::string name = "cuda " + reference.recipe;
  const octavo::GpuFeatures& gpu = context.limits().gpu;
  if (!octavo::gpu_runs<P>(gpu)) {
    Report::line("check", name,
                 "not supported on this GPU, which runs " + octavo::precisions_of(gpu));
    return;
  }
  try {
    const Findings found = examine<P, Cuda>(context);
    const Findings& expected = reference.findings;
    const double worst = worst_error(found, sums);
    const bool same = same_operands(found, expected);
    const double loss = relative_difference(found.step.loss, expected.step.loss);
    const double norm = relative_difference(found.step.gradient_norm, expected.step.gradient_norm);
    report.check(name,
                 same && worst <= 1 && !found.step.skipped && loss <= loss_tolerance &&
                     norm <= norm_tolerance<P>,
                 text_of("%s operands; products: %.3f of the allowed rounding error; step: loss "
                         "off by %.4f %% (%g %% allowed), norm by %.4f %% (%g %%)",
                         same ? "the Cpu's" : "OTHER", worst, 100 * loss, 100 * loss_tolerance,
                         100 * norm, 100 * norm_tolerance<P>));
  } catch (const octavo::Error& error) {
    report.check(name, false, error.what());
  }
}

/// A CUDA event.
class Event {
 public:
  Event() { octavo::check(cudaEventCreate(&event_), "cudaEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }

  void record(const Context<Cuda>& context) {
    octavo::check(cudaEventRecord(event_, context.stream()), "cudaEventRecord");
  }
  [[nodiscard]] float milliseconds_since(const Event& begin) const {
    float milliseconds = 0;
    octavo::check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    octavo::check(cudaEventElapsedTime(&milliseconds, begin.event_, event_),
                  "cudaEventElapsedTime");
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

constexpr Index speed_tokens = 8192;
constexpr std::array<Index, 4> speed_features{1024, 2048, 4096, 8192};

/// Returns the milliseconds of a linear layer's three GEMMs and the casts of all operands: the
/// median of several runs.
template <class P>
double milliseconds(Index features, Context<Cuda>& context) {
  constexpr std::size_t warm_up = 3;
  constexpr std::size_t runs = 15;
  Layer<P, Cuda> layer(speed_tokens, features, features, context);
  std::vector<float> times;
  Event begin;
  Event end;
  for (std::size_t run = 0; run < warm_up + runs; ++run) {
    begin.record(context);
    layer.quantize();
    layer.multiply();
    end.record(context);
    const float time = end.milliseconds_since(begin);
    if (run >= warm_up) times.push_back(time);
  }
  std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
  return static_cast<double>(times[runs / 2]);
}

using Times = std::array<double, speed_features.size()>;

template <class P>
Times measure(Context<Cuda>& context) {
  Times times{};
  for (std::size_t i = 0; i < times.size(); ++i) {
    times[i] = milliseconds<P>(speed_features[i], context);
  }
  return times;
}

/// Returns the width from which FP8 is faster at all larger widths.
std::string speedup_verdict(const Times& times, const Times& bf16) {
  std::size_t first = times.size();
  while (first > 0 && times[first - 1] < bf16[first - 1]) --first;
  return first == times.size()
             ? "is not faster at these sizes"
             : octavo::message("is faster from width ", speed_features[first], " on");
}

void print_speed(const std::string& name, const Times& times, const std::string& verdict) {
  std::string text;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const auto features = static_cast<double>(speed_features[i]);
    const double operations = 6.0 * static_cast<double>(speed_tokens) * features * features;
    text += text_of("%8.3f ms %5.0f | ", times[i], operations / times[i] * 1e-9);
  }
  Report::line("speed", name, text + verdict);
}

/// Prints the times of the recipes. Not a check, because other programs may use the GPU at the same
/// time.
void print_speeds(Context<Cuda>& context) {
  std::string sizes;
  for (const Index features : speed_features)
    sizes += text_of("%9d TFLOP/s | ", static_cast<int>(features));
  Report::line("speed", octavo::message(speed_tokens, " tokens, width"), sizes);
  const Times bf16 = measure<octavo::Bf16>(context);
  print_speed("bf16", bf16, "");
  const auto print = [&]<class P>(const char* name, std::type_identity<P>) {
    if (!octavo::gpu_runs<P>(context.limits().gpu)) return;
    const Times times = measure<P>(context);
    print_speed(name, times, speedup_verdict(times, bf16));
  };
  print("fp8-delayed", std::type_identity<octavo::Fp8Recipe<octavo::Delayed>>());
  print("fp8-tensorwise", std::type_identity<octavo::Fp8Recipe<octavo::Tensorwise>>());
  print("fp8-rowwise", std::type_identity<octavo::Fp8Recipe<octavo::Rowwise>>());
  print("fp8-blockwise", std::type_identity<octavo::Fp8Recipe<octavo::Blockwise>>());
}

/// Checks the recipes that the GPU supports, except MXFP8 and NVFP4.
void check_recipes(const std::vector<Reference>& references, Context<Cuda>& context,
                   Report& report) {
  for (const Reference& reference : references) {
    if (reference.recipe == "bf16") {
      compare<octavo::Bf16>(reference, fp32_sums, context, report);
    } else if (reference.recipe == "fp8-delayed") {
      compare<octavo::Fp8Recipe<octavo::Delayed>>(reference, fp8_tensor_core_sums, context, report);
    } else if (reference.recipe == "fp8-tensorwise") {
      compare<octavo::Fp8Recipe<octavo::Tensorwise>>(reference, fp8_tensor_core_sums, context,
                                                     report);
    } else if (reference.recipe == "fp8-rowwise") {
      compare<octavo::Fp8Recipe<octavo::Rowwise>>(reference, fp8_tensor_core_sums, context, report);
    } else if (reference.recipe == "fp8-blockwise") {
      compare<octavo::Fp8Recipe<octavo::Blockwise>>(reference, fp8_tensor_core_sums, context,
                                                    report);
    } else {
      Report::line("check", "cuda " + reference.recipe, "not compared by this program");
    }
  }
}

}  // namespace

TableCard card_here(int gpu) {
  const Context<Cuda> context(gpu);
  return {context.card(), context.limits().gpu};
}

void check_cuda(int gpu, const std::vector<Reference>& references, Report& report) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();  // clears the error
    report.check("cuda", false,
                 octavo::message("no GPU is available (", cudaGetErrorString(status),
                                 "); see the driver's version above, nvidia-smi and "
                                 "CUDA_VISIBLE_DEVICES, or build without the Cuda device"));
    return;
  }
  try {
    describe_gpus(count);
    Context<Cuda> context(gpu);
    describe_libraries();
    check_recipes(references, context, report);
    print_speeds(context);
  } catch (const octavo::Error& error) {
    report.check("cuda", false, error.what());
  }
}

}  // namespace doctor

// Time, power and energy of every GEMM of Llama-3-8B's layers and head in each format, under
// sustained load and with random data; and the errors of fast accumulation in gradients.
//
//     joules                       at most 90 s on an idle GPU
//     joules --errors              relative errors of gradients with each accumulation
//     joules --json FILE           also appends a JSON line for each GEMM and format
#include <support/gemm_parts.cuh>
#include <support/machine.hpp>
#include <support/nvml.hpp>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <thread>

#include "support/accumulation_error.cuh"

using namespace benchmarks;

namespace {

struct Options {
  double seconds = 1.0;
  std::string gemm;
  std::string json;
  bool errors = false;
};

/// A product and its format, measured.
struct Measured {
  double seconds = 0;  ///< of one product
  PowerFigures power;

  [[nodiscard]] double joules() const { return power.watts * seconds; }
};

/// Sums of the products that have a format.
struct Total {
  double seconds = 0;
  double joules = 0;
  double operations = 0;
  double megahertz_seconds = 0;
};

/// Readings of a GPU in a separate thread, while the object exists.
class Readings {
 public:
  explicit Readings(const Nvml& nvml) : thread_([this, &nvml] { read(nvml); }) {}
  Readings(const Readings&) = delete;
  Readings& operator=(const Readings&) = delete;
  ~Readings() { stop(); }

  /// Stops, and returns the readings.
  /// @throws octavo::IoError  if a reading failed
  std::vector<PowerReading> take() {
    stop();
    if (failure_) std::rethrow_exception(failure_);
    return std::move(readings_);
  }

 private:
  void read(const Nvml& nvml) {
    try {
      while (!stopped_) {
        readings_.push_back(nvml.read());
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  void stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
  }

  std::atomic<bool> stopped_ = false;
  std::vector<PowerReading> readings_;
  std::exception_ptr failure_;
  std::thread thread_;
};

/// Events that are destroyed with the object.
class Events {
 public:
  Events() {
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event), "cudaEventCreate");
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  ~Events() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  [[nodiscard]] static constexpr std::size_t count() { return 4; }
  cudaEvent_t operator[](std::size_t i) const { return events_[i % count()]; }

 private:
  std::array<cudaEvent_t, 4> events_{};
};

/// Runs a product for `seconds`, without pauses. The first fifth only warms the GPU.
Measured measure(Gpu& gpu, const Nvml& nvml, const Part& part, double seconds) {
  constexpr int products = 4 * turns;  // in a launch
  for (int turn = 0; turn < turns; ++turn) part.run(turn);
  Replay<Cuda> replay;
  const auto launch = [&] {
    replay.run(gpu.context(), [&] {
      for (int i = 0; i < products; ++i) part.run(i % turns);
    });
  };
  launch();
  launch();
  gpu.context().synchronize();
  const Events in_flight;
  /// Launches for a while, with a few launches queued. Returns their number.
  const auto load = [&](double duration) {
    const auto begin = std::chrono::steady_clock::now();
    std::size_t launches = 0;
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <
           duration) {
      if (launches >= in_flight.count()) {
        check(cudaEventSynchronize(in_flight[launches]), "cudaEventSynchronize");
      }
      launch();
      check(cudaEventRecord(in_flight[launches], gpu.context().stream()), "cudaEventRecord");
      ++launches;
    }
    return launches;
  };
  const Events ends;
  load(0.2 * seconds);
  Readings readings(nvml);
  check(cudaEventRecord(ends[0], gpu.context().stream()), "cudaEventRecord");
  const std::size_t launches = load(0.8 * seconds);
  check(cudaEventRecord(ends[1], gpu.context().stream()), "cudaEventRecord");
  Measured measured;
  measured.power = figures(readings.take());
  gpu.context().synchronize();
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, ends[0], ends[1]), "cudaEventElapsedTime");
  measured.seconds =
      static_cast<double>(milliseconds) * 1e-3 / static_cast<double>(launches * products);
  return measured;
}

class Table {
 public:
  explicit Table(const Options& options)
      : options_(options), machine_(describe_machine()), nvml_(bus_id().c_str()) {
    if (!options.json.empty()) {
      json_.open(options.json, std::ios::app);
      require<IoError>(json_.is_open(), "cannot open ", options.json,
                       " to append to it; pass a file that can be written to --json");
    }
    std::printf("%s, cuBLASLt %s; Llama-3-8B, %.1f s for each line\n\n", machine_.card.c_str(),
                machine_.cublaslt.c_str(), options.seconds);
    std::printf("%-16s %6s  %-15s %8s %8s %6s %6s %7s %8s %8s\n", "GEMM", "tokens", "format", "ms",
                "TFLOP/s", "W", "MHz", "capped", "J", "pJ/FLOP");
  }

  /// Measures the products of every layer in every format.
  void measure_all() {
    for (const LinearShape& shape : linear_shapes) {
      for (const GemmPass pass : gemm_passes) {
        const std::string name = message(shape.name, ' ', name_of(pass));
        if (name.find(options_.gemm) == std::string::npos) continue;
        line<Bf16>(name, "bf16", shape, pass, GemmAccumulation::full);
        line<Tensors>(name, "fp8 tensor", shape, pass, GemmAccumulation::full);
        line<Tensors>(name, "fp8 tensor fast", shape, pass, GemmAccumulation::fast);
        line<Fp8Recipe<Rowwise>>(name, "fp8 row", shape, pass,
                                 accumulation_of<Fp8Recipe<Rowwise>>(pass));
        line<Fp8Recipe<Blockwise>>(name, "fp8 1x128", shape, pass, GemmAccumulation::full);
        std::printf("\n");
      }
    }
  }

  /// Prints the sums over a layer's products, without the head's.
  void totals() const {
    std::printf("%-24s %-15s %8s %8s %6s %6s %7s %8s %8s\n", "a layer, all passes", "format", "ms",
                "TFLOP/s", "W", "MHz", "", "J", "pJ/FLOP");
    for (const std::string& format : formats_) {
      const Total& total = totals_.at(format);
      if (total.seconds == 0) continue;
      std::printf("%-24s %-15s %8.3f %8.0f %6.0f %6.0f %7s %8.3f %8.3f\n", "", format.c_str(),
                  total.seconds * 1e3, total.operations / total.seconds * 1e-12,
                  total.joules / total.seconds, total.megahertz_seconds / total.seconds, "",
                  total.joules, total.joules / total.operations * 1e12);
    }
  }

 private:
  using Tensors = Fp8Recipe<Tensorwise>;

  static std::string bus_id() {
    std::array<char, 32> text{};
    check(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), 0),
          "cudaDeviceGetPCIBusId");
    return text.data();
  }

  template <LinearPrecision P>
  void line(const std::string& name, const std::string& format, const LinearShape& shape,
            GemmPass pass, GemmAccumulation accumulation) {
    gpu_.free_arrays();
    const Part part = gemm_part<P>(gpu_, shape, pass, accumulation);
    const Measured measured = measure(gpu_, nvml_, part, options_.seconds);
    const auto& [seconds, power] = measured;
    const double rate = part.operations / seconds * 1e-12;
    const double picojoules = measured.joules() / part.operations * 1e12;
    std::printf("%-16s %6d  %-15s %8.3f %8.0f %6.0f %6.0f %6.0f%% %8.3f %8.3f\n", name.c_str(),
                static_cast<int>(shape.rows), format.c_str(), seconds * 1e3, rate, power.watts,
                power.megahertz, 100 * power.power_capped, measured.joules(), picojoules);
    std::fflush(stdout);
    if (totals_.find(format) == totals_.end()) formats_.push_back(format);
    Total& total = totals_[format];
    if (std::string(shape.name) != "head") {
      total.seconds += seconds;
      total.joules += measured.joules();
      total.operations += part.operations;
      total.megahertz_seconds += power.megahertz * seconds;
    }
    if (!json_.is_open()) return;
    const bool fast = accumulation == GemmAccumulation::fast && format != "bf16";
    json_ << nlohmann::json{{"gemm", name},
                            {"tokens", shape.rows},
                            {"out", shape.out},
                            {"in", shape.in},
                            {"format", format},
                            {"operands", formats_of<P>(pass)},
                            {"accumulation", fast ? "fast" : "full"},
                            {"milliseconds", seconds * 1e3},
                            {"teraflops", rate},
                            {"watts", power.watts},
                            {"megahertz", power.megahertz},
                            {"power_capped", power.power_capped},
                            {"joules", measured.joules()},
                            {"picojoules_per_flop", picojoules},
                            {"card", machine_.card},
                            {"cublaslt", machine_.cublaslt}}
                 .dump()
          << std::endl;
    require<IoError>(json_.good(), "cannot write to ", options_.json, "; free some space");
  }

  Options options_;
  Machine machine_;
  Nvml nvml_;
  Gpu gpu_;
  std::ofstream json_;
  std::vector<std::string> formats_;  ///< in order
  std::map<std::string, Total> totals_;
};

/// Prints the errors of gradients in FP8.
/// @param pass  `GemmPass::input_gradient` or `GemmPass::weight_gradient`
void print_errors(const Gpu& gpu, GemmPass pass) {
  const bool of_weight = pass == GemmPass::weight_gradient;
  std::printf("\n%s gradients\n", of_weight ? "weight" : "input");
  std::printf("%-8s %8s  %-15s %10s %10s %12s %12s\n", "layer", "reduces", "gradient of y",
              "error full", "error fast", "shrinks full", "shrinks fast");
  for (const LinearShape& shape : linear_shapes) {
    const Index rows = of_weight ? shape.rows : 2048;
    for (const float tail : {0.0f, 1.5f}) {
      support::GradientProduct product(pass, rows, shape.out, shape.in, tail, gpu.context());
      const auto full = product.error(GemmAccumulation::full);
      const auto fast = product.error(GemmAccumulation::fast);
      std::printf("%-8s %8d  %-15s %10.2e %10.2e %12.2e %12.2e\n", shape.name,
                  static_cast<int>(of_weight ? rows : shape.out),
                  tail == 0 ? "normal" : "heavy tails", full.relative, fast.relative,
                  full.shrinkage, fast.shrinkage);
    }
  }
}

void print_errors() {
  const Gpu gpu;
  std::printf("%s, cuBLASLt %s; gradients of Llama-3-8B, E5M2 x E4M3\n",
              describe_machine().card.c_str(), describe_machine().cublaslt.c_str());
  print_errors(gpu, GemmPass::input_gradient);
  print_errors(gpu, GemmPass::weight_gradient);
}

}  // namespace

int main(int count, char** words) {
  CLI::App app("Time, power and energy of the GEMMs of Llama-3-8B in each format.");
  Options options;
  app.add_option("--seconds", options.seconds, "seconds of load for each GEMM and format")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  app.add_option("--gemm", options.gemm,
                 "only GEMMs whose name contains this text, such as 'down'");
  app.add_option("--json", options.json, "file to which a JSON line is appended for each GEMM");
  app.add_flag("--errors", options.errors, "print the errors of gradients instead");
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    if (options.errors) {
      print_errors();
    } else {
      Table table(options);
      table.measure_all();
      table.totals();
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "joules: %s\n", error.what());
    return 1;
  }
}

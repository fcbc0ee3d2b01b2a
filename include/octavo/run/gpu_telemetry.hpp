/// @file
/// Utilisation, power, clock, temperature and memory of a GPU, read through NVML.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/start_thread.hpp>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <dlfcn.h>

namespace octavo OCTAVO_ABI {

/// The name by which the dynamic linker finds NVIDIA's management library.
inline constexpr const char* nvml_library = "libnvidia-ml.so.1";

/// One reading of a GPU's sensors. A value is empty if the GPU does not report it.
struct GpuReading {
  std::optional<double> utilization{};   ///< share of the last sample period with a kernel, in %
  std::optional<double> watts{};         ///< power draw
  std::optional<double> sm_megahertz{};  ///< clock of the multiprocessors
  std::optional<double> celsius{};       ///< temperature of the chip
  std::optional<double> memory_bytes{};  ///< used by all processes
};

namespace detail {

/// NVIDIA's management library, loaded at run time: programs need neither its header nor a link.
/// Source: NVML API Reference Guide, which guarantees the ABI of these functions.
class Nvml {
 public:
  using Gpu = void*;  ///< nvmlDevice_t

  /// @throws Error  if the library cannot be loaded or does not know the GPU
  Nvml(const std::string& library, const std::string& bus_id)
      : library_(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw Error(message("cannot load NVML: ", ::dlerror()));
    check(function<int()>("nvmlInit_v2")(), "nvmlInit_v2");
    shutdown_.call = find<int()>("nvmlShutdown");
    check(
        function<int(const char*, Gpu*)>("nvmlDeviceGetHandleByPciBusId_v2")(bus_id.c_str(), &gpu_),
        "nvmlDeviceGetHandleByPciBusId_v2 of " + bus_id);
  }

  [[nodiscard]] GpuReading read() const {
    constexpr int sm_clock = 1;         // NVML_CLOCK_SM
    constexpr int gpu_temperature = 0;  // NVML_TEMPERATURE_GPU
    struct {
      unsigned gpu, memory;
    } utilization{};
    struct {
      unsigned long long total, free, used;
    } memory{};
    unsigned milliwatts = 0;
    unsigned megahertz = 0;
    unsigned celsius = 0;
    GpuReading reading;
    if (get("nvmlDeviceGetUtilizationRates", &utilization)) reading.utilization = utilization.gpu;
    if (get("nvmlDeviceGetPowerUsage", &milliwatts)) reading.watts = milliwatts / 1000.0;
    if (get("nvmlDeviceGetClockInfo", sm_clock, &megahertz)) reading.sm_megahertz = megahertz;
    if (get("nvmlDeviceGetTemperature", gpu_temperature, &celsius)) reading.celsius = celsius;
    if (get("nvmlDeviceGetMemoryInfo", &memory)) {
      reading.memory_bytes = static_cast<double>(memory.used);
    }
    return reading;
  }

 private:
  template <class Function>
  [[nodiscard]] Function* find(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library_.get(), name));
  }
  template <class Function>
  [[nodiscard]] Function* function(const char* name) const {
    Function* found = find<Function>(name);
    require<Error>(found != nullptr, "NVML lacks ", name, "; update NVIDIA's driver");
    return found;
  }

  /// Calls a function that may be missing or not supported by the GPU; returns whether it
  /// succeeded.
  template <class... Arguments>
  [[nodiscard]] bool get(const char* name, Arguments... arguments) const {
    auto* const call = find<int(Gpu, Arguments...)>(name);
    return call != nullptr && call(gpu_, arguments...) == 0;
  }

  void check(int status, const std::string& call) const {
    if (status == 0) return;
    auto* const text_of = find<const char*(int)>("nvmlErrorString");
    throw Error(message(call, ": ", text_of == nullptr ? "failed" : text_of(status),
                        " (NVML status ", status, ")"));
  }

  struct CloseLibrary {
    void operator()(void* library) const { ::dlclose(library); }
  };
  /// Ends what nvmlInit_v2 began.
  struct Shutdown {
    Shutdown() = default;
    Shutdown(const Shutdown&) = delete;
    Shutdown& operator=(const Shutdown&) = delete;
    ~Shutdown() {
      if (call != nullptr) call();
    }
    int (*call)() = nullptr;
  };

  std::unique_ptr<void, CloseLibrary> library_;
  Shutdown shutdown_;  // before the library is closed
  Gpu gpu_ = nullptr;
};

}  // namespace detail

/// Reads a GPU's sensors in a separate thread, so that a step never waits for them.
class GpuTelemetry {
 public:
  /// Takes the first reading at once.
  /// @param bus_id   PCI bus id of the GPU, such as "0000:3b:00.0"
  /// @param period   time between readings, at least 1 ms
  /// @param library  name or path of NVML
  /// @throws ConfigError  for a shorter period
  /// @throws Error        if NVML is not installed or does not know the GPU
  explicit GpuTelemetry(const std::string& bus_id,
                        std::chrono::milliseconds period = std::chrono::seconds(1),
                        const std::string& library = nvml_library)
      : nvml_(library, bus_id), period_(period), newest_(nvml_.read()) {
    require<ConfigError>(period.count() >= 1,
                         "GpuTelemetry: the period must be at least 1 ms, but is ", period.count(),
                         " ms; readings take milliseconds");
    thread_ = detail::start_thread("reading the GPU's sensors", [this] { read_until_stopped(); });
  }
  GpuTelemetry(const GpuTelemetry&) = delete;
  GpuTelemetry& operator=(const GpuTelemetry&) = delete;
  ~GpuTelemetry() {
    {
      const std::lock_guard lock(mutex_);
      is_stopped_ = true;
    }
    stopped_.notify_one();
    thread_.join();
  }

  /// Returns the newest reading, or nothing if it was returned before.
  [[nodiscard]] std::optional<GpuReading> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(newest_, std::nullopt);
  }

 private:
  void read_until_stopped() {
    std::unique_lock lock(mutex_);
    while (!stopped_.wait_for(lock, period_, [this] { return is_stopped_; })) {
      lock.unlock();  // a reading takes milliseconds
      const GpuReading reading = nvml_.read();
      lock.lock();
      newest_ = reading;
    }
  }

  detail::Nvml nvml_;
  std::chrono::milliseconds period_;
  std::mutex mutex_;  ///< of the members below
  std::condition_variable stopped_;
  bool is_stopped_ = false;
  std::optional<GpuReading> newest_;
  std::thread thread_;
};

}  // namespace octavo

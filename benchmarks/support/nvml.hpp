// Energy, power and clock of a GPU through NVML, which is loaded when a program runs.
#pragma once

#include <octavo/core/error.hpp>

#include <dlfcn.h>

#include <chrono>
#include <cstddef>
#include <vector>

namespace benchmarks {

/// What NVML reports of a GPU at one time.
struct PowerReading {
  std::chrono::steady_clock::time_point time;
  double joules = 0;  ///< since the driver was loaded; the counter advances in steps
  double megahertz = 0;
  bool power_capped = false;  ///< the power cap limits the clock
};

/// A GPU in NVML.
class Nvml {
 public:
  /// @param bus_id  as cudaDeviceGetPCIBusId returns it
  /// @throws octavo::IoError  if NVML is missing or does not know the GPU
  explicit Nvml(const char* bus_id) {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    octavo::require<octavo::IoError>(library_ != nullptr,
                                     "libnvidia-ml.so.1 must be loadable, but is not; install "
                                     "NVIDIA's driver");
    const auto init = find<int()>("nvmlInit_v2");
    const auto by_bus = find<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    energy_ = find<int(void*, unsigned long long*)>("nvmlDeviceGetTotalEnergyConsumption");
    clock_ = find<int(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
    reasons_ = find<int(void*, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons");
    check(init(), "nvmlInit");
    check(by_bus(bus_id, &gpu_), "nvmlDeviceGetHandleByPciBusId");
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// @throws octavo::IoError  if the GPU has no energy counter
  [[nodiscard]] PowerReading read() const {
    constexpr int sm_clock = 1;
    constexpr unsigned long long power_cap = 0x4;
    unsigned long long millijoules = 0;
    unsigned long long reasons = 0;
    unsigned clock = 0;
    check(energy_(gpu_, &millijoules), "nvmlDeviceGetTotalEnergyConsumption");
    check(clock_(gpu_, sm_clock, &clock), "nvmlDeviceGetClockInfo");
    check(reasons_(gpu_, &reasons), "nvmlDeviceGetCurrentClocksThrottleReasons");
    return {std::chrono::steady_clock::now(), static_cast<double>(millijoules) * 1e-3,
            static_cast<double>(clock), (reasons & power_cap) != 0};
  }

 private:
  template <class Function>
  Function* find(const char* name) {
    void* address = dlsym(library_, name);
    octavo::require<octavo::IoError>(address != nullptr, "libnvidia-ml.so.1 must have ", name,
                                     ", but has not; install a newer driver");
    return reinterpret_cast<Function*>(address);
  }
  static void check(int status, const char* call) {
    octavo::require<octavo::IoError>(status == 0, call, " must succeed, but failed with status ",
                                     status);
  }

  void* library_ = nullptr;
  void* gpu_ = nullptr;
  int (*energy_)(void*, unsigned long long*) = nullptr;
  int (*clock_)(void*, int, unsigned*) = nullptr;
  int (*reasons_)(void*, unsigned long long*) = nullptr;
};

/// Mean power and clock over a period of sustained load.
struct PowerFigures {
  double watts = 0;
  double megahertz = 0;
  double power_capped = 0;  ///< share of the readings
};

/// Returns the figures of readings. Power is the energy between the first and the last step of the
/// counter, so it does not depend on how often the counter advances.
/// @throws octavo::IoError  if the counter advanced less than 3 times
inline PowerFigures figures(const std::vector<PowerReading>& readings) {
  PowerFigures result;
  std::vector<PowerReading> steps;
  for (std::size_t i = 0; i < readings.size(); ++i) {
    result.megahertz += readings[i].megahertz / static_cast<double>(readings.size());
    if (readings[i].power_capped) result.power_capped += 1.0 / static_cast<double>(readings.size());
    if (i > 0 && readings[i].joules != readings[i - 1].joules) steps.push_back(readings[i]);
  }
  octavo::require<octavo::IoError>(steps.size() >= 3, "the GPU's energy counter must advance at ",
                                   "least 3 times while a product runs, but advanced ",
                                   steps.size(), " times; use a longer --seconds");
  const std::chrono::duration<double> time = steps.back().time - steps.front().time;
  result.watts = (steps.back().joules - steps.front().joules) / time.count();
  return result;
}

}  // namespace benchmarks

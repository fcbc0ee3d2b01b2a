// Readings of a GPU's sensors, from a library that stands in for NVML.
#include <octavo/run/gpu_telemetry.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include <dlfcn.h>

namespace gpu_telemetry_test {

using namespace std::chrono_literals;
using octavo::GpuReading;
using octavo::GpuTelemetry;

/// Returns the message with which the sensors of a GPU cannot be read.
std::string refusal(const std::string& bus_id, const std::string& library) {
  try {
    const GpuTelemetry telemetry(bus_id, 1s, library);
  } catch (const octavo::Error& error) {
    return error.what();
  }
  return "none";
}

TEST(GpuTelemetry, ReadsAllSensorsOfGpuAtBusId) {
  GpuTelemetry telemetry("0000:3b:00.0", 1h, OCTAVO_FAKE_NVML);
  const std::optional<GpuReading> reading = telemetry.take();
  ASSERT_TRUE(reading.has_value());
  EXPECT_EQ(reading->utilization, 97);
  EXPECT_EQ(reading->watts, 652.25);
  EXPECT_GE(reading->sm_megahertz, 1740);
  EXPECT_EQ(reading->celsius, 61);
  EXPECT_EQ(reading->memory_bytes, 8589934592.0);
  EXPECT_FALSE(telemetry.take().has_value()) << "the reading was taken before";
}

TEST(GpuTelemetry, OmitsUnsupportedSensors) {
  GpuTelemetry telemetry("0000:5e:00.0", 1h, OCTAVO_FAKE_NVML);
  const std::optional<GpuReading> reading = telemetry.take();
  ASSERT_TRUE(reading.has_value());
  EXPECT_EQ(reading->celsius, 61);
  EXPECT_FALSE(reading->utilization || reading->watts || reading->sm_megahertz ||
               reading->memory_bytes);
}

TEST(GpuTelemetry, RefreshesInBackground) {
  GpuTelemetry telemetry("0000:3b:00.0", 1ms, OCTAVO_FAKE_NVML);
  const double first = telemetry.take()->sm_megahertz.value();
  std::optional<GpuReading> next;
  const auto limit = std::chrono::steady_clock::now() + 20s;
  while (!next.has_value() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(1ms);
    next = telemetry.take();
  }
  ASSERT_TRUE(next.has_value());
  EXPECT_GT(next->sm_megahertz.value(), first);
}

TEST(GpuTelemetry, ErrorsNameMissingLibraryGpuOrFunction) {
  const std::string absent = refusal("0000:3b:00.0", "/nowhere/libnvidia-ml.so.1");
  EXPECT_TRUE(absent.starts_with("cannot load NVML: /nowhere/libnvidia-ml.so.1: ")) << absent;
  EXPECT_EQ(refusal("0000:ff:00.0", OCTAVO_FAKE_NVML),
            "nvmlDeviceGetHandleByPciBusId_v2 of 0000:ff:00.0: Not Found (NVML status 6)");
  EXPECT_EQ(refusal("0000:3b:00.0", "libm.so.6"), "NVML lacks nvmlInit_v2; update NVIDIA's driver");
}

TEST(GpuTelemetry, RejectsPeriodsThatDoNotEnd) {
  for (const auto period : {0ms, -1ms}) {
    EXPECT_THROW(octavo::GpuTelemetry("0000:3b:00.0", period, OCTAVO_FAKE_NVML),
                 octavo::ConfigError);
  }
}

TEST(GpuTelemetry, ClosesNvmlEvenAfterError) {
  void* library = ::dlopen(OCTAVO_FAKE_NVML, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  auto* const opened = reinterpret_cast<int (*)()>(::dlsym(library, "fake_nvml_opened"));
  ASSERT_NE(opened, nullptr);
  (void)refusal("0000:ff:00.0", OCTAVO_FAKE_NVML);
  EXPECT_EQ(opened(), 0);
  {
    const GpuTelemetry telemetry("0000:3b:00.0", 1h, OCTAVO_FAKE_NVML);
    EXPECT_EQ(opened(), 1);
  }
  EXPECT_EQ(opened(), 0);
  ::dlclose(library);
}

}  // namespace gpu_telemetry_test

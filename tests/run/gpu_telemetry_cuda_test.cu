// Readings of a real GPU's sensors, through the driver's NVML.
#include <octavo/core/cuda/context.cuh>
#include <octavo/run/gpu_telemetry.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <optional>

#include "support/on_gpu.cuh"

namespace octavo::gpu_telemetry_cuda_test {

class GpuTelemetryOnCuda : public support::OnGpu {};

TEST_F(GpuTelemetryOnCuda, ReadsGpuOfContext) {
  const Context<Cuda> context;
  GpuTelemetry telemetry(context.bus_id(), std::chrono::hours(1));
  const std::optional<GpuReading> reading = telemetry.take();
  ASSERT_TRUE(reading.has_value());
  ASSERT_TRUE(reading->watts && reading->sm_megahertz && reading->celsius && reading->memory_bytes);
  EXPECT_GT(*reading->watts, 5);
  EXPECT_LT(*reading->watts, 3000);
  EXPECT_GT(*reading->sm_megahertz, 100);
  EXPECT_LT(*reading->sm_megahertz, 5000);
  EXPECT_GT(*reading->celsius, 5);
  EXPECT_LT(*reading->celsius, 110);
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  EXPECT_GT(*reading->memory_bytes, 0);
  EXPECT_LT(*reading->memory_bytes, 1.05 * static_cast<double>(total));
}

}  // namespace octavo::gpu_telemetry_cuda_test

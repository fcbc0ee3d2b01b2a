// The GPU's sensors in a trainer's log, from a library that replaces NVML.
#include <octavo/core/json_line.hpp>
#include <train_llama/gpu_log.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace gpu_log_test {

/// Returns the keys that the log adds to the record of a step.
nlohmann::json recorded(const trainer::GpuLog& log) {
  octavo::JsonLine line;
  log.add_to(line);
  return nlohmann::json::parse(line.str());
}

TEST(GpuLog, RecordsReadingsOnceAndPrintsNewest) {
  trainer::GpuLog log;
  log.open("0000:3b:00.0", OCTAVO_FAKE_NVML);
  log.after_step();
  nlohmann::json record = recorded(log);
  const double clock = record.at("gpu_sm_megahertz");
  EXPECT_GE(clock, 1740);
  EXPECT_EQ(record, (nlohmann::json{{"gpu_utilization", 97.0},
                                    {"gpu_watts", 652.25},
                                    {"gpu_sm_megahertz", clock},
                                    {"gpu_celsius", 61.0},
                                    {"gpu_memory_bytes", 8589934592.0}}));
  const std::string text = log.text();
  EXPECT_TRUE(text.starts_with(" | GPU 97 %, 652 W, ") && text.ends_with(" MHz, 61 °C")) << text;
  log.after_step();  // within a second
  EXPECT_EQ(recorded(log), nlohmann::json::object());
  EXPECT_EQ(log.text(), text);
}

TEST(GpuLog, OmitsUnsupportedSensors) {
  trainer::GpuLog log;
  log.open("0000:5e:00.0", OCTAVO_FAKE_NVML);
  log.after_step();
  EXPECT_EQ(recorded(log), (nlohmann::json{{"gpu_celsius", 61.0}}));
  EXPECT_EQ(log.text(), " | GPU 61 °C");
}

TEST(GpuLog, ReportsMissingNvmlOnce) {
  testing::internal::CaptureStdout();
  trainer::GpuLog log;
  log.open("0000:3b:00.0", "/nowhere/libnvidia-ml.so.1");
  log.after_step();
  log.after_step();
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_TRUE(out.starts_with("gpu | its sensors are not logged: cannot load NVML: /nowhere/"))
      << out;
  EXPECT_EQ(out.find('\n'), out.size() - 1);
  EXPECT_EQ(recorded(log), nlohmann::json::object());
  EXPECT_EQ(log.text(), "");
}

TEST(GpuLog, IsSilentOnTheCpu) {
  testing::internal::CaptureStdout();
  trainer::GpuLog log;
  log.open("", OCTAVO_FAKE_NVML);
  log.after_step();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(recorded(log), nlohmann::json::object());
}

}  // namespace gpu_log_test

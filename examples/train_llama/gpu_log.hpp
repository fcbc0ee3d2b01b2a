// The GPU's sensors in the log of a run.
#pragma once

#include <common/text.hpp>
#include <octavo/core/json_line.hpp>
#include <octavo/io/event_file.hpp>
#include <octavo/octavo.hpp>
#include <octavo/run/gpu_telemetry.hpp>

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace trainer {

/// The sensors of this rank's GPU. Logs nothing on the CPU, or without NVML.
class GpuLog {
 public:
  /// Starts to read the sensors. Without NVML, prints the reason.
  /// @param bus_id   PCI bus id of the GPU; "" on the CPU
  /// @param library  name or path of NVML
  void open(const std::string& bus_id, const std::string& library = octavo::nvml_library) {
    if (bus_id.empty()) return;
    try {
      telemetry_ = std::make_unique<octavo::GpuTelemetry>(bus_id, std::chrono::seconds(1), library);
    } catch (const octavo::Error& error) {
      fmt::print("gpu | its sensors are not logged: {}\n", programs::visible(error.what()));
    }
  }

  /// Called after each step.
  void after_step() {
    is_new_ = false;
    if (telemetry_ == nullptr) return;
    if (const auto reading = telemetry_->take()) {
      reading_ = *reading;
      is_new_ = true;
    }
  }

  /// Returns the newest reading as " | GPU 97 %, 652 W, 1740 MHz, 61 °C", or "".
  [[nodiscard]] std::string text() const {
    std::string text;
    const auto add = [&](const std::optional<double>& value, const char* unit) {
      if (!value.has_value()) return;
      text += fmt::format("{}{:.0f} {}", text.empty() ? " | GPU " : ", ", *value, unit);
    };
    add(reading_.utilization, "%");
    add(reading_.watts, "W");
    add(reading_.sm_megahertz, "MHz");
    add(reading_.celsius, "°C");
    return text;
  }

  /// Adds a new reading to the record of a step, and to its event.
  void add_to(octavo::JsonLine& line) const {
    each([&](const char* name, double value) { line.add(octavo::message("gpu_", name), value); });
  }
  void add_to(octavo::EventSummary& event) const {
    each([&](const char* name, double value) {
      event.add_scalar(octavo::message("gpu/", name), value);
    });
  }

 private:
  /// Calls `action` with each value of a new reading.
  template <class Action>
  void each(const Action& action) const {
    if (!is_new_) return;
    const auto pass = [&](const char* name, const std::optional<double>& value) {
      if (value.has_value()) action(name, *value);
    };
    pass("utilization", reading_.utilization);
    pass("watts", reading_.watts);
    pass("sm_megahertz", reading_.sm_megahertz);
    pass("celsius", reading_.celsius);
    pass("memory_bytes", reading_.memory_bytes);
  }

  std::unique_ptr<octavo::GpuTelemetry> telemetry_;
  octavo::GpuReading reading_;
  bool is_new_ = false;  ///< `reading_` was not recorded before this step
};

}  // namespace trainer

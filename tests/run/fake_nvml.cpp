// Replaces NVIDIA's management library in tests: fixed values for the GPU at 0000:3b:00.0, except
// its clock, which rises with every reading. The GPU at 0000:5e:00.0 reports only its temperature.
#include <string_view>

namespace {

using Device = void*;
int opened = 0;
int gpu = 0;
int other = 0;
unsigned readings = 0;

}  // namespace

extern "C" {

int fake_nvml_opened() { return opened; }

int nvmlInit_v2() {
  ++opened;
  return 0;
}
int nvmlShutdown() {
  --opened;
  return 0;
}
const char* nvmlErrorString(int status) { return status == 6 ? "Not Found" : "Unknown Error"; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, Device* device) {
  const std::string_view id = bus;
  *device = id == "0000:3b:00.0" ? &gpu : id == "0000:5e:00.0" ? &other : nullptr;
  return *device == nullptr ? 6 : 0;
}

int nvmlDeviceGetUtilizationRates(Device device, unsigned* rates) {
  if (device != &gpu) return 3;
  rates[0] = 97;
  rates[1] = 41;
  return 0;
}

int nvmlDeviceGetPowerUsage(Device device, unsigned* milliwatts) {
  *milliwatts = 652250;
  return device == &gpu ? 0 : 3;
}

int nvmlDeviceGetClockInfo(Device device, int clock, unsigned* megahertz) {
  *megahertz = 1740 + readings++;
  return device == &gpu && clock == 1 ? 0 : 3;
}

int nvmlDeviceGetTemperature(Device, int sensor, unsigned* celsius) {
  *celsius = 61;
  return sensor == 0 ? 0 : 3;
}

int nvmlDeviceGetMemoryInfo(Device device, unsigned long long* memory) {
  if (device != &gpu) return 3;
  memory[0] = 3ULL << 32;
  memory[1] = 1ULL << 32;
  memory[2] = 2ULL << 32;
  return 0;
}

}  // extern "C"

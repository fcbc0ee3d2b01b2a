"""Measures power, clock and energy of GPUs through NVML."""
import ctypes
import statistics
import threading
import time

PERIOD = 0.02  # seconds between samples
POWER_CAP = 0x4  # nvmlClocksEventReasonSwPowerCap
CLOCK_SM = 1
SUCCESS = 0


class Sampler:
    """Samples all GPUs in a separate thread, during a `with` block.

    `samples` holds (Unix time, [per GPU: watts, SM clock in MHz, whether the power cap limits the
    clock]). It stays empty if NVML is not available; `fault` then says why.
    """

    def __init__(self):
        self.samples = []
        self.fault = ""
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def _sample(self):
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            check(nvml.nvmlInit_v2(), "nvmlInit")
            count = ctypes.c_uint()
            check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount")
            gpus = [ctypes.c_void_p() for _ in range(count.value)]
            for index, gpu in enumerate(gpus):
                check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu)),
                      "nvmlDeviceGetHandleByIndex")
            while not self.stop.wait(PERIOD):
                self.samples.append((time.time(), [read(nvml, gpu) for gpu in gpus]))
        except (OSError, AttributeError, RuntimeError) as error:
            self.fault = str(error)


def check(status, call):
    if status != SUCCESS:
        raise RuntimeError(f"{call} failed with NVML status {status}")


def read(nvml, gpu):
    """Watts, MHz, and whether the power cap limits the clock."""
    power = ctypes.c_uint()
    clock = ctypes.c_uint()
    reasons = ctypes.c_ulonglong()
    check(nvml.nvmlDeviceGetPowerUsage(gpu, ctypes.byref(power)), "nvmlDeviceGetPowerUsage")
    check(nvml.nvmlDeviceGetClockInfo(gpu, CLOCK_SM, ctypes.byref(clock)), "nvmlDeviceGetClockInfo")
    check(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu, ctypes.byref(reasons)),
          "nvmlDeviceGetCurrentClocksThrottleReasons")
    return power.value / 1000, clock.value, bool(reasons.value & POWER_CAP)


def figures(samples, begin, end, tokens):
    """Power and energy from `begin` to `end` (Unix times), in which `tokens` were trained; {} without
    samples. Watts and MHz are medians over time and GPUs; joules are of all GPUs together.
    """
    inside = [gpus for time_of, gpus in samples if begin <= time_of <= end]
    if not inside:
        return {}
    every = [reading for gpus in inside for reading in gpus]
    watts = statistics.mean(sum(reading[0] for reading in gpus) for gpus in inside)
    return {"watts": statistics.median(reading[0] for reading in every),
            "megahertz": statistics.median(reading[1] for reading in every),
            "power_capped": sum(reading[2] for reading in every) / len(every),
            "joules_per_token": watts * (end - begin) / tokens}

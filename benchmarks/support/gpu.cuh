// A GPU to measure on: arrays that repeated runs take turns with, times, and the rate of a copy.
#pragma once

#include <octavo/cuda.cuh>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

namespace benchmarks {

using namespace octavo;

/// Sets of arrays that runs take turns with, so that none finds its data in L2.
inline constexpr int turns = 3;

template <class T>
inline constexpr bool is_number = std::is_same_v<T, float> || std::is_same_v<T, Bf16> ||
                                  std::is_same_v<T, E4M3> || std::is_same_v<T, E5M2>;

/// Fills memory with numbers between −1 and 1.
template <class T>
__global__ void fill_kernel(T* values, Index count, std::uint32_t seed) {
  const Index stride = Index{gridDim.x} * blockDim.x;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    std::uint32_t hash = (static_cast<std::uint32_t>(i) + seed) * 2654435761u;
    hash = (hash ^ (hash >> 15)) * 2246822519u;
    values[i] = T(static_cast<float>(hash >> 8) * 0x1p-23f - 1.0f);
  }
}

/// One operation at one shape, ready to run, and the least that it costs.
struct Part {
  std::string name;
  Index rows = 0;
  Index columns = 0;
  double bytes = 0;                     ///< inputs read once and outputs written once
  double operations = 0;                ///< floating-point operations of a matrix product
  std::function<void(int turn)> run{};  ///< enqueues it on the arrays of a turn
};

class Gpu {
 public:
  Gpu() {
    need_workspace(std::max(detail::kernel_workspace_bytes, matmul_workspace(0, 0, 0, context_)));
  }

  [[nodiscard]] const Context<Cuda>& context() const { return context_; }

  /// Makes the context's workspace at least this large.
  void need_workspace(std::size_t bytes) {
    if (bytes <= workspace_.size()) return;
    workspace_ = Buffer<Cuda>();
    workspace_ = Buffer<Cuda>(bytes, context_);
    context_.bind_workspace({workspace_.data(), workspace_.size()});
  }

  /// `turns` arrays of this many elements: random numbers, or zeros where `T` is no number.
  template <class T>
  std::vector<T*> make(Index count) {
    std::vector<T*> arrays;
    for (int turn = 0; turn < turns; ++turn) {
      buffers_.emplace_back(static_cast<std::size_t>(count) * sizeof(T), context_);
      arrays.push_back(reinterpret_cast<T*>(buffers_.back().data()));
      if constexpr (is_number<T>) {
        fill_kernel<<<1024, 256, 0, context_.stream()>>>(arrays.back(), count,
                                                         static_cast<std::uint32_t>(turn));
        check(cudaGetLastError(), "fill_kernel");
      } else {
        fill_zero(arrays.back(), static_cast<std::size_t>(count) * sizeof(T), context_);
      }
    }
    return arrays;
  }

  /// Frees all arrays.
  void free_arrays() { buffers_.clear(); }

  /// Seconds of a run among many in a CUDA graph, as a step is one: the median of several launches.
  double seconds(const std::function<void(int)>& run) {
    constexpr int runs = 4 * turns;
    for (int turn = 0; turn < turns; ++turn) run(turn);  // libraries choose what they choose once
    Replay<Cuda> replay;
    const auto launch = [&] {
      replay.run(context_, [&] {
        for (int i = 0; i < runs; ++i) run(i % turns);
      });
    };
    launch();
    launch();
    return median_seconds(launch) / runs;
  }

  /// Bytes a second, read and written, of a copy of 1 GiB.
  double copy_rate() {
    constexpr std::size_t copied = std::size_t{1} << 30;
    const Buffer<Cuda> source(copied, context_);
    const Buffer<Cuda> target(copied, context_);
    return 2.0 * static_cast<double>(copied) /
           median_seconds([&] { copy_on_device(target.data(), source.data(), copied, context_); });
  }

 private:
  /// Median seconds of a run, by events between runs that follow each other.
  double median_seconds(const std::function<void()>& run) {
    constexpr std::size_t repetitions = 9;
    std::array<cudaEvent_t, repetitions + 1> events{};
    for (cudaEvent_t& event : events) check(cudaEventCreate(&event), "cudaEventCreate");
    check(cudaEventRecord(events[0], context_.stream()), "cudaEventRecord");
    for (std::size_t i = 0; i < repetitions; ++i) {
      run();
      check(cudaEventRecord(events[i + 1], context_.stream()), "cudaEventRecord");
    }
    context_.synchronize();
    std::array<float, repetitions> milliseconds{};
    for (std::size_t i = 0; i < repetitions; ++i) {
      check(cudaEventElapsedTime(&milliseconds[i], events[i], events[i + 1]),
            "cudaEventElapsedTime");
    }
    for (cudaEvent_t event : events) cudaEventDestroy(event);
    std::nth_element(milliseconds.begin(), milliseconds.begin() + repetitions / 2,
                     milliseconds.end());
    return static_cast<double>(milliseconds[repetitions / 2]) * 1e-3;
  }

  Context<Cuda> context_;
  Buffer<Cuda> workspace_;
  std::vector<Buffer<Cuda>> buffers_;
};

template <class T>
TensorView<T, 2, Cuda> matrix(T* data, Index rows, Index columns) {
  return {data, {rows, columns}};
}
template <class T>
TensorView<const T, 2, Cuda> input(T* data, Index rows, Index columns) {
  return {data, {rows, columns}};
}
template <class T>
TensorView<T, 1, Cuda> vector(T* data, Index count) {
  return {data, {count}};
}
template <class T>
TensorView<const T, 1, Cuda> input(T* data, Index count) {
  return {data, {count}};
}

template <class T>
TensorView<const T, 2, Cuda> constant(TensorView<T, 2, Cuda> view) {
  return view;
}

/// Operands of one shape, one a turn, with their quantised copies.
template <LinearPrecision P, OperandKind Kind>
class Operands {
 public:
  Operands(Gpu& gpu, Index rows, Index columns)
      : values_bytes_(static_cast<double>(rows * columns) * sizeof(Bf16)) {
    const auto values = gpu.make<Bf16>(rows * columns);
    std::vector<Memory> memories(turns);
    for (std::size_t turn = 0; turn < turns; ++turn) memories[turn].values = values[turn];
    std::vector<OperandScaling*> slots(turns, nullptr);
    if constexpr (QuantizedPrecision<P>) {
      using Format = typename Memory::Format;
      using Granularity = typename Memory::Granularity;
      using Scale = typename Memory::Scale;
      const Index copy_bytes = Memory::element_bytes(rows, columns);
      const auto row_major = gpu.make<Format>(copy_bytes);
      const auto transposed = gpu.make<Format>(copy_bytes);
      copies_bytes_ = 2 * static_cast<double>(copy_bytes);
      const Index row_scale_count = scale_count<Granularity>(rows, columns);
      const Index column_scale_count = scale_count<Granularity>(columns, rows);
      const auto row_scales = gpu.make<Scale>(row_scale_count);
      const auto column_scales = gpu.make<Scale>(column_scale_count);
      scale_bytes_ = static_cast<double>(row_scale_count + column_scale_count) * sizeof(Scale);
      slots = gpu.make<OperandScaling>(1);
      for (std::size_t turn = 0; turn < turns; ++turn) {
        memories[turn].row_major = row_major[turn];
        memories[turn].transposed = transposed[turn];
        memories[turn].row_major_scales = row_scales[turn];
        memories[turn].transposed_scales = column_scales[turn];
        OperandScaling slot{};
        slot.scale = FormatTraits<Format>::max / 2;  // nothing that is made here is beyond 2
        slot.scale_inverse = 1.0f / slot.scale;
        copy_to_device_sync(slots[turn], &slot, sizeof(slot), gpu.context());
      }
    }
    for (std::size_t turn = 0; turn < turns; ++turn) {
      operands_.push_back(memories[turn].operand(rows, columns, slots[turn], true, {true, true}));
      quantize(operands_.back(), gpu.context());
    }
  }

  const Operand<P, Kind, Cuda>& operator[](int turn) const {
    return operands_[static_cast<std::size_t>(turn)];
  }

  /// Bytes that a producer must move: its inputs, and the values, or two copies of half their bytes
  /// and the copies' scales. Where scales wait for an amax, the values twice more, or the inputs
  /// once more for scales of rows.
  /// @param inputs  bytes
  [[nodiscard]] double produced_bytes(Index inputs) const {
    return static_cast<double>(inputs) * (makes_twice ? 2 : 1) +
           values_bytes_ * (waits_for_amax && !makes_twice ? 3 : 1) + scale_bytes_;
  }
  /// Bytes that `quantize` must move: the values are read, and read again after their amax.
  [[nodiscard]] double quantized_bytes() const {
    return values_bytes_ * (waits_for_amax ? 2 : 1) + copies_bytes_ + scale_bytes_;
  }

 private:
  using Memory = OperandMemory<P, Kind, Cuda>;
  static constexpr bool makes_twice = [] {
    if constexpr (QuantizedPrecision<P>) {
      return detail::is_per_row<typename PrecisionTraits<P>::ScalingType>;
    }
    return false;
  }();
  static constexpr bool waits_for_amax = [] {
    if constexpr (QuantizedPrecision<P>) {
      using S = typename PrecisionTraits<P>::ScalingType;
      return makes_twice || detail::is_tensorwise<S> || detail::has_two_levels<S>;
    }
    return false;
  }();
  std::vector<Operand<P, Kind, Cuda>> operands_;
  double values_bytes_;
  double copies_bytes_ = 0;
  double scale_bytes_ = 0;
};

}  // namespace benchmarks

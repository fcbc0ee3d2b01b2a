// A custom kernel that ends in FP8: y = relu(x + bias)², cast and transposed for a GEMM in the same
// kernel, timed next to a copy. Exit code 1: a byte differs from the formula on the host.
#include <octavo/cuda.cuh>

#include <chrono>

using namespace octavo;
using namespace octavo::kernels;

OCTAVO_HOST_DEVICE inline float squared_relu(float x) { return x > 0 ? x * x : 0; }

/// Computes y for eight neighbouring elements at a time: a TileSource.
struct SquaredRelu {
  static constexpr int parts = 1, rounds_in_flight = 8;
  const Bf16 *x, *bias;  // [rows, columns] and [columns]
  Index columns;
  template <bool Vectors>
  struct Runs {  // state of one thread: the same columns of many rows
    const Bf16* x;
    int stride;
    Run<Bf16> bias;
    __device__ Run<Bf16> load(int i, int n) const { return load_run<Vectors>(x + i * stride, n); }
    __device__ Produced<Bf16, 1> make(int, const Run<Bf16>& loaded) const {
      Floats y = to_floats(loaded), b = to_floats(bias);
      for (int k = 0; k < run_size; ++k) y.values[k] = squared_relu(y.values[k] + b.values[k]);
      return {{to_run<Bf16>(y)}};
    }
  };
  bool vectors() const { return rows_are_vectors(columns, x, bias); }
  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    return {opaque(x + row * columns + column), static_cast<int>(columns),
            load_run<Vectors>(bias + column, columns - column)};
  }
};

float microseconds(const Context<Cuda>& context, const auto& enqueue) {
  using Clock = std::chrono::steady_clock;
  const auto begin = (enqueue(), context.synchronize(), Clock::now());
  for (int i = 0; i < 100; ++i) enqueue();
  context.synchronize();
  return std::chrono::duration<float, std::micro>(Clock::now() - begin).count() / 100;
}

bool is_right(Index rows, Index columns, const Context<Cuda>& context) {
  const Index count = rows * columns;
  std::vector<Bf16> x(count + columns);  // the bias follows x
  for (unsigned i = 0; i < x.size(); ++i) x[i] = Bf16((i * 2654435761u >> 8) * 0x1p-21f - 4);
  Arena<Cuda> arena({.peak = 6 * std::size_t(count) + (1 << 20)}, context);
  auto* values = arena.allocate<Bf16>(MemoryKind::activations, 2 * count + columns);
  auto* cast = arena.allocate<E4M3>(MemoryKind::activations, 2 * count);
  auto* slot = arena.allocate<OperandScaling>(MemoryKind::scaling, 1);
  const float scale = 8;  // in a model, the slot's history provides it
  copy_to_device_sync(&slot->scale, &scale, sizeof(scale), context);
  copy_to_device_sync(values, x.data(), 2 * x.size(), context);
  OperandMemory<Fp8Recipe<Delayed>, OperandKind::input, Cuda> memory;  // y itself is not stored
  memory.row_major = cast, memory.transposed = cast + count;
  const auto y = memory.operand(rows, columns, slot, /*record=*/false, /*copies=*/{});
  const SquaredRelu source{values, values + count, columns};
  const float us = microseconds(context, [&] { produce("squared_relu", source, y, context); });
  const auto copy = [&] { copy_on_device(values + x.size(), values, 2 * count, context); };
  const float copy_us = microseconds(context, copy);
  std::vector<E4M3> found(2 * count);
  copy_to_host_sync(found.data(), cast, 2 * count, context);
  long wrong = 0;
  for (Index i = 0; i < count; i += 1 + count / 1'000'000) {
    const E4M3 byte(scale * float(Bf16(squared_relu(float(x[i]) + float(x[count + i % columns])))));
    wrong += found[i] != byte || found[count + i % columns * rows + i / columns] != byte;
  }
  std::printf("%ld x %ld | %ld wrong | %.1f us | copy %.1f us | %.0f %% of its speed\n", rows,
              columns, wrong, us, copy_us, 100 * copy_us / us);
  return wrong == 0;
}

int main() try {
  const Context<Cuda> gpu;
  return is_right(301, 263, gpu) && is_right(320, 1000, gpu) && is_right(8192, 16384, gpu) ? 0 : 1;
} catch (const Error& error) {
  return std::fprintf(stderr, "own_kernel: %s\n", error.what()), 1;
}

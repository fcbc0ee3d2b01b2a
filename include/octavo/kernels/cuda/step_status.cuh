/// @file
/// Loss, gradient norm and the decision whether a step counts, on the `Cuda` device. Sums have a
/// fixed order: shapes of launches do not depend on the GPU.
#pragma once

#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/step_status.hpp>

namespace octavo {
namespace detail {

inline constexpr int status_threads = 1024;
/// Blocks of add_squared_norm, at most.
inline constexpr Index norm_blocks = 1024;
/// Loads that one thread of add_squared_norm has in flight.
inline constexpr int norm_loads = 4;

/// target += Σ values, by one block.
template <class T>
OCTAVO_KERNEL void __launch_bounds__(status_threads)
    add_sum_kernel(const T* values, Index count, double* target) {
  double sum = 0;
  for (Index i = threadIdx.x; i < count; i += status_threads) sum += static_cast<double>(values[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) *target += sum;
}

/// sums[block] = Σ of the squares of what the block reads. A thread adds up its few loads of one
/// round in FP32 and its rounds in FP64.
/// @param vectors  runs of values to read at once; the rest is read one by one
template <class G>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    squares_kernel(const G* values, Index count, Index vectors, double* sums) {
  const Index thread = global_thread();
  const Index stride = Index{gridDim.x} * elementwise_threads;
  double sum = 0;
  for (Index begin = thread; begin < vectors; begin += norm_loads * stride) {
    Run<G> runs[norm_loads];
#pragma unroll
    for (int i = 0; i < norm_loads; ++i) {
      const Index position = begin + i * stride;
      runs[i] = load_run<true>(values + position * run_size, (vectors - position) * run_size);
    }
    float squares = 0;
#pragma unroll
    for (const Run<G>& run : runs) {
      const Floats floats = to_floats(run);
#pragma unroll
      for (const float value : floats.values) squares += value * value;
    }
    sum += static_cast<double>(squares);
  }
  for (Index i = vectors * run_size + thread; i < count; i += stride) {
    const float value = static_cast<float>(values[i]);
    sum += static_cast<double>(value * value);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/// Completes the status, by one block.
template <Device D>
OCTAVO_KERNEL void __launch_bounds__(status_threads)
    finish_status_kernel(TensorView<const ScalingSlot, 1, D> slots, const ScalingSlot* before,
                         float max_norm, StepStatus* status) {
  std::uint32_t nonfinite = 0;
  for (Index i = threadIdx.x; i < slots.extent(0); i += status_threads) {
    nonfinite += slots.data()[i].nonfinite - before[i].nonfinite;
  }
  nonfinite = block_sum(nonfinite);
  if (threadIdx.x != 0) return;
  status->nonfinite += nonfinite;
  decide(*status, sqrt(status->squared_norm), max_norm);
}

/// Copies one element a thread if the step is skipped.
template <class T>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    restore_kernel(T* target, const T* source, Index count, const StepStatus* status) {
  if (status->skip == 0) return;
  const Index i = global_thread();
  if (i < count) target[i] = source[i];
}

template <class T>
void enqueue_restore(std::byte* target, const std::byte* source, Index bytes,
                     const StepStatus* status, const Context<Cuda>& context) {
  const Index count = bytes / static_cast<Index>(sizeof(T));
  launch("restore_if_skipped", restore_kernel<T>, ceil_divide(count, elementwise_threads),
         elementwise_threads, 0, context, reinterpret_cast<T*>(target),
         reinterpret_cast<const T*>(source), count, status);
}

}  // namespace detail

/// See add_losses.
inline void add_losses_body(TensorView<const float, 1, Cuda> losses,
                            TensorView<StepStatus, 1, Cuda> status, const Context<Cuda>& context) {
  detail::launch("add_losses", detail::add_sum_kernel<float>, 1, detail::status_threads, 0, context,
                 losses.data(), losses.extent(0), &status.data()->loss_sum);
}

/// See add_squared_norm. Uses the context's workspace for the blocks' sums.
template <class G>
void add_squared_norm_body(TensorView<const G, 1, Cuda> gradient,
                           TensorView<StepStatus, 1, Cuda> status, const Context<Cuda>& context) {
  constexpr const char* name = "add_squared_norm";
  const Index count = gradient.extent(0);
  const Index runs = count / detail::run_size;
  const Index vectors = detail::is_vector_aligned(gradient.data()) ? runs : 0;
  const Index blocks =
      std::clamp(ceil_divide(runs, Index{detail::elementwise_threads} * detail::norm_loads),
                 Index{1}, detail::norm_blocks);
  auto* sums = detail::workspace_elements<double>(blocks, name, context);
  detail::launch(name, detail::squares_kernel<G>, blocks, detail::elementwise_threads, 0, context,
                 gradient.data(), count, vectors, sums);
  detail::launch(name, detail::add_sum_kernel<double>, 1, detail::status_threads, 0, context,
                 static_cast<const double*>(sums), blocks, &status.data()->squared_norm);
}

/// See finish_status.
inline void finish_status_body(TensorView<const ScalingSlot, 1, Cuda> slots,
                               TensorView<const ScalingSlot, 1, Cuda> before, float max_norm,
                               TensorView<StepStatus, 1, Cuda> status,
                               const Context<Cuda>& context) {
  detail::launch("finish_status", detail::finish_status_kernel<Cuda>, 1, detail::status_threads, 0,
                 context, slots, before.data(), max_norm, status.data());
}

/// See restore_if_skipped.
inline void restore_if_skipped_body(TensorView<std::byte, 1, Cuda> target,
                                    TensorView<const std::byte, 1, Cuda> source,
                                    TensorView<const StepStatus, 1, Cuda> status,
                                    const Context<Cuda>& context) {
  const Index bytes = target.extent(0);
  if (bytes % static_cast<Index>(sizeof(uint4)) == 0 && detail::is_vector_aligned(target.data()) &&
      detail::is_vector_aligned(source.data())) {
    detail::enqueue_restore<uint4>(target.data(), source.data(), bytes, status.data(), context);
  } else {
    detail::enqueue_restore<std::byte>(target.data(), source.data(), bytes, status.data(), context);
  }
}

}  // namespace octavo

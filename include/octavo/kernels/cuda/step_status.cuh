/// @file
/// Loss, gradient norm and the decision whether to skip a step, on the `Cuda` device. Sums have a
/// fixed order: launch shapes do not depend on the GPU.
#pragma once

#include <octavo/kernels/cuda/for_each.cuh>
#include <octavo/kernels/cuda/run.cuh>
#include <octavo/kernels/step_status.hpp>

#include <cuda/atomic>

namespace octavo OCTAVO_ABI::detail {

inline constexpr int status_threads = 1024;
/// Maximum number of blocks of add_squared_norm: as many as a large GPU runs at the same time. Few
/// blocks then increment `arrivals`.
inline constexpr Index norm_blocks = 512;
/// Runs that one thread of add_squared_norm has in flight: 128 bytes.
template <class G>
inline constexpr int norm_loads = 16 / static_cast<int>(sizeof(G));

/// Computes target += Σ values, with one block.
template <class T>
OCTAVO_KERNEL void __launch_bounds__(status_threads)
    add_sum_kernel(const T* values, Index count, double* target) {
  double sum = 0;
  for (Index i = threadIdx.x; i < count; i += status_threads) sum += static_cast<double>(values[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) *target += sum;
}

/// Returns Σ of the squares of `norm_loads` runs, the first at `begin`, in FP32.
/// @param stride  distance between them in runs
/// @param runs    number of runs in `values`
template <class G>
__device__ float squares_of_runs(const G* values, Index begin, Index stride, Index runs) {
  Run<G> loaded[norm_loads<G>];
#pragma unroll
  for (int i = 0; i < norm_loads<G>; ++i) {
    const Index at = begin + i * stride;
    loaded[i] = load_run<true>(values + at * run_size, at < runs ? run_size : 0);
  }
  float squares[run_size] = {};  // separate sums, so that additions need not wait
#pragma unroll
  for (const Run<G>& run : loaded) {
    const Floats floats = to_floats(run);
#pragma unroll
    for (int e = 0; e < run_size; ++e) squares[e] += floats.values[e] * floats.values[e];
  }
  float sum = 0;
#pragma unroll
  for (const float square : squares) sum += square;
  return sum;
}

/// Returns true, to all threads, in the last block that arrives; writes of the first threads of
/// earlier blocks are then visible.
__device__ inline bool arrives_last(std::uint32_t& arrivals) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    const cuda::atomic_ref<std::uint32_t, cuda::thread_scope_device> count(arrivals);
    last = count.fetch_add(1, cuda::memory_order_acq_rel) == gridDim.x - 1;
  }
  __syncthreads();
  return last;
}

/// Computes sums[block] = Σ of the squares of the block's elements; the last block adds all of them
/// to the status, in the order of the sums regardless of which block is last.
/// @param runs  number of runs to read as vectors; the elements after them are read one by one
template <class G>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads, 4)
    squares_kernel(const G* values, Index count, Index runs, double* sums, StepStatus* status) {
  const Index stride = Index{gridDim.x} * elementwise_threads;
  double sum = 0;
  for (Index begin = global_thread(); begin < runs; begin += norm_loads<G> * stride) {
    sum += static_cast<double>(squares_of_runs(values, begin, stride, runs));
  }
#pragma unroll 4
  for (Index i = runs * run_size + global_thread(); i < count; i += stride) {
    const float value = static_cast<float>(values[i]);
    sum += static_cast<double>(value * value);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  if (!arrives_last(status->arrivals)) return;
  double total = 0;
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < gridDim.x; i += elementwise_threads) total += __ldcg(sums + i);
  total = block_sum(total);
  if (threadIdx.x != 0) return;
  status->squared_norm += total;
  status->arrivals = 0;
}

/// Adds the increases of the counts, with one block.
template <Device D>
OCTAVO_KERNEL void __launch_bounds__(status_threads)
    add_nonfinite_kernel(TensorView<const OperandStatistics, 1, D> after,
                         const OperandStatistics* before, StepStatus* status) {
  std::uint32_t nonfinite = 0;
  for (Index i = threadIdx.x; i < after.extent(0); i += status_threads) {
    nonfinite += after.data()[i].nonfinite - before[i].nonfinite;
  }
  nonfinite = block_sum(nonfinite);
  if (threadIdx.x == 0) status->nonfinite += nonfinite;
}

/// Makes the decision, with one thread.
template <Device D>
OCTAVO_KERNEL void decide_step_kernel(float max_gradient_norm, const StepLimits* limits,
                                      StepStatus* status) {
  decide(*status, sqrt(status->squared_norm), max_gradient_norm, *limits);
}

/// Copies if the step is skipped.
template <class T>
struct Restore {
  T* target;
  const T* source;
  const StepStatus* status;
  __device__ void operator()(Index i) const {
    if (status->skip != 0) target[i] = source[i];
  }
};

template <class T>
void enqueue_restore(std::byte* target, const std::byte* source, Index bytes,
                     const StepStatus* status, const Context<Cuda>& context) {
  const Index count = bytes / static_cast<Index>(sizeof(T));
  for_each_index(
      "restore_if_skipped", count, context,
      Restore<T>{reinterpret_cast<T*>(target), reinterpret_cast<const T*>(source), status});
}

/// See add_losses.
inline void add_losses_body(TensorView<const float, 1, Cuda> losses,
                            TensorView<StepStatus, 1, Cuda> status, const Context<Cuda>& context) {
  launch("add_losses", add_sum_kernel<float>, 1, status_threads, 0, context, losses.data(),
         losses.extent(0), &status.data()->loss_sum);
}

/// See add_squared_norm. Uses the context's workspace for the blocks' sums.
template <class G>
void add_squared_norm_body(TensorView<const G, 1, Cuda> gradient,
                           TensorView<StepStatus, 1, Cuda> status, const Context<Cuda>& context) {
  constexpr const char* name = "add_squared_norm";
  const Index count = gradient.extent(0);
  const Index runs = is_vector_aligned(gradient.data()) ? count / run_size : 0;
  const Index blocks =
      std::clamp(count / (elementwise_threads * norm_loads<G> * run_size), Index{1}, norm_blocks);
  auto* sums =
      workspace_of<double>(context, static_cast<std::size_t>(blocks) * sizeof(double), name);
  launch(name, squares_kernel<G>, blocks, elementwise_threads, 0, context, gradient.data(), count,
         runs, sums, status.data());
}

/// See add_nonfinite.
inline void add_nonfinite_body(TensorView<const OperandStatistics, 1, Cuda> after,
                               TensorView<const OperandStatistics, 1, Cuda> before,
                               TensorView<StepStatus, 1, Cuda> status,
                               const Context<Cuda>& context) {
  launch("add_nonfinite", add_nonfinite_kernel<Cuda>, 1, status_threads, 0, context, after,
         before.data(), status.data());
}

/// See decide_step.
inline void decide_step_body(float max_gradient_norm, TensorView<const StepLimits, 1, Cuda> limits,
                             TensorView<StepStatus, 1, Cuda> status, const Context<Cuda>& context) {
  launch("decide_step", decide_step_kernel<Cuda>, 1, 1, 0, context, max_gradient_norm,
         limits.data(), status.data());
}

/// See restore_if_skipped.
inline void restore_if_skipped_body(TensorView<std::byte, 1, Cuda> target,
                                    TensorView<const std::byte, 1, Cuda> source,
                                    TensorView<const StepStatus, 1, Cuda> status,
                                    const Context<Cuda>& context) {
  const Index bytes = target.extent(0);
  if (bytes % static_cast<Index>(sizeof(uint4)) == 0 && is_vector_aligned(target.data()) &&
      is_vector_aligned(source.data())) {
    enqueue_restore<uint4>(target.data(), source.data(), bytes, status.data(), context);
  } else {
    enqueue_restore<std::byte>(target.data(), source.data(), bytes, status.data(), context);
  }
}

}  // namespace octavo::detail

/// @file
/// The kernel that writes rotated rows, in place or elsewhere.
#pragma once

#include <octavo/kernels/cuda/cast/amax.cuh>
#include <octavo/kernels/cuda/rope/rotation.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Heads that one thread of rotate_kernel rotates by the same angles; it loads all of them before
/// it rotates the first.
inline constexpr int rotated_at_once = 4;

/// Rotates a run of pairs: `first` from the first half of a head, `second` from its second half.
template <class T>
__device__ void rotate_runs(Run<T>& first, Run<T>& second, const Floats& cosine, const Floats& sine,
                            float sign) {
  const Floats a = to_floats(first);
  const Floats b = to_floats(second);
  Floats low;
  Floats high;
#pragma unroll
  for (int i = 0; i < run_size; ++i) {
    const float s = sign * sine.values[i];
    low.values[i] = rotated(a.values[i], cosine.values[i], -s, b.values[i]);
    high.values[i] = rotated(b.values[i], cosine.values[i], s, a.values[i]);
  }
  first = to_run<T>(low);
  second = to_run<T>(high);
}

/// Rotates one run of pairs in every `groups`-th head per thread; `target` may be `source`. Heads
/// from `rotated_heads` on are copied.
/// @param heads      number of heads to process, the first of each row
/// @param groups     heads / `rotated_at_once`, rounded up
/// @param amax_bits  null, or raised to the bits of max |target| over these heads
template <bool Vectors, class T>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    rotate_kernel(const T* source, T* target, Index rows, const Rotation rotation,
                  std::uint32_t heads, std::uint32_t groups, std::uint32_t* amax_bits) {
  const std::uint32_t half = rotation.half();
  const std::uint32_t pairs = (half + run_size - 1) / run_size;  // runs of pairs in a head
  const auto thread = static_cast<std::uint32_t>(global_thread());
  const Index row = thread / (groups * pairs);
  const std::uint32_t group = thread / pairs % groups;
  const std::uint32_t j = thread % pairs * run_size;
  std::uint32_t magnitudes = 0;
  if (row < rows) {
    const Index count = Index{half} - j;
    const Index begin = row * rotation.columns() + j;
    Run<T> first[rotated_at_once];
    Run<T> second[rotated_at_once];
#pragma unroll
    for (int i = 0; i < rotated_at_once; ++i) {
      const std::uint32_t head = group + i * groups;
      if (head >= heads) continue;
      const Index place = begin + Index{head} * rotation.head_dim;
      first[i] = load_run<Vectors>(source + place, count);
      second[i] = load_run<Vectors>(source + place + half, count);
    }
    const Floats cosine = load_floats<Vectors>(rotation.angles(row) + j, count);
    const Floats sine = load_floats<Vectors>(rotation.angles(row) + half + j, count);
#pragma unroll
    for (int i = 0; i < rotated_at_once; ++i) {
      const std::uint32_t head = group + i * groups;
      if (head >= heads) continue;
      const Index place = begin + Index{head} * rotation.head_dim;
      const bool rotates = head < rotation.rotated_heads;
      if (rotates) rotate_runs(first[i], second[i], cosine, sine, rotation.sign);
      if (rotates || target != source) {
        store_run<Vectors>(target + place, count, first[i]);
        store_run<Vectors>(target + place + half, count, second[i]);
      }
      if constexpr (std::is_same_v<T, Bf16>) {
        magnitudes = larger_magnitudes(larger_magnitudes(magnitudes, first[i]), second[i]);
      }
    }
  }
  if (amax_bits != nullptr) raise_to_block_amax(magnitudes, amax_bits);
}

/// Enqueues rotate_kernel over all heads that change, or over all heads if an amax is needed.
template <class T>
void enqueue_rotation(const char* name, const T* source, T* target, Index rows,
                      const Rotation& rotation, std::uint32_t* amax_bits,
                      const Context<Cuda>& context) {
  const bool all = source != target || amax_bits != nullptr;
  const std::uint32_t heads = all ? rotation.all_heads : rotation.rotated_heads;
  const auto groups = static_cast<std::uint32_t>(ceil_divide(heads, rotated_at_once));
  const Index threads = rows * groups * ceil_divide(Index{rotation.half()}, run_size);
  require<ShapeError>(threads < Index{1} << 32, name, ": ", rows, " rows of ", heads,
                      " heads are too many for one launch; split the rows");
  const bool vectors = rotation.vectors() && is_vector_aligned(source) && is_vector_aligned(target);
  launch(name, vectors ? rotate_kernel<true, T> : rotate_kernel<false, T>,
         ceil_divide(threads, elementwise_threads), elementwise_threads, 0, context, source, target,
         rows, rotation, heads, groups, amax_bits);
}

}  // namespace octavo::detail

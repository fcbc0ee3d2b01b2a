/// @file
/// Common parts of kernels on the `Cuda` device: runs of elements that one thread moves at once,
/// and sums over threads.
#pragma once

#include <octavo/formats/formats.hpp>
#include <octavo/kernels/cuda/launch.cuh>
#include <octavo/memory/cuda/buffer.cuh>

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace octavo OCTAVO_ABI::kernels {

/// Adjacent elements that one thread handles at once: 16 bytes of BF16.
inline constexpr int run_size = 8;

/// `run_size` adjacent elements as stored in memory.
template <class T>
struct Run {
  static constexpr int elements_per_word = 4 / static_cast<int>(sizeof(T));
  static constexpr int words_per_run = run_size / elements_per_word;
  std::uint32_t words[words_per_run];
};

/// `run_size` adjacent elements as FP32 numbers.
struct Floats {
  float values[run_size];
};

template <class T>
__device__ std::uint32_t element_bits(T element) {
  if constexpr (std::is_same_v<T, float>) {
    return __float_as_uint(element);
  } else {
    return element.bits;
  }
}

/// Loads the first `count` elements from `source`, then zeros; all of a run if `count` is larger.
/// @tparam Vectors  `source` is aligned to the run's bytes, at most 16, and `count` is a multiple
///                  of `run_size`
template <bool Vectors, class T>
__device__ Run<T> load_run(const T* source, Index count) {
  Run<T> run{};
  if constexpr (Vectors) {
    if (count <= 0) return run;
    if constexpr (Run<T>::words_per_run == 2) {
      const uint2 vector = *reinterpret_cast<const uint2*>(source);
      run.words[0] = vector.x;
      run.words[1] = vector.y;
    } else {
#pragma unroll
      for (int i = 0; i < Run<T>::words_per_run; i += 4) {
        const uint4 vector = reinterpret_cast<const uint4*>(source)[i / 4];
        run.words[i] = vector.x;
        run.words[i + 1] = vector.y;
        run.words[i + 2] = vector.z;
        run.words[i + 3] = vector.w;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      constexpr int a_word = Run<T>::elements_per_word;
      if (i < count) run.words[i / a_word] |= element_bits(source[i]) << (i % a_word * 32 / a_word);
    }
  }
  return run;
}

/// Returns the first `count` elements of a run, then zeros; all of the run if `count` is larger.
template <class T>
__device__ Run<T> first_elements(Run<T> run, int count) {
#pragma unroll
  for (int i = 0; i < Run<T>::words_per_run; ++i) {
    constexpr int a_word = Run<T>::elements_per_word;
    const int within = count - i * a_word;
    if (within <= 0) run.words[i] = 0;
    if (within > 0 && within < a_word) run.words[i] &= (1u << (within * 32 / a_word)) - 1u;
  }
  return run;
}

/// Writes the first `count` elements to `target`; all of the run if `count` is larger.
/// @tparam Vectors  `target` is aligned to the run's bytes, at most 16, and `count` is a multiple
///                  of `run_size`
template <bool Vectors, class T>
__device__ void store_run(T* target, Index count, const Run<T>& run) {
  if constexpr (Vectors) {
    if (count <= 0) return;
    if constexpr (Run<T>::words_per_run == 2) {
      *reinterpret_cast<uint2*>(target) = make_uint2(run.words[0], run.words[1]);
    } else {
#pragma unroll
      for (int i = 0; i < Run<T>::words_per_run; i += 4) {
        reinterpret_cast<uint4*>(target)[i / 4] =
            make_uint4(run.words[i], run.words[i + 1], run.words[i + 2], run.words[i + 3]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      constexpr int a_word = Run<T>::elements_per_word;
      const std::uint32_t bits = run.words[i / a_word] >> (i % a_word * 32 / a_word);
      if (i >= count) continue;
      if constexpr (std::is_same_v<T, float>) {
        target[i] = __uint_as_float(bits);
      } else {
        target[i].bits = static_cast<decltype(T::bits)>(bits);
      }
    }
  }
}

/// Returns the two values of a word of BF16 values.
__device__ inline float2 bf16_pair(std::uint32_t word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

/// CUDA's name of an FP8 format.
template <class Format>
inline constexpr __nv_fp8_interpretation_t cuda_fp8_kind = __NV_E4M3;
template <>
inline constexpr __nv_fp8_interpretation_t cuda_fp8_kind<E5M2> = __NV_E5M2;

/// Returns two FP8 values, the first in the lower byte. Every FP8 number is an FP16 number.
template <class Format>
__device__ float2 fp8_pair(std::uint32_t bits) {
  const auto pair = static_cast<__nv_fp8x2_storage_t>(bits);
  return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, cuda_fp8_kind<Format>)));
}

/// Returns the values of a run in FP32, BF16 or FP8.
template <class T>
__device__ Floats to_floats(const Run<T>& run) {
  Floats result;
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int i = 0; i < run_size; ++i) result.values[i] = __uint_as_float(run.words[i]);
  } else {
    constexpr bool is_fp8 = std::is_same_v<T, E4M3> || std::is_same_v<T, E5M2>;
    static_assert(std::is_same_v<T, Bf16> || is_fp8);
#pragma unroll
    for (int i = 0; i < run_size / 2; ++i) {
      float2 pair;
      if constexpr (is_fp8) {
        pair = fp8_pair<T>(run.words[i / 2] >> (i % 2 * 16));
      } else {
        pair = bf16_pair(run.words[i]);
      }
      result.values[2 * i] = pair.x;
      result.values[2 * i + 1] = pair.y;
    }
  }
  return result;
}

/// Rounds to nearest-even.
template <class T>
__device__ Run<T> to_run(const Floats& floats) {
  Run<T> run;
#pragma unroll
  for (int i = 0; i < Run<T>::words_per_run; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      run.words[i] = __float_as_uint(floats.values[i]);
    } else {
      static_assert(std::is_same_v<T, Bf16>);
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(floats.values[2 * i], floats.values[2 * i + 1]);
      run.words[i] = reinterpret_cast<const std::uint32_t&>(pair);
    }
  }
  return run;
}

template <bool Vectors, class T>
__device__ Floats load_floats(const T* source, Index count) {
  return to_floats(load_run<Vectors>(source, count));
}

template <bool Vectors, class T>
__device__ void store_floats(T* target, Index count, const Floats& floats) {
  store_run<Vectors>(target, count, to_run<T>(floats));
}

/// Returns Σ over the threads of a warp, to all of them, in a fixed order.
/// @tparam lanes  number of adjacent threads with a separate sum: a power of two, by default all 32
template <int lanes = 32, class T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

/// Returns the sum over the threads of a block, in a fixed order, to all of them. All threads must
/// call it, and their number must be a multiple of 32.
template <class T>
__device__ T block_sum(T value) {
  __shared__ T warps[32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  T total = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) total += warps[warp];
  __syncthreads();
  return total;
}

/// Returns the same address, but hides its computation from the compiler, which then adds offsets
/// to it instead of computing each address by a multiplication.
template <class T>
__device__ T* opaque(T* address) {
  asm("" : "+l"(address));
  return address;
}
/// Returns the same number, but prevents the compiler from using it in computations before this
/// point.
__device__ inline float opaque(float number) {
  asm volatile("" : "+f"(number));
  return number;
}

/// Whether vectors of 16 bytes can be read from or written to this address.
inline bool is_vector_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % sizeof(uint4) == 0;
}

/// Whether rows of this many elements can be read and written in whole runs from these addresses.
template <class... Elements>
bool rows_are_vectors(Index columns, const Elements*... addresses) {
  return columns % run_size == 0 && (... && is_vector_aligned(addresses));
}

/// Returns the threads of a block that processes a row of this many columns: one for each run, in
/// whole warps.
inline int row_threads(Index columns) {
  return static_cast<int>(
      std::clamp(round_up(ceil_divide(columns, run_size), 32), Index{32}, Index{512}));
}

inline constexpr int sum_columns = 32;
inline constexpr int sum_lanes = 32;

/// Computes target[c] += Σ over rows of rows[r, c], in a fixed order, with one block for each 32
/// columns.
template <class G>
OCTAVO_KERNEL void __launch_bounds__(sum_columns* sum_lanes)
    add_rows_kernel(const float* rows, Index count, Index columns, G* target) {
  __shared__ float lanes[sum_lanes][sum_columns];
  const int position = static_cast<int>(threadIdx.x) % sum_columns;
  const int lane = static_cast<int>(threadIdx.x) / sum_columns;
  const Index column = Index{blockIdx.x} * sum_columns + position;
  float sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (Index row = lane; row < count; row += sum_lanes) sum += rows[row * columns + column];
  }
  lanes[lane][position] = sum;
  __syncthreads();
  if (lane != 0 || column >= columns) return;
  float total = 0;
  for (int i = 0; i < sum_lanes; ++i) total += lanes[i][position];
  target[column] = G(static_cast<float>(target[column]) + total);
}

/// Enqueues target += Σ over the rows of `rows`, [count, columns].
template <class G>
void add_rows(const char* name, const float* rows, Index count, Index columns, G* target,
              const Context<Cuda>& context) {
  launch(name, add_rows_kernel<G>, ceil_divide(columns, sum_columns), sum_columns * sum_lanes, 0,
         context, rows, count, columns, target);
}

}  // namespace octavo::kernels

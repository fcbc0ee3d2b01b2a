/// @file
/// Prefetching of weights for GEMMs of few rows.
#pragma once

#include <octavo/kernels/cuda/run.cuh>

#include <cuda_pipeline.h>

namespace octavo OCTAVO_ABI::detail {

/// Outputs per warp, which share the loaded rows.
inline constexpr int few_rows_outputs = 2;

/// Number of adjacent weights that a thread reads at once: 16 bytes of BF16 or FP8, 32 of FP32.
template <class W>
struct WeightRun {
  static constexpr int parts = sizeof(W) == 1 ? 2 : 1;
  static constexpr int elements = parts * run_size;
  Run<W> runs[parts];
};

/// Prefetched groups of weights of a thread, for every output. They are stored in shared memory, so
/// that loads in flight use no registers. A thread waits only for its own loads.
/// @tparam Vectors  rows consist of whole vectors; otherwise a group is read when it is needed
template <bool Vectors, class W>
class WeightRing {
 public:
  using Weights = WeightRun<W>;
  /// Eight is slower: blocks of the next kernel then have less room to run concurrently.
  static constexpr int stages = 4;
  static constexpr int vectors = sizeof(Weights) / 16;

  /// Returns the bytes of shared memory of a block.
  OCTAVO_HOST_DEVICE static constexpr std::size_t bytes(Index threads) {
    constexpr int thread_bytes = stages * few_rows_outputs * static_cast<int>(sizeof(Weights));
    return Vectors ? static_cast<std::size_t>(threads * thread_bytes) : 0;
  }

  /// @param memory  of the block
  /// @param rows    of the weight, one for each output
  /// @param k       elements of a row
  __device__ WeightRing(uint4* memory, const W* const (&rows)[few_rows_outputs], int k)
      : slots_(memory + threadIdx.x), k_(k) {
#pragma unroll
    for (int o = 0; o < few_rows_outputs; ++o) rows_[o] = rows[o];
  }

  /// Requests the groups at a column; past the end of rows, requests nothing.
  __device__ void request(int column) {
    if constexpr (Vectors) {
      uint4* slot = place(requested_++);
      if (column < k_) {
#pragma unroll
        for (int o = 0; o < few_rows_outputs; ++o) {
#pragma unroll
          for (int i = 0; i < vectors; ++i, slot += blockDim.x) {
            constexpr int vector_elements = Weights::elements / vectors;
            __pipeline_memcpy_async(slot, rows_[o] + column + i * vector_elements, 16);
          }
        }
      }
      __pipeline_commit();
    }
  }

  /// Waits for the oldest request, made `stages` requests ago.
  /// @param column  the column of that request
  __device__ void receive(Weights (&runs)[few_rows_outputs], int column) {
    if constexpr (Vectors) {
      __pipeline_wait_prior(stages - 1);
      const uint4* slot = place(received_++);
#pragma unroll
      for (int o = 0; o < few_rows_outputs; ++o) {
#pragma unroll
        for (int i = 0; i < vectors; ++i, slot += blockDim.x) {
          const uint4 vector = *slot;
          constexpr int words = Run<W>::words_per_run;
          Run<W>& run = runs[o].runs[4 * i / words];
          const int first = 4 * i % words;
          run.words[first] = vector.x;
          run.words[first + 1] = vector.y;
          if constexpr (words == 2) {
            runs[o].runs[1].words[0] = vector.z;
            runs[o].runs[1].words[1] = vector.w;
          } else {
            run.words[first + 2] = vector.z;
            run.words[first + 3] = vector.w;
          }
        }
      }
    } else {
#pragma unroll
      for (int o = 0; o < few_rows_outputs; ++o) {
#pragma unroll
        for (int part = 0; part < Weights::parts; ++part) {
          const int place = column + part * run_size;
          runs[o].runs[part] = load_run<false>(rows_[o] + place, k_ - place);
        }
      }
    }
  }

 private:
  __device__ uint4* place(int turn) {
    constexpr int stage_size = few_rows_outputs * vectors;
    return slots_ + turn % stages * stage_size * static_cast<int>(blockDim.x);
  }

  uint4* slots_;
  const W* rows_[few_rows_outputs];
  int k_;
  int requested_ = 0;
  int received_ = 0;
};

}  // namespace octavo::detail

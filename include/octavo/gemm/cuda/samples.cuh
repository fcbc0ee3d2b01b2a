/// @file
/// Operands to try algorithms of a matrix product on. How much power a product takes, and so how
/// fast a GPU at its limit of power runs it, depends on the operands' bits: zeros run faster than
/// anything that is trained.
#pragma once

#include <octavo/gemm/cuda/product.cuh>
#include <octavo/kernels/cuda/initialize.cuh>
#include <octavo/memory/cuda/buffer.cuh>
#include <octavo/tensor/quantized_view.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace octavo::detail {

/// Elements of a product's matrices.
inline Index elements_a(const GemmKey& key) { return key.m * key.k; }
inline Index elements_b(const GemmKey& key) { return key.n * key.k; }
inline Index elements_result(const GemmKey& key) { return key.m * key.n; }

/// Scales of an operand whose `outer` rows of `k` elements are reduced.
inline Index scale_elements(GemmScales scales, Index outer, Index k) {
  switch (scales) {
    case GemmScales::none:
      return 0;
    case GemmScales::tensor:
      return scale_count<PerTensor>(outer, k);
    case GemmScales::rows_of_128:
      return scale_count<PerBlock<1, 128, float>>(outer, k);
    default:
      return scale_count<PerBlock<128, 128, float>>(outer, k);
  }
}

/// Fills a matrix with normal numbers. In 8 bits their deviation is an eighth of the format's
/// largest value, where casts that scale by the largest value of millions leave it.
inline void fill_sample(void* matrix, GemmFormat format, Index count, std::uint64_t stream,
                        const Context<Cuda>& context) {
  const auto fill = [&]<class T>(T*, float deviation) {
    const TensorView<T, 1, Cuda> view{static_cast<T*>(matrix), {count}};
    initialize_values(view, {deviation, count, {1, stream}}, context);
  };
  switch (format) {
    case GemmFormat::fp32:
      return fill(static_cast<float*>(nullptr), 1.0f);
    case GemmFormat::bf16:
      return fill(static_cast<Bf16*>(nullptr), 1.0f);
    case GemmFormat::e4m3:
      return fill(static_cast<E4M3*>(nullptr), FormatTraits<E4M3>::max / 8);
    case GemmFormat::e5m2:
      return fill(static_cast<E5M2*>(nullptr), FormatTraits<E5M2>::max / 8);
  }
}

/// The memory of a product's samples: workspace, scales, and as many sets of matrices as make one
/// set's next use find none of it in L2. What is added lies in the result, as weights' gradients
/// do.
class GemmSamples {
 public:
  /// Bytes that one set needs, with workspace and scales.
  static std::size_t least_bytes(const GemmKey& key) {
    const GemmSamples samples(key, {});
    return samples.shared_bytes() + samples.set_bytes();
  }

  /// @param memory  at least `least_bytes`, at a multiple of 256 bytes
  GemmSamples(const GemmKey& key, std::span<std::byte> memory)
      : key_(key),
        matrices_{{{key.a, elements_a(key)},
                   {key.b, elements_b(key)},
                   {key.result, elements_result(key)}}},
        scales_{scale_elements(key.scales_a, key.m, key.k),
                scale_elements(key.scales_b, key.n, key.k)},
        memory_(memory.data()) {
    constexpr std::size_t between_uses = std::size_t{256} << 20;
    constexpr std::size_t most_sets = 16;
    if (memory.size() < shared_bytes() + set_bytes()) return;
    sets_ = std::clamp((memory.size() - shared_bytes()) / set_bytes(), std::size_t{1},
                       std::min(most_sets, 1 + between_uses / set_bytes()));
  }

  /// Writes all of the memory that is used.
  /// @note enqueues; does not synchronise
  void fill(const Context<Cuda>& context) const {
    // 0x3b3b3b3b is 0.0029 in FP32.
    check(cudaMemsetAsync(memory_ + cublas_workspace_bytes, 0x3b,
                          shared_bytes() - cublas_workspace_bytes, context.stream()),
          "cudaMemsetAsync");
    std::byte* place = memory_ + shared_bytes();
    std::uint64_t stream = 0;
    for (std::size_t set = 0; set < sets_; ++set) {
      for (const Matrix& matrix : matrices_) {
        fill_sample(place, matrix.format, matrix.elements, stream++, context);
        place += matrix.bytes();
      }
    }
  }

  [[nodiscard]] GemmScaleFactors scales() const {
    if (key_.scales_a == GemmScales::none) return {};
    std::byte* const first = memory_ + cublas_workspace_bytes;
    return {reinterpret_cast<const float*>(first),
            reinterpret_cast<const float*>(first + scale_bytes(scales_[0]))};
  }

  /// The addresses of the set whose turn it is.
  GemmAddresses next() {
    std::byte* const a = memory_ + shared_bytes() + turn_ * set_bytes();
    std::byte* const b = a + matrices_[0].bytes();
    std::byte* const result = b + matrices_[1].bytes();
    turn_ = (turn_ + 1) % sets_;
    return {a, b, result, result, memory_};
  }

 private:
  static std::size_t aligned(Index bytes) {
    return static_cast<std::size_t>(round_up(bytes, Index{allocation_alignment}));
  }
  struct Matrix {
    GemmFormat format;
    Index elements;
    [[nodiscard]] std::size_t bytes() const { return aligned(elements * bytes_of(format)); }
  };
  static std::size_t scale_bytes(Index count) { return aligned(count * Index{sizeof(float)}); }
  [[nodiscard]] std::size_t shared_bytes() const {
    return cublas_workspace_bytes + scale_bytes(scales_[0]) + scale_bytes(scales_[1]);
  }
  [[nodiscard]] std::size_t set_bytes() const {
    return matrices_[0].bytes() + matrices_[1].bytes() + matrices_[2].bytes();
  }

  GemmKey key_;
  std::array<Matrix, 3> matrices_;
  std::array<Index, 2> scales_;
  std::byte* memory_;
  std::size_t sets_ = 1;
  std::size_t turn_ = 0;
};

}  // namespace octavo::detail

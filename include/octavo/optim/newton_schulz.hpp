/// @file
/// Orthogonalisation of matrices by Newton–Schulz iterations in BF16.
#pragma once

#include <octavo/gemm/symmetric_gemms.hpp>
#include <octavo/kernels/initialize.hpp>
#include <octavo/kernels/muon.hpp>
#include <octavo/memory/arena.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

namespace octavo OCTAVO_ABI {

/// Settings of the Newton–Schulz iterations X ← a · X + b · (X Xᵀ) X + c · (X Xᵀ)² X.
struct NewtonSchulzSettings {
  int iterations = 5;
  float a = 3.4445f;
  float b = -4.7750f;
  float c = 2.0315f;
  float epsilon = 1e-7f;  ///< minimum norm by which a matrix is divided
};

/// Orthogonalises a few matrices at a time, and owns the memory for it.
template <Device D>
class NewtonSchulz {
 public:
  using T = Bf16Element<D>;
  using Matrices = std::span<const TensorView<Bf16, 2, D>>;
  /// Maximum number of matrices that are orthogonalised together: their small products, which
  /// alone would leave most of a GPU idle, run at the same time.
  static constexpr std::size_t max_matrices = 8;

  /// The numbers of elements that matrices need together.
  struct Sizes {
    Index matrices = 0;
    Index squares = 0;  ///< elements of the products of matrices with their transposes

    /// Adds a matrix. Each begins at an aligned element.
    void add(Index rows, Index columns) {
      const Index side = std::min(rows, columns);
      matrices += round_up(rows * columns, allocation_alignment);
      squares += round_up(side * side, allocation_alignment);
    }
    void raise_to(const Sizes& other) {
      matrices = std::max(matrices, other.matrices);
      squares = std::max(squares, other.squares);
    }
  };

  NewtonSchulz() = default;
  /// @param most  the maximum over all calls of `orthogonalize`
  NewtonSchulz(Arena<D>& arena, const Sizes& most) {
    constexpr auto kind = MemoryKind::optimizer;
    const auto allocate = [&](Index count) { return arena.template allocate<T>(kind, count); };
    buffers_ = {is_in_place ? nullptr : allocate(most.matrices), allocate(most.matrices)};
    squares_ = {allocate(most.squares), allocate(most.squares)};
    norm_ = {arena.template allocate<StepStatus>(kind, 1), {1}};
  }

  /// Replaces each matrix U S Vᵀ by approximately U Vᵀ. The products are computed in FP32 and
  /// rounded to BF16.
  /// @param matrices  at most `max_matrices`
  /// @note enqueues; does not synchronise
  /// Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon.
  void orthogonalize(Matrices matrices, const NewtonSchulzSettings& settings,
                     const Context<D>& context) const {
    std::array<Work, max_matrices> all;
    const std::span<Work> works = std::span(all).first(matrices.size());
    Sizes begin;
    for (std::size_t i = 0; i < works.size(); ++i) {
      works[i] = work_at(begin, matrices[i], settings.iterations);
      begin.add(matrices[i].extent(0), matrices[i].extent(1));
      normalize(matrices[i], settings.epsilon, works[i].x, context);
    }
    for (int i = 0; i < settings.iterations; ++i) iterate(works, settings, context);
    if constexpr (!is_in_place) {
      for (std::size_t i = 0; i < works.size(); ++i) {
        parallel_for(matrices[i].size(), 1, context, [&](Index element) {
          matrices[i].data()[element] = Bf16(works[i].x.data()[element]);
        });
      }
    }
  }

 private:
  /// Whether the last product writes the result to the matrix itself.
  static constexpr bool is_in_place = std::is_same_v<T, Bf16>;

  /// A matrix and its products.
  struct Work {
    TensorView<T, 2, D> x, next, gram, update;

    [[nodiscard]] bool is_tall() const { return x.extent(0) > x.extent(1); }
  };

  /// Returns the memory for a matrix.
  /// @param begin  of its elements in the buffers
  [[nodiscard]] Work work_at(const Sizes& begin, TensorView<Bf16, 2, D> matrix,
                             int iterations) const {
    const Index side = std::min(matrix.extent(0), matrix.extent(1));
    T* first = nullptr;
    if constexpr (is_in_place) {
      first = matrix.data();
    } else {
      first = buffers_[0] + begin.matrices;
    }
    Work work{{first, matrix.shape()},
              {buffers_[1] + begin.matrices, matrix.shape()},
              {squares_[0] + begin.squares, {side, side}},
              {squares_[1] + begin.squares, {side, side}}};
    if (iterations % 2 != 0) std::swap(work.x, work.next);
    return work;
  }

  void normalize(TensorView<Bf16, 2, D> matrix, float epsilon, TensorView<T, 2, D> x,
                 const Context<D>& context) const {
    const TensorView<const Bf16, 1, D> elements{matrix.data(), {matrix.size()}};
    fill_zero(norm_.data(), norm_.bytes(), context);
    add_squared_norm(elements, norm_, context);
    muon_normalize<D>(elements, norm_, epsilon, {x.data(), {x.size()}}, context);
  }

  static void iterate(std::span<Work> works, const NewtonSchulzSettings& settings,
                      const Context<D>& context) {
    using Input = TensorView<const T, 2, D>;
    std::array<SymmetricGemm<T, D>, max_matrices> products;
    const auto multiply = [&](const auto& product_of) {
      for (std::size_t i = 0; i < works.size(); ++i) products[i] = product_of(works[i]);
      matmul_symmetric<T, D>(std::span(products).first(works.size()), context);
    };
    multiply([](const Work& work) -> SymmetricGemm<T, D> {
      return {work.x, work.is_tall(), {}, {work.gram, {}}};
    });
    multiply([&](const Work& work) -> SymmetricGemm<T, D> {
      return {work.gram, false, {settings.c, settings.b}, {work.update, work.gram}};
    });
    for (Work& work : works) {
      const Input x = work.x;
      const Input update = work.update;
      // Both squares are symmetric, so a tall matrix needs no transposed copy.
      matmul_bf16<T, D>(work.is_tall() ? x : update, false, work.is_tall() ? update : x, false,
                        {1.0f, settings.a}, {work.next, x}, context);
      std::swap(work.x, work.next);
    }
  }

  Array<T*, 2> buffers_{};
  Array<T*, 2> squares_{};
  TensorView<StepStatus, 1, D> norm_;
};

}  // namespace octavo

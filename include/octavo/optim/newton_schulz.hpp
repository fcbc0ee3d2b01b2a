/// @file
/// Orthogonalisation of a matrix by Newton–Schulz iterations in BF16.
#pragma once

#include <octavo/gemm/matmul.hpp>
#include <octavo/kernels/initialize.hpp>
#include <octavo/kernels/muon.hpp>
#include <octavo/memory/arena.hpp>

#include <algorithm>
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

/// The memory for orthogonalising one matrix at a time.
template <Device D>
class NewtonSchulz {
 public:
  using T = ProductValue<D>;

  NewtonSchulz() = default;
  /// @param most_elements  of a matrix
  /// @param most_side      maximum length of the shorter side of a matrix
  NewtonSchulz(Arena<D>& arena, Index most_elements, Index most_side) {
    constexpr auto kind = MemoryKind::optimizer;
    const auto take = [&](Index count) { return arena.template take<T>(kind, count); };
    matrices_ = {take(most_elements), take(most_elements)};
    squares_ = {take(most_side * most_side), take(most_side * most_side)};
    norm_ = {arena.template take<StepStatus>(kind, 1), {1}};
  }

  /// Replaces a matrix U S Vᵀ by approximately U Vᵀ. The products are computed in FP32 and rounded
  /// to BF16.
  /// @note enqueues; does not synchronise
  /// Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon.
  void orthogonalize(TensorView<Bf16, 2, D> matrix, const NewtonSchulzSettings& settings,
                     const Context<D>& context) const {
    const Index rows = matrix.extent(0);
    const Index columns = matrix.extent(1);
    const bool is_tall = rows > columns;
    const Index side = std::min(rows, columns);
    const TensorView<Bf16, 1, D> elements{matrix.data(), {matrix.size()}};
    TensorView<T, 2, D> x{matrices_[0], {rows, columns}};
    TensorView<T, 2, D> next{matrices_[1], {rows, columns}};
    const TensorView<T, 2, D> gram{squares_[0], {side, side}};
    const TensorView<T, 2, D> update{squares_[1], {side, side}};
    fill_zero(norm_.data(), norm_.bytes(), context);
    add_squared_norm(TensorView<const Bf16, 1, D>(elements), norm_, context);
    muon_normalize<D>(elements, norm_, settings.epsilon, {x.data(), {x.size()}}, context);
    using Input = TensorView<const T, 2, D>;
    const Input gram_in = gram;
    const Input update_in = update;
    for (int i = 0; i < settings.iterations; ++i) {
      const Input x_in = x;
      matmul_bf16<T, D>(x_in, is_tall, x_in, !is_tall, {}, {gram, {}}, context);
      matmul_bf16<T, D>(gram_in, false, gram_in, false, {settings.c, settings.b}, {update, gram_in},
                        context);
      // Both squares are symmetric, so a tall matrix needs no transposed copy.
      matmul_bf16<T, D>(is_tall ? x_in : update_in, false, is_tall ? update_in : x_in, false,
                        {1.0f, settings.a}, {next, x_in}, context);
      std::swap(x, next);
    }
    store(x, elements, context);
  }

 private:
  /// Copies the values, which are BF16.
  static void store(TensorView<T, 2, D> from, TensorView<Bf16, 1, D> to,
                    const Context<D>& context) {
    if constexpr (std::is_same_v<T, Bf16>) {
      copy_on_device(to.data(), from.data(), to.bytes(), context);
    } else {
      parallel_for(to.size(), 1, context, [&](Index i) { to.data()[i] = Bf16(from.data()[i]); });
    }
  }

  Array<T*, 2> matrices_{};
  Array<T*, 2> squares_{};
  TensorView<StepStatus, 1, D> norm_;
};

}  // namespace octavo

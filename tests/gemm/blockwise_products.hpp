/// @file
/// The three products of a linear layer in scales of blocks or rows, on any device, against FP64
/// products of the same quantised operands. Neighbouring blocks and rows differ in magnitude, so
/// that a scale of another gives another result; `expect_mistakes_are_noticed` proves that it would
/// be noticed.
#pragma once

#include <octavo/gemm/matmul.hpp>
#include <octavo/kernels/quantize.hpp>
#include <octavo/memory/arena.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <random>
#include <vector>

#include "kernels/quantize_reference.hpp"
#include "support/matrix.hpp"

namespace support {

using octavo::Device;
using octavo::GemmOutput;
using octavo::OperandKind;

/// Tokens, output features and input features.
struct LayerShape {
  Index tokens, out, in;
};

/// Values whose magnitude differs between neighbouring blocks of 128 along both dimensions, by 2 to
/// 2^12, is another where the blocks' rows and columns are swapped, and differs a little between
/// neighbouring rows and columns of a block, so that each 1 × 128 block has a scale of its own.
inline Matrix<Bf16> uneven_matrix(Index rows, Index columns, unsigned seed) {
  auto values = random_matrix<Bf16>(rows, columns, seed);
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) {
      const int of_block = static_cast<int>((3 * (r / 128) + 5 * (c / 128)) % 7);
      const int exponent = 2 * of_block + static_cast<int>(r % 3 + c % 2) - 8;
      values.at(r, c) = Bf16(std::ldexp(static_cast<float>(values.at(r, c)), exponent));
    }
  }
  return values;
}

/// A quantised matrix on the host: FP8 elements and the scales that belong to blocks.
struct BlockMatrix {
  int rows = 0;
  int columns = 0;
  reference::Block block;
  std::vector<double> elements;
  std::vector<float> scales;  ///< as cuBLASLt lays them out

  /// Where a product might wrongly look for the scale of an element.
  enum class Mistake { none, next_block, next_row, rows_and_columns_swapped };

  [[nodiscard]] double value(int row, int column, Mistake mistake = Mistake::none) const {
    const double element =
        elements[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) +
                 static_cast<std::size_t>(column)];
    switch (mistake) {
      case Mistake::none:
        break;
      case Mistake::next_block:
        column = (column + block.columns) % columns;
        break;
      case Mistake::next_row:
        row = (row + block.rows) % rows;
        break;
      case Mistake::rows_and_columns_swapped: {
        const int old_row = row;
        row = (column / block.columns * block.columns + row % block.columns) % rows;
        column = old_row / block.columns * block.columns % columns;
        break;
      }
    }
    const int place = reference::scale_position(reference::Recipe::current_power_of_two, block, row,
                                                column, rows, columns);
    return element * static_cast<double>(scales[static_cast<std::size_t>(place)]);
  }
};
using Mistake = BlockMatrix::Mistake;

/// result = a · bᵀ.
template <class T>
struct BlockProduct {
  const char* name;
  BlockMatrix a, b;
  std::vector<T> result;
};

/// The largest error of a product, as a share of what is allowed: half a place of a result in BF16,
/// and what the tensor cores' FP8 accumulators lose. They keep 14 bits through the four steps that
/// sum a block; blocks are added in FP32. Where a row has one scale, they may keep them to its end.
/// @param a_mistake, b_mistake  mistakes that the expected values are made with
template <class T>
double worst_share(const BlockProduct<T>& product, Mistake a_mistake = Mistake::none,
                   Mistake b_mistake = Mistake::none) {
  constexpr int step = 32;  // elements
  const int summed = std::max(128, std::min(product.a.block.columns, product.a.columns));
  const int steps = (summed + step - 1) / step;
  const double sums = steps * 0x1p-13;
  constexpr double rounding = std::is_same_v<T, float> ? 0x1p-23 : 0x1p-8;
  const auto values = [](const BlockMatrix& matrix, Mistake mistake) {
    std::vector<double> all;
    for (int row = 0; row < matrix.rows; ++row) {
      for (int column = 0; column < matrix.columns; ++column) {
        all.push_back(matrix.value(row, column, mistake));
      }
    }
    return all;
  };
  const std::vector<double> a = values(product.a, a_mistake);
  const std::vector<double> b = values(product.b, b_mistake);
  const auto k = static_cast<std::size_t>(product.a.columns);
  const auto n = static_cast<std::size_t>(product.b.rows);
  double worst = 0;
  for (std::size_t i = 0; i < product.result.size(); ++i) {
    double sum = 0;
    double magnitude = 0;
    for (std::size_t p = 0; p < k; ++p) {
      const double term = a[i / n * k + p] * b[i % n * k + p];
      sum += term;
      magnitude += std::abs(term);
    }
    const double error = std::abs(value_of(product.result[i]) - sum);
    const double share = error / (rounding * std::abs(sum) + sums * magnitude);
    worst = std::max(worst, std::isnan(share) ? INFINITY : share);
  }
  return worst;
}

/// A linear layer's operands, quantised on device `D`, and their products.
/// @tparam G  format of the weight's gradient
template <class P, class G, Device D>
class BlockwiseLayer {
 public:
  BlockwiseLayer(LayerShape shape, unsigned seed) : shape_(shape) {
    octavo::Arena<D> measuring;
    allocate(measuring);
    arena_ = octavo::Arena<D>(measuring.plan(), context_);
    allocate(arena_);
    context_.bind_workspace({workspace_, workspace_bytes()});
    quantise(x_, 0, shape.tokens, shape.in, seed);
    quantise(w_, 1, shape.out, shape.in, seed + 1);
    quantise(dy_, 2, shape.tokens, shape.out, seed + 2);
    const auto x = operand(x_, 0, shape.tokens, shape.in);
    const auto w = operand(w_, 1, shape.out, shape.in);
    const auto dy = operand(dy_, 2, shape.tokens, shape.out);
    const GemmOutput<Bf16, D> y{{y_, {shape.tokens, shape.out}}, {}};
    const GemmOutput<Bf16, D> dx{{dx_, {shape.tokens, shape.in}}, {}};
    const GemmOutput<G, D> dw{{dw_, {shape.out, shape.in}}, {}};
    (void)matmul_forward(x.row_major, w.row_major, y, context_);
    (void)matmul_input_gradient(dy.row_major, w.transposed, dx, context_);
    (void)matmul_weight_gradient(dy.transposed, x.transposed, dw, context_);
    context_.synchronize();
  }

  [[nodiscard]] BlockProduct<Bf16> forward() const {
    return {"y", read(operand(x_, 0, shape_.tokens, shape_.in).row_major),
            read(operand(w_, 1, shape_.out, shape_.in).row_major),
            download(y_, shape_.tokens * shape_.out)};
  }
  [[nodiscard]] BlockProduct<Bf16> input_gradient() const {
    return {"dx", read(operand(dy_, 2, shape_.tokens, shape_.out).row_major),
            read(operand(w_, 1, shape_.out, shape_.in).transposed),
            download(dx_, shape_.tokens * shape_.in)};
  }
  [[nodiscard]] BlockProduct<G> weight_gradient() const {
    return {"dW", read(operand(dy_, 2, shape_.tokens, shape_.out).transposed),
            read(operand(x_, 0, shape_.tokens, shape_.in).transposed),
            download(dw_, shape_.out * shape_.in)};
  }

 private:
  template <OperandKind Kind>
  using Memory = octavo::OperandMemory<P, Kind, D>;

  void allocate(octavo::Arena<D>& arena) {
    constexpr auto kind = octavo::MemoryKind::activations;
    const auto operand = [&](auto& memory, Index rows, Index columns) {
      memory.allocate_values(arena, kind, rows, columns);
      memory.allocate_row_major(arena, kind, rows, columns);
      memory.allocate_transposed(arena, kind, rows, columns);
    };
    operand(x_, shape_.tokens, shape_.in);
    operand(w_, shape_.out, shape_.in);
    operand(dy_, shape_.tokens, shape_.out);
    y_ = arena.template allocate<Bf16>(kind, shape_.tokens * shape_.out);
    dx_ = arena.template allocate<Bf16>(kind, shape_.tokens * shape_.in);
    dw_ = arena.template allocate<G>(kind, shape_.out * shape_.in);
    slots_ = arena.template allocate<octavo::OperandScaling>(octavo::MemoryKind::scaling, 3);
    workspace_ = arena.template allocate<std::byte>(octavo::MemoryKind::workspace,
                                                    static_cast<Index>(workspace_bytes()));
  }
  [[nodiscard]] std::size_t workspace_bytes() const {
    return std::max({matmul_workspace(shape_.tokens, shape_.out, shape_.in, context_),
                     matmul_workspace(shape_.tokens, shape_.in, shape_.out, context_),
                     matmul_workspace(shape_.out, shape_.in, shape_.tokens, context_)});
  }
  template <class OperandMemory>
  auto operand(const OperandMemory& memory, int slot, Index rows, Index columns) const {
    return memory.operand(rows, columns, slots_ + slot, false, {});
  }
  template <class OperandMemory>
  void quantise(const OperandMemory& memory, int slot, Index rows, Index columns, unsigned seed) {
    const Matrix<Bf16> values = uneven_matrix(rows, columns, seed);
    copy_to_device_sync(memory.values, values.elements.data(),
                        values.elements.size() * sizeof(Bf16), context_);
    quantize(operand(memory, slot, rows, columns), context_);
  }
  template <class T>
  std::vector<T> download(const T* source, Index count) const {
    std::vector<T> target(static_cast<std::size_t>(count));
    copy_to_host_sync(target.data(), source, target.size() * sizeof(T), context_);
    return target;
  }
  template <class Format, class Granularity, octavo::Layout L>
  BlockMatrix read(octavo::QuantizedView<Format, Granularity, L, D> view) const {
    constexpr reference::Format format =
        std::is_same_v<Format, octavo::E5M2> ? reference::e5m2 : reference::e4m3;
    BlockMatrix matrix{static_cast<int>(view.outer()),
                       static_cast<int>(view.inner()),
                       {Granularity::block_rows,
                        std::min(Granularity::block_columns, static_cast<int>(view.inner()))},
                       {},
                       {}};
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(view.data());
    for (const int code : download(bytes, view.outer() * view.inner())) {
      matrix.elements.push_back(reference::decode(format, code));
    }
    matrix.scales = download(view.scale_inverses(),
                             octavo::scale_count<Granularity>(view.outer(), view.inner()));
    return matrix;
  }

  LayerShape shape_;
  octavo::Context<D> context_;
  Memory<OperandKind::input> x_;
  Memory<OperandKind::weight> w_;
  Memory<OperandKind::output_gradient> dy_;
  Bf16* y_ = nullptr;
  Bf16* dx_ = nullptr;
  G* dw_ = nullptr;
  octavo::OperandScaling* slots_ = nullptr;
  std::byte* workspace_ = nullptr;
  octavo::Arena<D> arena_;
};

/// Expects that the products are those of their operands.
template <class P, class G, Device D>
void expect_products(LayerShape shape) {
  const BlockwiseLayer<P, G, D> layer(shape, 1);
  const auto expect = [&](const auto& product) {
    const double worst = worst_share(product);
    std::printf("  %3d x %3d x %3d %-2s: worst error %.3f of what is allowed\n",
                static_cast<int>(shape.tokens), static_cast<int>(shape.out),
                static_cast<int>(shape.in), product.name, worst);
    EXPECT_LE(worst, 1.0) << product.name;
  };
  expect(layer.forward());
  expect(layer.input_gradient());
  expect(layer.weight_gradient());
}

/// Expects that a product which looked for an operand's scales elsewhere would fail by far.
template <class P, Device D>
void expect_mistakes_are_noticed(LayerShape shape, std::initializer_list<Mistake> mistakes = {
                                                       Mistake::next_block, Mistake::next_row,
                                                       Mistake::rows_and_columns_swapped}) {
  const BlockwiseLayer<P, Bf16, D> layer(shape, 1);
  for (const Mistake mistake : mistakes) {
    for (const auto& product : {layer.forward(), layer.input_gradient(), layer.weight_gradient()}) {
      EXPECT_GT(worst_share(product, mistake), 10.0)
          << product.name << ", first operand, mistake " << static_cast<int>(mistake);
      EXPECT_GT(worst_share(product, Mistake::none, mistake), 10.0)
          << product.name << ", second operand, mistake " << static_cast<int>(mistake);
    }
  }
}

}  // namespace support

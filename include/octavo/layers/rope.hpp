/// @file
/// Rotary position embeddings (RoPE): the table of rotations.
#pragma once

#include <octavo/kernels/embedding.hpp>
#include <octavo/kernels/rope.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/tensor/batch.hpp>

#include <cmath>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Rotations for the rows of a batch.
template <Device D>
struct Rotations {
  TensorView<const float, 2, D> table;  ///< [positions, head_dim]: head_dim / 2 cosines, then sines
  Index period = 0;                     ///< row r uses rotation r % period
};

/// Cosines and sines for every position of a sequence.
template <Device D>
class RoPE {
 public:
  /// Allocates the table.
  /// @param batch  the largest batch
  void take(Arena<D>& arena, BatchShape batch, Index head_dim) {
    constexpr auto kind = MemoryKind::activations;
    table_ = {arena.template take<float>(kind, batch.tokens * head_dim), {batch.tokens, head_dim}};
    if (batch.most_documents == 0) return;
    rows_ = {arena.template take<float>(kind, batch.rows() * head_dim), {batch.rows(), head_dim}};
  }

  /// Fills the table and synchronises.
  /// @param frequency  `frequency(j)` is the angle by which pair j rotates per position
  template <class Frequency>
  void fill_sync(const Frequency& frequency, const Context<D>& context) {
    const Index half = table_.extent(1) / 2;
    std::vector<float> values(static_cast<std::size_t>(table_.size()));
    for (Index position = 0; position < table_.extent(0); ++position) {
      float* row = values.data() + position * 2 * half;
      for (Index j = 0; j < half; ++j) {
        const double angle = static_cast<double>(position) * frequency(j);
        row[j] = static_cast<float>(std::cos(angle));
        row[half + j] = static_cast<float>(std::sin(angle));
      }
    }
    copy_to_device_sync(table_.data(), values.data(), table_.bytes(), context);
  }

  /// Prepares the rotations for a batch's forward and backward. If documents begin inside
  /// sequences, every row receives the rotation of its position.
  /// @note enqueues; does not synchronise
  void place(const BatchView<D>& batch, const Context<D>& context) const {
    if (batch.documents.empty()) return;
    embedding_forward(batch.documents.positions, table_, rows_, context);
  }

  /// Returns the rotations of the batch that was placed last, or of any batch without documents.
  [[nodiscard]] Rotations<D> rotations(const BatchView<D>& batch) const {
    if (batch.documents.empty()) return {table_, batch.tokens};
    return {rows_, batch.rows()};
  }

 private:
  TensorView<float, 2, D> table_;  ///< [tokens, head_dim]
  TensorView<float, 2, D> rows_;   ///< [rows, head_dim]: rotations of each row of the batch
};

}  // namespace octavo

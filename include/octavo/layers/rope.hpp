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

/// Cosines and sines for every position of a sequence. Blocks with different rotations have
/// different tables: `BlockShape::rotation` is the index of a block's table.
template <Device D>
class RoPE {
 public:
  /// Allocates the tables.
  /// @param batch   the largest batch
  /// @param tables  number of different rotations
  void allocate(Arena<D>& arena, BatchShape batch, Index head_dim, int tables = 1) {
    constexpr auto kind = MemoryKind::activations;
    const auto take_rows = [&](Index rows) -> TensorView<float, 2, D> {
      return {arena.template allocate<float>(kind, rows * head_dim), {rows, head_dim}};
    };
    tables_.resize(static_cast<std::size_t>(tables));
    for (Table& table : tables_) {
      table.positions = take_rows(batch.tokens);
      if (batch.most_documents > 0) table.rows = take_rows(batch.rows());
    }
  }

  /// Returns the number of positions in a table.
  [[nodiscard]] Index positions() const { return tables_.front().positions.extent(0); }

  /// Fills a table and synchronises.
  /// @param frequency  `frequency(j)` is the angle by which pair j rotates per position
  /// @param magnitude  factor of all cosines and sines
  template <class Frequency>
  void fill_sync(const Frequency& frequency, const Context<D>& context, double magnitude = 1,
                 int index = 0) {
    const TensorView<float, 2, D> table = tables_[static_cast<std::size_t>(index)].positions;
    const Index half = table.extent(1) / 2;
    std::vector<float> values(static_cast<std::size_t>(table.size()));
    for (Index position = 0; position < table.extent(0); ++position) {
      float* row = values.data() + position * 2 * half;
      for (Index j = 0; j < half; ++j) {
        const double angle = static_cast<double>(position) * frequency(j);
        row[j] = static_cast<float>(magnitude * std::cos(angle));
        row[half + j] = static_cast<float>(magnitude * std::sin(angle));
      }
    }
    copy_to_device_sync(table.data(), values.data(), table.bytes(), context);
  }

  /// Prepares the rotations for a batch's forward and backward. If documents begin inside
  /// sequences, every row receives the rotation of its position.
  /// @note enqueues; does not synchronise
  void place(const BatchView<D>& batch, const Context<D>& context) const {
    if (batch.documents.empty()) return;
    for (const Table& table : tables_) {
      embedding_forward(batch.documents.positions, table.positions, table.rows, context);
    }
  }

  /// Returns the rotations of the batch that `place` received last. A batch without documents need
  /// not be placed.
  /// @param index  index of the table
  [[nodiscard]] Rotations<D> rotations(const BatchView<D>& batch, int index = 0) const {
    const Table& table = tables_[static_cast<std::size_t>(index)];
    if (batch.documents.empty()) return {table.positions, batch.tokens};
    return {table.rows, batch.rows()};
  }

 private:
  struct Table {
    TensorView<float, 2, D> positions;  ///< [tokens, head_dim]
    TensorView<float, 2, D> rows;       ///< [rows, head_dim]: rotations of each row of the batch
  };
  std::vector<Table> tables_;
};

}  // namespace octavo

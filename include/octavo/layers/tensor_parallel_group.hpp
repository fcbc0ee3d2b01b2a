/// @file
/// Exchange of rows between ranks that share a model's layers.
#pragma once

#include <octavo/comm/communicator.hpp>
#include <octavo/kernels/rank_sums.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/tensor/partial_view.hpp>

#include <algorithm>
#include <cstddef>

namespace octavo OCTAVO_ABI {

/// The ranks that share the layers of a model, as seen by one of them, and the memory through which
/// they exchange rows. Between layers, each rank has a shard of the rows; within a layer, it has
/// all rows of its shard of the features:
///
/// - `gather_rows` gives each rank the rows of all ranks, in rank order, so that all ranks have the
///   same bits;
/// - `sum_rows` gives each rank the sums of its rows over the terms of all ranks: an exchange
///   followed by a local sum in FP32, in rank order, with one rounding. If the sums are gathered
///   afterwards, all ranks have the same bits.
///
/// Only one exchange at a time: all layers share the memory.
template <Device D>
class TensorParallelGroup {
 public:
  TensorParallelGroup() = default;
  TensorParallelGroup(const TensorParallelGroup&) = delete;  // layers point to it
  TensorParallelGroup& operator=(const TensorParallelGroup&) = delete;

  /// Allocates memory for the rows of a batch.
  /// @param bytes  of all of a batch's rows
  void allocate(Arena<D>& arena, Index bytes) {
    bytes_ = bytes;
    terms_ = arena.template allocate<std::byte>(MemoryKind::communication, bytes);
    gathered_ = arena.template allocate<std::byte>(MemoryKind::communication, bytes);
  }

  /// Connects the group. Call it before the first exchange.
  /// @param ranks  of the group; must outlive this object
  void join(Communicator<D>& ranks) { ranks_ = &ranks; }
  /// Starts or ends a rehearsal. During a rehearsal, ranks may run different numbers of passes, so
  /// they do not exchange data: results depend only on the rank's own rows and terms.
  void rehearse(bool rehearses) { rehearses_ = rehearses; }

  [[nodiscard]] int rank() const { return ranks_->rank(); }
  [[nodiscard]] int size() const { return ranks_->size(); }

  /// Returns memory for gathered rows, valid until the next `sum_rows` or `gather_rows` to it.
  template <class T>
  [[nodiscard]] TensorView<T, 2, D> gathered(Index rows, Index columns) const {
    return {reinterpret_cast<T*>(gathered_), {rows, columns}};
  }
  /// Returns memory for this rank's terms, valid until the next terms are written.
  template <class T>
  [[nodiscard]] PartialView<T, 2, D> terms(Index rows, Index columns) const {
    return PartialView<T, 2, D>(TensorView<T, 2, D>{reinterpret_cast<T*>(terms_), {rows, columns}});
  }

  /// Returns this rank's rows of all rows.
  template <class T>
  [[nodiscard]] TensorView<T, 2, D> own_rows(TensorView<T, 2, D> all) const {
    const Index rows = all.extent(0) / size();
    return all.rows(rows * rank(), rows);
  }

  /// Gathers the rows of all ranks on each rank.
  /// @param own  [rows, columns]; may be this rank's place in `all`
  /// @param all  [size() · rows, columns]
  /// @param what  see Communicator
  template <class T>
  void gather_rows(TensorView<const T, 2, D> own, TensorView<T, 2, D> all, const char* what,
                   const Context<D>& context) const {
    check_shape("gather_rows", "all", all, {own.extent(0) * size(), own.extent(1)});
    if (rehearses_) {
      const TensorView<T, 2, D> place = own_rows(all);
      if (place.data() != own.data()) {
        copy_on_device(place.data(), own.data(), own.bytes(), context);
      }
      return;
    }
    ranks_->all_gather(bytes_of<const std::byte>(own), bytes_of<std::byte>(all), what, context);
  }

  /// Gathers the data of all ranks on each rank, in rank order: as many of the first bytes as there
  /// is memory for, valid until the next exchange.
  [[nodiscard]] TensorView<const std::byte, 1, D> gather_pieces(
      TensorView<const std::byte, 1, D> own, const char* what, const Context<D>& context) const {
    const Index bytes = std::min(own.size(), bytes_ / size());
    const TensorView<std::byte, 1, D> all{gathered_, {size() * bytes}};
    ranks_->all_gather(own.rows(0, bytes), all, what, context);
    return all;
  }

  /// Computes sum = Σ over ranks of this rank's rows of their terms, plus sum if `accumulate`.
  /// @param terms  [size() · rows, columns]
  /// @param sum    [rows, columns]
  template <class T>
  void sum_rows(PartialView<T, 2, D> terms, TensorView<T, 2, D> sum, bool accumulate,
                const char* what, const Context<D>& context) const {
    const TensorView<T, 2, D> own = terms.terms();
    check_shape("sum_rows", "terms", own, {sum.extent(0) * size(), sum.extent(1)});
    const TensorView<T, 2, D> all = gathered<T>(size(), sum.size());
    if (rehearses_) {
      copy_on_device(all.data(), own.data(), own.bytes(), context);
    } else {
      ranks_->all_to_all(bytes_of<const std::byte>(own), bytes_of<std::byte>(all), what, context);
    }
    const RankParts<T, D> parts(all, own.data() + rank() * sum.size(), rank());
    sum_parts(parts, TensorView<T, 1, D>{sum.data(), {sum.size()}}, accumulate, context);
  }

 private:
  template <class Byte, class T, int Rank>
  static TensorView<Byte, 1, D> bytes_of(TensorView<T, Rank, D> view) {
    return {reinterpret_cast<Byte*>(view.data()), {static_cast<Index>(view.bytes())}};
  }

  Communicator<D>* ranks_ = nullptr;
  std::byte* terms_ = nullptr;
  std::byte* gathered_ = nullptr;
  Index bytes_ = 0;  ///< of each
  bool rehearses_ = false;
};

}  // namespace octavo

/// @file
/// The shape of a batch, and where documents lie in its rows.
#pragma once

#include <octavo/tensor/tensor_view.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>

namespace octavo OCTAVO_ABI {

/// How the rows of a batch divide into sequences, and in how many documents at most.
struct BatchShape {
  Index sequences = 0;
  Index tokens = 0;  ///< in a sequence
  /// Most documents of a batch, of all its sequences; 0: batches do not say where documents begin,
  /// and each sequence is one.
  Index most_documents = 0;

  [[nodiscard]] constexpr Index rows() const { return sequences * tokens; }
  friend constexpr bool operator==(const BatchShape&, const BatchShape&) = default;
};

/// The batch with sequences as much longer as it takes until its rows are a multiple of `multiple`.
[[nodiscard]] constexpr BatchShape with_whole_rows(BatchShape batch, Index multiple) {
  if (batch.sequences <= 0 || batch.tokens <= 0) return batch;
  batch.tokens = round_up(batch.tokens, multiple / std::gcd(multiple, batch.sequences));
  return batch;
}

/// Where documents lie in the rows of a batch, on a device; empty where each sequence is one, or
/// goes on with one, and then has positions at most. It differs from batch to batch, so it lies in
/// the device's memory, in tables of fixed sizes.
template <Device D>
struct Documents {
  /// [most documents + 1]: the first rows of all documents, in order; where documents are fewer,
  /// the number of rows fills the rest.
  TensorView<const std::int32_t, 1, D> begins;
  TensorView<const std::int32_t, 1, D> positions;  ///< [rows]: rows of its document before each
  TensorView<const std::int32_t, 1, D> followers;  ///< [rows]: rows of its document after each

  [[nodiscard]] bool empty() const { return begins.empty(); }
};

/// The place of each row in its document, for kernels: the first has position 0.
struct RowPositions {
  const std::int32_t* rows = nullptr;  ///< of each row; null where each sequence is a document
  Index tokens = 1;                    ///< in a sequence

  [[nodiscard]] OCTAVO_HOST_DEVICE Index operator()(Index row) const {
    return rows == nullptr ? row % tokens : Index{rows[row]};
  }
};

/// The rows of a batch as layers see them: a shape, and where its documents lie.
template <Device D>
struct BatchView : BatchShape {
  BatchView() = default;
  /// Each sequence is one document.
  BatchView(BatchShape batch)  // NOLINT: a shape alone says all of it
      : BatchShape{batch.sequences, batch.tokens, 0} {}
  BatchView(BatchShape batch, const Documents<D>& where) : BatchShape(batch), documents(where) {}
  /// Tokens that go on with a text, of which others came before.
  /// @param positions  [tokens]: of each in the text, on the device
  explicit BatchView(TensorView<const std::int32_t, 1, D> positions)
      : BatchShape{1, positions.extent(0), 0}, documents{{}, positions, {}} {}

  /// For learned positions and their like; on `D`.
  [[nodiscard]] RowPositions positions() const { return {documents.positions.data(), tokens}; }

  Documents<D> documents;
};

/// What a model trains on or is evaluated with, on its device.
template <Device D>
struct DeviceBatch {
  TensorView<const std::int32_t, 1, D> tokens;   ///< [rows]; sequences one after another
  TensorView<const std::int32_t, 1, D> targets;  ///< [rows]; below 0: ignored
  Documents<D> documents{};                      ///< empty for a shape without documents
};

namespace detail {

/// Where each table of `Documents` begins in the elements that hold all of them.
struct DocumentTablePlaces {
  Index positions, followers, elements;

  explicit constexpr DocumentTablePlaces(BatchShape shape)
      : positions(round_up(shape.most_documents + 1, aligned)),
        followers(positions + round_up(shape.rows(), aligned)),
        elements(followers + round_up(shape.rows(), aligned)) {}

 private:
  static constexpr Index aligned = 64;
};

}  // namespace detail

/// Elements of the tables of `Documents`; 0 for a shape without documents.
[[nodiscard]] constexpr Index document_table_elements(BatchShape shape) {
  return shape.most_documents == 0 ? 0 : detail::DocumentTablePlaces(shape).elements;
}

/// The documents that `tables` says; empty for a shape without documents.
/// @param tables  `document_table_elements(shape)` elements of `write_document_tables`, on `D`
template <Device D>
[[nodiscard]] Documents<D> documents_over(const std::int32_t* tables, BatchShape shape) {
  if (shape.most_documents == 0) return {};
  const detail::DocumentTablePlaces places(shape);
  return {{tables, {shape.most_documents + 1}},
          {tables + places.positions, {shape.rows()}},
          {tables + places.followers, {shape.rows()}}};
}

/// A batch has more documents than its shape allows.
class TooManyDocumentsError : public ConfigError {
 public:
  /// @param count  of the batch's documents, those that begin with a sequence included
  TooManyDocumentsError(Index count, BatchShape shape)
      : ConfigError(message("a batch has ", count,
                            " documents, those that begin with a sequence included, but at most ",
                            shape.most_documents,
                            " are allowed; raise most_documents of the batch's shape")),
        count_(count) {}

  [[nodiscard]] Index count() const { return count_; }

 private:
  Index count_;
};

/// The documents of the micro-batch that has most, those that begin with a sequence included.
/// @param begins         tokens of all micro-batches at which documents begin, ascending; a
///                       sequence's first begins one, listed or not
/// @param micro_batches  of this shape
[[nodiscard]] inline Index most_documents_of(std::span<const Index> begins, Index micro_batches,
                                             BatchShape shape) {
  Index most = 0;
  auto next = begins.begin();
  for (Index m = 0; m < micro_batches; ++m) {
    Index count = shape.sequences;
    for (; next != begins.end() && *next < (m + 1) * shape.rows(); ++next) {
      if (*next % shape.tokens != 0) ++count;
    }
    most = std::max(most, count);
  }
  return most;
}

/// Throws unless a batch of this shape can have so many documents.
/// @throws ConfigError
inline void check_most_documents(BatchShape shape) {
  const Index most = shape.most_documents;
  require<ConfigError>(most == 0 || (most >= shape.sequences && most <= shape.rows()),
                       "most_documents is ", most, ", but ", shape.sequences, " sequences of ",
                       shape.tokens, " tokens are ", shape.sequences, " to ", shape.rows(),
                       " documents; give a number of these, or 0 where each sequence is one");
  require<ConfigError>(most == 0 || shape.rows() <= std::numeric_limits<std::int32_t>::max(),
                       "a batch with documents has ", shape.rows(),
                       " rows; make it smaller than 2^31");
}

/// Writes the tables of one batch, on the host.
/// @param begins  rows in which documents begin, ascending; a sequence's first row begins one,
///                listed or not
/// @param first   the number that `begins` has for the batch's first row; others are passed over
/// @param tables  `document_table_elements(shape)` elements, written
/// @throws TooManyDocumentsError  if there are more documents than the shape allows
inline void write_document_tables(std::span<const Index> begins, Index first, BatchShape shape,
                                  std::span<std::int32_t> tables) {
  const detail::DocumentTablePlaces places(shape);
  const Index rows = shape.rows();
  const auto narrow = [](Index value) { return static_cast<std::int32_t>(value); };
  const auto at = [&](Index place) -> std::int32_t& {
    return tables[static_cast<std::size_t>(place)];
  };
  Index count = 0;
  auto next = begins.begin();
  for (Index begin = 0; begin < rows; ++count) {
    while (next != begins.end() && *next - first <= begin) ++next;
    Index end = (begin / shape.tokens + 1) * shape.tokens;
    if (next != begins.end()) end = std::min(end, *next - first);
    if (count < shape.most_documents) at(count) = narrow(begin);
    for (Index row = begin; row < end; ++row) {
      at(places.positions + row) = narrow(row - begin);
      at(places.followers + row) = narrow(end - 1 - row);
    }
    begin = end;
  }
  if (count > shape.most_documents) throw TooManyDocumentsError(count, shape);
  for (Index i = count; i < places.positions; ++i) at(i) = narrow(rows);
}

}  // namespace octavo

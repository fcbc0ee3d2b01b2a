/// @file
/// The shape of a batch, and the documents in its rows.
#pragma once

#include <octavo/tensor/tensor_view.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>

namespace octavo OCTAVO_ABI {

/// The division of a batch's rows into sequences, and the maximum number of documents.
struct BatchShape {
  Index sequences = 0;
  Index tokens = 0;  ///< per sequence
  /// Maximum number of documents in a batch, over all its sequences; 0: batches do not mark
  /// documents, and each sequence is one document.
  Index most_documents = 0;

  [[nodiscard]] constexpr Index rows() const { return sequences * tokens; }
  friend constexpr bool operator==(const BatchShape&, const BatchShape&) = default;
};

/// Returns the batch shape with sequences lengthened until the number of rows is a multiple of
/// `multiple`.
[[nodiscard]] constexpr BatchShape with_whole_rows(BatchShape batch, Index multiple) {
  if (batch.sequences <= 0 || batch.tokens <= 0) return batch;
  batch.tokens = round_up(batch.tokens, multiple / std::gcd(multiple, batch.sequences));
  return batch;
}

/// The documents in the rows of a batch, on a device. Empty if each sequence is one document; if
/// sequences continue a text, only positions may be set. The documents differ between batches, so
/// they are stored in device memory, in tables of fixed sizes.
template <Device D>
struct Documents {
  /// [maximum documents + 1]: the first rows of all documents, in order; unused entries are set to
  /// the number of rows.
  TensorView<const std::int32_t, 1, D> begins;
  TensorView<const std::int32_t, 1, D> positions;  ///< [rows]: rows of its document before each row
  TensorView<const std::int32_t, 1, D> followers;  ///< [rows]: rows of its document after each row

  [[nodiscard]] bool empty() const { return begins.empty(); }
};

/// The position of each row in its document, for kernels; the first row has position 0.
struct RowPositions {
  const std::int32_t* rows = nullptr;  ///< of each row; null if each sequence is a document
  Index tokens = 1;                    ///< per sequence

  [[nodiscard]] OCTAVO_HOST_DEVICE Index operator()(Index row) const {
    return rows == nullptr ? row % tokens : Index{rows[row]};
  }
};

/// The rows of a batch as seen by layers: a shape and its documents.
template <Device D>
struct BatchView : BatchShape {
  BatchView() = default;
  /// Each sequence is one document.
  BatchView(BatchShape batch)  // NOLINT: a shape suffices
      : BatchShape{batch.sequences, batch.tokens, 0} {}
  BatchView(BatchShape batch, const Documents<D>& where) : BatchShape(batch), documents(where) {}
  /// Tokens that continue a text.
  /// @param positions  [tokens]: position of each token in the text, on the device
  explicit BatchView(TensorView<const std::int32_t, 1, D> positions)
      : BatchShape{1, positions.extent(0), 0}, documents{{}, positions, {}} {}

  /// Returns positions for kernels such as learned positions; on `D`.
  [[nodiscard]] RowPositions positions() const { return {documents.positions.data(), tokens}; }

  Documents<D> documents;
};

/// A batch for training or evaluation, on its device.
template <Device D>
struct DeviceBatch {
  TensorView<const std::int32_t, 1, D> tokens;   ///< [rows]; consecutive sequences
  TensorView<const std::int32_t, 1, D> targets;  ///< [rows]; ignored if negative
  Documents<D> documents{};                      ///< empty for a shape without documents
  Index padding = 0;  ///< rows at the end of each sequence that only pad it
};

namespace detail {

/// Offsets of the tables of `Documents` within one array of elements.
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

/// Returns the number of elements of the tables of `Documents`; 0 for a shape without documents.
[[nodiscard]] constexpr Index document_table_elements(BatchShape shape) {
  return shape.most_documents == 0 ? 0 : detail::DocumentTablePlaces(shape).elements;
}

/// Returns the documents described by `tables`; empty for a shape without documents.
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
  /// @param count  of the batch's documents, including those at the start of a sequence
  TooManyDocumentsError(Index count, BatchShape shape)
      : ConfigError(message("a batch has ", count,
                            " documents, including those that begin with a sequence, but at most ",
                            shape.most_documents,
                            " are allowed; raise most_documents of the batch's shape")),
        count_(count) {}

  [[nodiscard]] Index count() const { return count_; }

 private:
  Index count_;
};

/// Returns the number of documents of the micro-batch that has the most, including those at the
/// start of a sequence.
/// @param begins         tokens of all micro-batches at which documents begin, ascending; the first
///                       token of a sequence always begins one, whether listed or not
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

/// Throws unless a batch of this shape can have that many documents.
/// @throws ConfigError
inline void check_most_documents(BatchShape shape) {
  const Index most = shape.most_documents;
  require<ConfigError>(
      most == 0 || (most >= shape.sequences && most <= shape.rows()), "most_documents is ", most,
      ", but ", shape.sequences, " sequences of ", shape.tokens, " tokens allow ", shape.sequences,
      " to ", shape.rows(),
      " documents; set a number in this range, or 0 if each sequence is one document");
  require<ConfigError>(most == 0 || shape.rows() <= std::numeric_limits<std::int32_t>::max(),
                       "a batch with documents has ", shape.rows(),
                       " rows; make it smaller than 2^31");
}

/// Writes the tables of one batch, on the host.
/// @param begins  rows in which documents begin, ascending; a sequence's first row always begins
///                one, whether listed or not
/// @param first   the number in `begins` of the batch's first row; entries outside the batch are
///                skipped
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

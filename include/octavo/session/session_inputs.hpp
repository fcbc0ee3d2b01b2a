/// @file
/// The inputs of a session's step: how they are checked and copied to the device.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/kernels/step_status.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/memory/buffer.hpp>
#include <octavo/parallel/batch.hpp>
#include <octavo/session/training_session.hpp>
#include <octavo/tensor/batch.hpp>

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

inline void check_token(std::int32_t token, Index vocabulary) {
  require<ConfigError>(token >= 0 && token < vocabulary, "token ", token,
                       " is outside the vocabulary of ", vocabulary,
                       "; use the tokenizer of this model");
}

inline void check_documents(std::span<const Index> documents, Index tokens, BatchShape shape) {
  require<ConfigError>(documents.empty() || shape.most_documents > 0, "the batch ",
                       "marks documents, but most_documents of the session's batch shape is 0; "
                       "set it to the maximum number of documents");
  if (documents.empty()) return;
  const Index outside = documents.front() < 0 ? documents.front() : documents.back();
  require<ConfigError>(documents.front() >= 0 && documents.back() < tokens,
                       "a document begins at token ", outside, ", but the batch has tokens 0 to ",
                       tokens - 1);
  const auto wrong = std::adjacent_find(documents.begin(), documents.end(), std::greater_equal<>());
  if (wrong == documents.end()) return;
  throw ConfigError(message("documents begin at tokens ", wrong[0], " and then ", wrong[1],
                            "; pass ascending positions, each once"));
}

/// @throws ShapeError   for a wrong number of tokens
/// @throws ConfigError  for a token outside the vocabulary, or invalid documents
inline void check_batch(const Batch& batch, Index micro_batches, BatchShape shape,
                        Index vocabulary) {
  const auto& [tokens, targets, documents] = batch;
  const Index expected = micro_batches * shape.rows();
  require<ShapeError>(
      tokens.size() == static_cast<std::size_t>(expected) && targets.size() == tokens.size(),
      "got ", tokens.size(), " tokens and ", targets.size(), " targets, but ", expected,
      " of each are needed");
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    require<ConfigError>(tokens[i] >= 0 && tokens[i] < vocabulary && targets[i] < vocabulary,
                         "token ", tokens[i], " or target ", targets[i], " at position ", i,
                         " is outside the vocabulary of ", vocabulary,
                         "; use the tokenizer of this model");
  }
  check_documents(documents, expected, shape);
}

/// Memory for a session's steps and evaluations, except that of its model.
template <Device D>
struct SessionBuffers {
  SessionBuffers() = default;
  /// @param options  with a batch of the shape in which it runs
  SessionBuffers(Arena<D>& arena, const SessionOptions& options) : shape(options.batch) {
    constexpr auto kind = MemoryKind::activations;
    const Index rows = options.batch.rows();
    const Index all = rows * options.micro_batches;
    tokens = {arena.template allocate<std::int32_t>(kind, all), {all}};
    targets = {arena.template allocate<std::int32_t>(kind, all), {all}};
    const Index tables = document_table_elements(options.batch) * options.micro_batches;
    document_tables = {arena.template allocate<std::int32_t>(kind, tables), {tables}};
    gradient_scale = {arena.template allocate<float>(kind, 1), {1}};
    losses = {arena.template allocate<float>(kind, rows), {rows}};
    status = {arena.template allocate<StepStatus>(kind, 1), {1}};
    limits = {arena.template allocate<StepLimits>(kind, 1), {1}};
    hash = {arena.template allocate<std::uint64_t>(kind, 1), {1}};
  }

  [[nodiscard]] std::size_t staged_bytes() const {
    return tokens.bytes() + targets.bytes() + document_tables.bytes() + gradient_scale.bytes() +
           limits.bytes();
  }

  BatchShape shape;                        ///< of a micro-batch as it runs
  TensorView<std::int32_t, 1, D> tokens;   ///< [micro_batches · rows]
  TensorView<std::int32_t, 1, D> targets;  ///< [micro_batches · rows]
  /// [micro_batches · elements of a batch's tables]; see documents_over
  TensorView<std::int32_t, 1, D> document_tables;
  TensorView<float, 1, D> gradient_scale;  ///< [1]: 1 / number of targets in the step, over all
                                           ///< ranks
  TensorView<float, 1, D> losses;          ///< [rows]
  TensorView<StepStatus, 1, D> status;     ///< [1]
  TensorView<StepLimits, 1, D> limits;     ///< [1]
  TensorView<std::uint64_t, 1, D> hash;    ///< [1], of weights
};

/// Copies batches to the device. The device has finished reading the previous inputs by then: each
/// call of a session that copies inputs waits for the device before it returns or throws.
template <Device D>
class SessionInputs {
 public:
  /// @param sequence_length  of the batches that are passed. If sequences run longer, each is
  /// padded with its first tokens, without targets
  /// @param others  bytes that other objects copy with a step's inputs
  SessionInputs(const SessionBuffers<D>& buffers, Index sequence_length, std::size_t others,
                const Context<D>& context)
      : buffers_(buffers),
        shape_(buffers.shape),
        sequence_length_(sequence_length),
        document_tables_(static_cast<std::size_t>(buffers.document_tables.size())),
        staging_(buffers.staged_bytes() + others, context) {}

  void copy_tokens(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                   const Context<D>& context) {
    staging_.begin();
    staging_.copy(buffers_.tokens.data(), tokens.data(), tokens.size_bytes(), context);
    staging_.copy(buffers_.targets.data(), targets.data(), targets.size_bytes(), context);
  }

  /// Copies as many micro-batches as the batch has. Also copies document boundaries, so one
  /// recording of the step is valid for all batches.
  void copy_batch(const Batch& given, const Context<D>& context) {
    const Batch batch = as_it_runs(given);
    const auto elements = static_cast<std::size_t>(document_table_elements(shape_));
    const std::span<std::int32_t> tables(document_tables_);
    std::size_t used = 0;
    for (Index row = 0; elements != 0 && row < static_cast<Index>(batch.tokens.size());
         row += shape_.rows(), used += elements) {
      write_document_tables(batch.documents, row, shape_, tables.subspan(used, elements));
    }
    copy_tokens(batch.tokens, batch.targets, context);
    staging_.copy(buffers_.document_tables.data(), tables.data(), used * sizeof(std::int32_t),
                  context);
  }

  /// Copies the scale to the device, so that one recording of the step is valid for every number of
  /// targets.
  void copy_gradient_scale(Index targets, const Context<D>& context) {
    const float scale = 1.0f / static_cast<float>(std::max<Index>(1, targets));
    staging_.copy(buffers_.gradient_scale.data(), &scale, sizeof(scale), context);
  }

  /// Copies the limits to the device, for the same reason.
  void copy_limits(const StepLimits& limits, const Context<D>& context) {
    staging_.copy(buffers_.limits.data(), &limits, sizeof(limits), context);
  }

  [[nodiscard]] DeviceBatch<D> micro_batch(Index number) const {
    const Index begin = number * shape_.rows();
    const Index tables = number * document_table_elements(shape_);
    return {buffers_.tokens.rows(begin, shape_.rows()), buffers_.targets.rows(begin, shape_.rows()),
            documents_over<D>(buffers_.document_tables.data() + tables, shape_),
            shape_.tokens - sequence_length_};
  }

  /// Copies the losses of the rows that were passed, without padding.
  /// @param losses  one for each row of a micro-batch without padding
  void copy_losses_sync(std::span<float> losses, const Context<D>& context) const {
    for (Index i = 0; i < shape_.sequences; ++i) {
      const Index count = sequence_length_;
      copy_to_host_sync(losses.data() + i * count, buffers_.losses.data() + i * shape_.tokens,
                        static_cast<std::size_t>(count) * sizeof(float), context);
    }
  }

  /// Returns the staging memory, for other data that is copied with a step's inputs.
  [[nodiscard]] Staging<D>& staging() { return staging_; }

 private:
  /// Returns the batch with sequences of the length in which they run; this object owns the padded
  /// data.
  Batch as_it_runs(const Batch& given) {
    if (sequence_length_ == shape_.tokens) return given;
    const auto length = static_cast<std::size_t>(sequence_length_);
    const auto run_length = static_cast<std::size_t>(shape_.tokens);
    const std::size_t size = given.tokens.size() / length * run_length;
    tokens_.resize(size);
    targets_.resize(size);
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t sequence = i / run_length * length;
      const std::size_t token = i % run_length;
      tokens_[i] = given.tokens[sequence + token % length];
      targets_[i] = token < length ? given.targets[sequence + token] : -1;
    }
    documents_.assign(given.documents.begin(), given.documents.end());
    for (Index& begin : documents_) {
      begin = begin / sequence_length_ * shape_.tokens + begin % sequence_length_;
    }
    return {tokens_, targets_, documents_};
  }

  SessionBuffers<D> buffers_;
  BatchShape shape_;
  Index sequence_length_;
  std::vector<std::int32_t> tokens_, targets_;  ///< as they run, if that is longer
  std::vector<Index> documents_;
  std::vector<std::int32_t> document_tables_;  ///< being copied to the device
  Staging<D> staging_;
};

}  // namespace octavo OCTAVO_ABI::detail

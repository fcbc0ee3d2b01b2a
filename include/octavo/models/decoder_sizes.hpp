/// @file
/// Sizes of a decoder that do not depend on compile-time shapes, shared by decoders and by plans of
/// shapes known only at run time.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/core/error.hpp>
#include <octavo/gemm/manifest.hpp>
#include <octavo/gemm/matmul.hpp>
#include <octavo/kernels/bias.hpp>
#include <octavo/kernels/embedding.hpp>
#include <octavo/kernels/quantize.hpp>
#include <octavo/layers/experts_linear.hpp>
#include <octavo/layers/shapes.hpp>
#include <octavo/tensor/batch.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>

namespace octavo OCTAVO_ABI::detail {

/// Returns the shape in which batches run: see `Decoder::run_shape`.
/// @param needed   must divide the number of rows
/// @param longest  maximum sequence length in tokens
template <Device D>
constexpr BatchShape decoder_run_shape(BatchShape batch, Index needed, Index longest) {
  const BatchShape shape = with_whole_rows(batch, needed);
  if (shape.tokens > longest) return batch;
  const BatchShape faster = with_whole_rows(shape, std::lcm(Index{64}, needed));
  const bool is_faster = std::is_same_v<D, Cuda> && faster.tokens <= longest &&
                         (faster.tokens - shape.tokens) * 64 <= shape.tokens;
  return is_faster ? faster : shape;
}

/// Checks the shape of a batch.
/// @param name     of the model
/// @param longest  maximum sequence length in tokens
/// @throws ConfigError  if the batch or sequence length is 0, the batch has 2^31 rows or more, or a
///                      sequence is longer than the model has positions for
inline void check_decoder_batch(BatchShape batch, const std::string& name, Index longest) {
  require<ConfigError>(batch.sequences > 0, "sequences must be at least 1, but is ",
                       batch.sequences, "; pass at least 1 sequence per batch");
  require<ConfigError>(batch.tokens > 0, "the sequence length must be at least 1, but is ",
                       batch.tokens, "; pass at least 1 token");
  // The sizes of tensors would overflow.
  require<ConfigError>(batch.sequences <= std::numeric_limits<std::int32_t>::max() / batch.tokens,
                       "a batch of ", batch.sequences, " sequences of ", batch.tokens,
                       " tokens has 2^31 rows or more; reduce the batch or the sequence length");
  require<ConfigError>(batch.tokens <= longest, "the sequence length is ", batch.tokens, ", but ",
                       name, " has positions for ", longest, " tokens; shorten the sequences");
  check_most_documents(batch);
}

/// Returns the number of tokens whose logits exist at once.
/// @param given              0: choose one
/// @param padded_vocabulary  in rows
/// @param rows               of a batch
/// @param head_is_quantized  then larger chunks are faster: benchmarks/results/head-chunk-h200.md
constexpr Index decoder_head_chunk(Index given, Index padded_vocabulary, Index rows,
                                   bool head_is_quantized) {
  const Index chunk_elements = Index{1} << (head_is_quantized ? 29 : 28);
  if (given == 0) given = std::max(Index{128}, chunk_elements / padded_vocabulary / 128 * 128);
  return std::min(given, rows);
}

/// Checks the token count: weight-gradient GEMMs reduce over tokens, in FP8 16 at a time.
/// @param quantizes           whether some layer runs in FP8
/// @param head_is_quantized   whether the head does
/// @throws ConfigError  if they cannot reduce that number of tokens
inline void check_reduced_tokens(BatchShape batch, Index head_chunk, bool quantizes,
                                 bool head_is_quantized) {
  require<ConfigError>(!quantizes || batch.rows() % 16 == 0, "the batch has ", batch.sequences,
                       " x ", batch.tokens, " = ", batch.rows(),
                       " tokens, but FP8 GEMMs need a multiple of 16; change the batch or the "
                       "sequence length, or lay the model out for run_shape(batch)");
  require<ConfigError>(!head_is_quantized || head_chunk % 16 == 0,
                       "the head chunk must be a multiple of 16 tokens for an FP8 head, but is ",
                       head_chunk, "; change head_chunk");
}

/// Returns the bytes of workspace that a decoder's operations need.
/// @tparam T  format of activations
/// @param blocks   the shapes of all kinds of blocks
/// @param forward  of the attention of all blocks
template <class T, Device D>
std::size_t decoder_workspace(const Manifest& manifest, std::span<const BlockShape> blocks,
                              AttentionForward forward, BatchShape batch, Index head_chunk,
                              const DeviceLimits<D>& limits) {
  const Index rows = batch.rows();
  std::size_t bytes = embedding_workspace(rows);
  for (const BlockShape& block : blocks) {
    bytes = std::max(bytes,
                     attention_workspace<T>(attention_shape(block.with(forward), batch), limits));
  }
  for (const GemmEntry& gemm : manifest.entries()) {
    if (gemm.experts != 0) {
      bytes = std::max(bytes, experts_workspace(gemm, rows, limits));
      continue;
    }
    const Index tokens = gemm.is_head ? head_chunk : rows;
    for (const auto& [m, n, k] :
         {std::array{tokens, gemm.out, gemm.in}, std::array{tokens, gemm.in, gemm.out},
          std::array{gemm.out, gemm.in, tokens}}) {
      bytes = std::max(bytes, gemm.emulated ? emulated_matmul_workspace(m, n, k, limits)
                                            : matmul_workspace(m, n, k, limits));
    }
    Index workspace_of_cast =
        gemm.bias ? static_cast<Index>(column_sums_workspace(rows, gemm.out)) : 0;
    if (gemm.scales_a == GemmScales::row) {
      workspace_of_cast =
          round_up(workspace_of_cast, 256) +
          static_cast<Index>(row_amaxes_workspace(rows, std::max(gemm.in, gemm.out)));
    }
    bytes = std::max(bytes, static_cast<std::size_t>(workspace_of_cast));
  }
  return bytes;
}

}  // namespace octavo::detail

/// @file
/// Options and facts that are common to all models.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/layers/lora_options.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/layers/shapes.hpp>

#include <string>

namespace octavo OCTAVO_ABI {

/// How long quantised copies of weights are kept. Both choices give the same bits.
enum class WeightCopies {
  kept,    ///< both layouts of all weights, computed once per step
  remade,  ///< computed for each GEMM, in memory that all weights share
};

/// Run-time options of a model. A session sets all of them except `recompute`, `head_chunk`,
/// `weight_copies` and `lora` from its own options.
struct ModelOptions {
  Recompute recompute = Recompute::none;
  /// Whether activations that only `Recompute::block` drops are kept in host memory between a
  /// block's forward and its backward: queries, keys and values, the attention's output and the
  /// residual stream within a block. The device then has only `activation_buffers` buffers for one
  /// block each. Has no use with `Recompute::block`, which recomputes these activations.
  bool offload_activations = false;
  /// Tokens whose logits exist at once; 0 chooses a number that keeps the logits small.
  Index head_chunk = 0;
  WeightCopies weight_copies = WeightCopies::kept;
  /// Whether weight gradients share memory with the activations of later layers, which the backward
  /// has already used. Requires that each micro-batch overwrites the gradients, which sessions
  /// ensure.
  bool gradients_share_memory = false;
  /// Whether weights exist only while a stage reads them (see `StageHooks`). Flat parameters then
  /// share memory: at any time, those of two blocks exist, and those of either the embedding or the
  /// head.
  bool weights_are_gathered = false;
  /// Whether gradients exist only from a stage's backward until their memory is reused (see
  /// `StageHooks::before_backward`). Gradients then share memory as weights do with
  /// `weights_are_gathered`.
  bool gradients_are_sent = false;
  /// Whether ranks cast their own shards of the block weights that linear layers cast with one
  /// scale, and gather FP8 values: see `FlatParameters::fp8_values`.
  bool gather_weights_in_fp8 = false;
  /// The size of flat parameters is a multiple of this number of elements, so that all ranks have
  /// shards of the same size.
  Index flat_multiple = allocation_alignment;
  /// This rank's index in the group that shares the model's layers; see TensorParallel.
  int tensor_rank = 0;
  /// This rank's index among those with other micro-batches, whose stochastic rounding draws other
  /// numbers.
  int data_rank = 0;
  /// Adapter options of a model in precision `Lora<…>`; ignored by others.
  LoraOptions lora{};
};

/// Facts about a model that programs report.
struct ModelFacts {
  std::string name{};           ///< of the shape, such as "llama3_8b"
  Index vocabulary = 0;         ///< token IDs are in [0, vocabulary)
  Index parameters = 0;         ///< without padding
  Index multiplying = 0;        ///< parameters that each token is multiplied by
  Index attention_columns = 0;  ///< summed over all blocks
  Index frozen = 0;             ///< parameters that are not trained
  Index window = 0;             ///< sliding window of attention in some blocks; 0: none
  Index windowed_columns = 0;   ///< `attention_columns` of the blocks with a window

  [[nodiscard]] Index trained() const { return parameters - frozen; }

  /// Returns the floating-point operations per training token: 6 for each weight of a GEMM (4 if
  /// it is frozen), plus causal attention over sequences of this many tokens.
  [[nodiscard]] double training_flops_per_token(Index sequence) const {
    const double attention = 12.0 * attended_columns(sequence);
    const auto weights = static_cast<double>(multiplying);
    if (frozen == 0) return 6.0 * weights + attention;
    return 4.0 * weights + 6.0 * static_cast<double>(trained()) + attention;
  }

  /// Returns the attention columns of all blocks, each multiplied by the mean number of tokens that
  /// a token of a sequence attends to.
  [[nodiscard]] double attended_columns(Index sequence) const {
    return static_cast<double>(attention_columns - windowed_columns) *
               AttentionOptions{}.mean_visible(sequence) +
           static_cast<double>(windowed_columns) *
               AttentionOptions{.window = window}.mean_visible(sequence);
  }
};

}  // namespace octavo

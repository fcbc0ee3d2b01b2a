/// @file
/// What sessions and programs know of every model.
#pragma once

#include <octavo/layers/lora_options.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/layers/shapes.hpp>

#include <string>

namespace octavo OCTAVO_ABI {

/// What becomes of the quantised copies of weights. Both ways give the same bits.
enum class WeightCopies {
  kept,    ///< both layouts of all weights, made once a step
  remade,  ///< made for each GEMM, in memory that all weights share
};

/// Choices that a model makes at run time.
struct ModelOptions {
  Recompute recompute = Recompute::none;
  /// Tokens whose logits exist at once; 0 takes a size that keeps them small.
  Index head_chunk = 0;
  WeightCopies weight_copies = WeightCopies::kept;
  /// Gradients of weights share memory with the activations of later layers, which are dead by
  /// then. Only where each micro-batch begins them anew, which sessions take care of.
  bool gradients_share_memory = false;
  /// Weights are there only while a stage reads them (see `StageHooks`), so that runs of parameters
  /// share memory: two of blocks are there at a time, and one of the embedding and the head.
  bool weights_are_gathered = false;
  /// Gradients are there from a run's backward until it is its memory's turn again (see
  /// `StageHooks::before_backward`), so that runs of parameters share memory as those of
  /// `weights_are_gathered` do.
  bool gradients_are_sent = false;
  /// Weights of blocks that linear layers cast by one scale are cast by the ranks, each its shard,
  /// and come as FP8 values: see `FlatParameters::fp8_values`.
  bool gather_weights_in_fp8 = false;
  /// Elements of a run of parameters are a multiple of this, so that ranks have shards of one size.
  Index run_multiple = allocation_alignment;
  /// Of this rank in the group that shares the model's layers; see TensorParallel.
  int tensor_place = 0;
  /// The adapters of a model in precision `Lora<…>`; others have none.
  LoraOptions lora{};
};

/// What programs tell of a model.
struct ModelFacts {
  std::string name{};           ///< of the shape, such as "llama3_8b"
  Index vocabulary = 0;         ///< tokens are from 0 to it
  Index parameters = 0;         ///< without padding
  Index multiplying = 0;        ///< of these, those that each token is multiplied by
  Index attention_columns = 0;  ///< of all blocks together
  Index frozen = 0;             ///< of the parameters, those that are not trained

  [[nodiscard]] Index trained() const { return parameters - frozen; }

  /// Floating-point operations of one training token: 6 for each weight that multiplies, of which a
  /// frozen one has 4, and causal attention over a sequence of this many tokens.
  [[nodiscard]] double training_flops_per_token(Index sequence) const {
    const double attention =
        6.0 * static_cast<double>(sequence) * static_cast<double>(attention_columns);
    const auto weights = static_cast<double>(multiplying);
    if (frozen == 0) return 6.0 * weights + attention;
    return 4.0 * weights + 6.0 * static_cast<double>(trained()) + attention;
  }
};

}  // namespace octavo

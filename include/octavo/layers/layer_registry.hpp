/// @file
/// Resources that the linear layers of a model share.
#pragma once

#include <octavo/gemm/manifest.hpp>
#include <octavo/layers/flat_parameters.hpp>
#include <octavo/layers/lora_options.hpp>
#include <octavo/layers/scaling_table.hpp>
#include <octavo/precision/activation_input.hpp>
#include <octavo/precision/attention_forward.hpp>
#include <octavo/tensor/batch.hpp>

#include <algorithm>

namespace octavo OCTAVO_ABI {

/// Memory for the quantised copy of one weight at a time, used if copies are computed for each
/// GEMM. Layers reserve the memory that they need before it is allocated.
template <Device D>
class WeightStage {
 public:
  WeightStage() = default;
  WeightStage(const WeightStage&) = delete;  // layers point to it
  WeightStage& operator=(const WeightStage&) = delete;

  void reserve(Index element_bytes, Index scale_bytes) {
    element_bytes_ = std::max(element_bytes_, element_bytes);
    scale_bytes_ = std::max(scale_bytes_, scale_bytes);
  }
  void allocate(Arena<D>& arena) {
    elements_ = arena.template allocate<std::byte>(MemoryKind::quantized_weights, element_bytes_);
    scales_ = arena.template allocate<std::byte>(MemoryKind::quantized_weights, scale_bytes_);
  }
  [[nodiscard]] std::byte* elements() const { return elements_; }
  [[nodiscard]] std::byte* scales() const { return scales_; }

 private:
  Index element_bytes_ = 0;
  Index scale_bytes_ = 0;
  std::byte* elements_ = nullptr;
  std::byte* scales_ = nullptr;
};

/// Memory for one operation at a time: casts of a frozen layer's operands, and intermediate results
/// of adapters. Layers reserve the memory that they need before it is allocated.
template <Device D>
class LayerScratch {
 public:
  LayerScratch() = default;
  LayerScratch(const LayerScratch&) = delete;  // layers point to it
  LayerScratch& operator=(const LayerScratch&) = delete;

  void reserve(Index bytes) { bytes_ = std::max(bytes_, bytes); }
  void allocate(Arena<D>& arena) {
    if (bytes_ != 0) data_ = arena.template allocate<std::byte>(MemoryKind::activations, bytes_);
  }
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  Index bytes_ = 0;
  std::byte* data_ = nullptr;
};

template <Device D>
class TensorParallelGroup;
template <Device D>
struct ExpertLoss;

/// Resources that linear layers share. Each layer keeps a copy, so what it points to must outlive
/// the layers.
template <Device D>
struct LayerRegistry {
  ScalingTable<D>* scaling = nullptr;
  Manifest* manifest = nullptr;     ///< null: inference-only layers add no entries
  WeightStage<D>* stage = nullptr;  ///< null: layers keep the quantised copies of their weights
  BatchShape batch{};               ///< of one micro-batch
  DeviceLimits<D> limits{};
  FlatLayout layout{};                      ///< of each block's parameters
  TensorParallelGroup<D>* group = nullptr;  ///< ranks that share the layers; null: layers are not
                                            ///< shared
  int tensor_rank = 0;                      ///< this rank's index among them
  int data_rank = 0;                        ///< this rank's index among those with other tokens
  LayerScratch<D>* scratch = nullptr;       ///< of frozen layers and adapters
  LoraOptions lora{};                       ///< of adapters
  ExpertLoss<D>* expert_loss = nullptr;     ///< of all routers; null: not computed
  AttentionForward attention_forward = AttentionForward::storage;  ///< of the model's precision
  ActivationInput activation_input = ActivationInput::storage;     ///< of the model's precision
};

}  // namespace octavo

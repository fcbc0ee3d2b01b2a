/// @file
/// Layout of a decoder's parameters, gradients and activations in its arena.
#pragma once

#include <octavo/models/decoder.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>

namespace octavo OCTAVO_ABI {

template <class Family, class Precision, Device D, class Gradient>
constexpr BatchShape Decoder<Family, Precision, D, Gradient>::run_shape(BatchShape batch) {
  constexpr Index needed = std::lcm(model_quantises<Precision> ? 16 : 1, tensor_parallel);
  return detail::decoder_run_shape<D>(batch, needed, Family::longest_sequence);
}

template <class Family, class Precision, Device D, class Gradient>
void Decoder<Family, Precision, D, Gradient>::divide_rows(Arena<D>& arena) {
  require<ConfigError>(batch_.rows() % tensor_parallel == 0, "the batch has ", batch_.sequences,
                       " x ", batch_.tokens, " = ", batch_.rows(),
                       " tokens, but their number must be a multiple of the ", tensor_parallel,
                       " ranks of TensorParallel<", tensor_parallel, ">; change the batch");
  options_.head_chunk = round_up(options_.head_chunk, tensor_parallel);
  group_.allocate(arena, batch_.rows() * config.hidden * static_cast<Index>(sizeof(T)));
  embedding_.share(arena, group_, vocabulary_part(), batch_.rows());
  head_weight_.part = vocabulary_part();
}

template <class Family, class Precision, Device D, class Gradient>
LayerRegistry<D> Decoder<Family, Precision, D, Gradient>::layer_registry(
    const DeviceLimits<D>& limits) {
  LayerRegistry<D> registry{
      &scaling_,
      &manifest_,
      options_.weight_copies == WeightCopies::remade ? &weight_stage_ : nullptr,
      batch_,
      limits,
      {.multiple = options_.flat_multiple,
       .fp8_values = options_.gather_weights_in_fp8,
       .gathered = options_.weights_are_gathered,
       .keeps_fp8_values = options_.weight_copies == WeightCopies::kept,
       .frozen = is_frozen}};
  registry.scratch = &scratch_;
  registry.lora = options_.lora;
  registry.attention_forward = attention_forward_of<Precision>;
  registry.activation_input = activation_input_of<Precision>;
  if constexpr (tensor_parallel > 1) registry.group = &group_;
  registry.tensor_rank = options_.tensor_rank;
  registry.data_rank = options_.data_rank;
  registry.expert_loss = &driver_.expert_loss;
  return registry;
}

template <class Family, class Precision, Device D, class Gradient>
void Decoder<Family, Precision, D, Gradient>::allocate_parameters(Arena<D>& arena,
                                                                  const DeviceLimits<D>& limits) {
  const LayerRegistry<D> registry = layer_registry(limits);
  constexpr float deviation = 0.02f;
  const float residual = deviation / std::sqrt(2.0f * static_cast<float>(config.layers));
  const Initial initial = Initial::normal(deviation);
  embedding_.declare("embedding", vocabulary_rows, live_vocabulary_rows(), initial);
  if constexpr (config.tied_embeddings) {
    embedding_.visit([&](auto& table) { table.is_overwritten = &table == &head_weight(); });
  }
  std::size_t layer = 0;
  std::array<const FlatParameters<T, G, D>*, 2> lenders{};  // two before, and the one before
  for_each_block([&](auto& block, auto&) {
    const std::size_t operands = scaling_.size();
    block.allocate(arena, "blocks." + std::to_string(layer), registry,
                   {initial, Initial::normal(residual), config.norm_epsilon}, options_.recompute,
                   options_.weights_are_gathered ? lenders[0] : nullptr);
    lenders = {lenders[1], &block.flat_parameters()};
    block_quantises_[layer++] = scaling_.size() != operands;
  });
  const std::size_t operands = scaling_.size();
  head_.declare(registry, options_.head_chunk, config.vocabulary, config.norm_epsilon);
  head_quantises_ = scaling_.size() != operands;
  if constexpr (!config.tied_embeddings) {
    head_weight_.declare("head.weight", vocabulary_rows, config.hidden, initial);
    head_weight_.initialised_rows = live_vocabulary_rows();
    head_weight_.is_overwritten = true;
  }
  const FlatLayout layout{.multiple = options_.flat_multiple, .frozen = is_frozen};
  if constexpr (is_frozen) {
    adapter_parameters_.allocate_weights(arena, each_of_adapters(),
                                         {.multiple = options_.flat_multiple});
  }
  head_parameters_.allocate_weights(arena, each_of_head(), layout);
  const bool borrows = options_.weights_are_gathered && !config.tied_embeddings;
  embedding_parameters_.allocate_weights(arena, each_of_embedding(), layout,
                                         borrows ? &head_parameters_ : nullptr);
  head_.allocate_weight_copies(arena, head_weight());
  list_parameters();
  if constexpr (tensor_parallel > 1) {
    visit([&](Parameter<T, G, D>& parameter) {
      parameter.is_counted = !parameter.part.is_whole() || options_.tensor_rank == 0;
    });
  }
}

template <class Family, class Precision, Device D, class Gradient>
void Decoder<Family, Precision, D, Gradient>::list_parameters() {
  const auto add = [this](const FlatParameters<T, G, D>& flat, const auto& each) {
    StageParameters<T, G, D>& stage = parameters_.emplace_back();
    stage.flat = &flat;
    each([&stage](Parameter<T, G, D>& parameter) { stage.parameters.push_back(&parameter); });
  };
  if constexpr (is_frozen) add(adapter_parameters_, each_of_adapters());
  add(embedding_parameters_, each_of_embedding());
  for_each_block([&](auto& block, auto&) {
    add(block.flat_parameters(), [&](const auto& body) { block.visit(body); });
  });
  add(head_parameters_, each_of_head());
}

template <class Family, class Precision, Device D, class Gradient>
void Decoder<Family, Precision, D, Gradient>::list_stages() {
  const StageParameters<T, G, D>* parameters = parameters_.data();
  driver_.keeps_copies = options_.weight_copies == WeightCopies::kept;
  if constexpr (is_frozen) driver_.adapters = parameters++;
  const StageParameters<T, G, D>* embedding = parameters;
  driver_.stages.clear();
  const auto add = [&](auto stage, bool quantises) {
    stage->parameters = parameters++;
    stage->quantises = quantises;
    driver_.stages.push_back(std::move(stage));
  };
  add(std::make_unique<EmbeddingStage<EmbeddingLayer, T, G, D>>(embedding_), false);
  driver_.stages.front()->has_backward = !is_frozen;
  std::size_t layer = 0;
  for_each_block([&](auto& block, auto& shared) {
    using OfBlock = BlockStage<std::remove_reference_t<decltype(block)>, Positions, T, G, D>;
    add(std::make_unique<OfBlock>(block, shared, positions_, offload_, layer),
        block_quantises_[layer]);
    ++layer;
  });
  add(std::make_unique<HeadStage<HeadLayer, T, G, D>>(head_, head_weight()), head_quantises_);
  if (config.tied_embeddings) driver_.stages.back()->table = embedding;
}

template <class Family, class Precision, Device D, class Gradient>
void Decoder<Family, Precision, D, Gradient>::allocate_activations(Arena<D>& arena) {
  constexpr auto kind = MemoryKind::activations;
  const Index rows = batch_.rows();
  positions_.allocate(arena, batch_);
  const Index own = own_rows(rows);
  driver_.stream.width = config.hidden;
  driver_.stream.ranks = tensor_parallel;
  for (int layer = 0; layer <= config.layers; ++layer) {
    driver_.stream.states.push_back(arena.template allocate<T>(kind, own * config.hidden));
  }
  driver_.stream.gradient_of_state = arena.template allocate<T>(kind, own * config.hidden);
  constexpr auto segments = std::make_index_sequence<std::tuple_size_v<SegmentTuple>>{};
  allocate_shared_buffers(arena, [&] { head_.allocate_scratch(arena); }, segments);
  if (options_.offload_activations) allocate_offloaded(arena, segments);
  if (options_.gradients_share_memory) {
    allocate_saved_and_gradients(arena);
  } else {
    std::size_t layer = 0;
    for_each_block(
        [&](auto& block, auto& shared) { allocate_saved(arena, block, shared, layer++); });
  }
}

template <class Family, class Precision, Device D, class Gradient>
void Decoder<Family, Precision, D, Gradient>::allocate_gradients(Arena<D>& arena) {
  if constexpr (is_frozen) return adapter_parameters_.allocate_gradients(arena, each_of_adapters());
  const bool borrows = options_.gradients_are_sent;
  head_parameters_.allocate_gradients(arena, each_of_head());
  // The head writes a tied table's gradient first, and the embedding writes it last.
  const bool is_dead = borrows && !config.tied_embeddings;
  embedding_parameters_.allocate_gradients(arena, each_of_embedding(),
                                           is_dead ? &head_parameters_ : nullptr);
  std::array<const FlatParameters<T, G, D>*, 2> lenders{};  // two before, and the one before
  for_each_block([&](auto& block, auto&) {
    block.allocate_gradients(arena, borrows ? lenders[0] : nullptr);
    lenders = {lenders[1], &block.flat_parameters()};
  });
}

template <class Family, class Precision, Device D, class Gradient>
void Decoder<Family, Precision, D, Gradient>::allocate_saved_and_gradients(Arena<D>& arena) {
  const auto allocate_embeddings = [&] {
    embedding_parameters_.allocate_gradients(arena, each_of_embedding());
  };
  std::function<void()> allocate_previous = [] {};
  if constexpr (config.tied_embeddings) {
    allocate_embeddings();  // the head writes its gradient first
  } else {
    allocate_previous = allocate_embeddings;
  }
  head_parameters_.allocate_gradients(arena, each_of_head());
  std::size_t layer = 0;
  for_each_block([&](auto& block, auto& shared) {
    arena.overlay([&] { allocate_saved(arena, block, shared, layer++); }, allocate_previous);
    allocate_previous = [&arena, &block] { block.allocate_gradients(arena); };
  });
  allocate_previous();
}

}  // namespace octavo

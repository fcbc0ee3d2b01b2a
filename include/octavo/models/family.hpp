/// @file
/// Models by their presets, whatever their family.
///
/// A *family* is a type that names the parts of a decoder; `LlamaFamily` and `Gpt2Family` are the
/// library's, and one of one's own may derive from one of them and replace what differs. It has
/// - `config`: a value with `layers`, `hidden`, `vocabulary`, `padded_vocabulary()`,
///   `tied_embeddings`, `norm_epsilon`, `name` and `facts()`;
/// - `heads`: how a row of queries, keys and values divides; `longest_sequence`;
/// - `Embedding<T, G, D>`: of tokens, with their positions where these are learned;
/// - `Positions<D>`: what blocks are given of positions;
/// - `Norm<T, G, D>`: of the last norm;
/// - `Block<T, P, G, D>`: a block in the precisions of the `BlockPrecision` P;
/// - where several ranks share the layers, `tensor_parallel`: how many. Its parts are then those of
///   one rank, as in `ParallelLlamaFamily`.
#pragma once

#include <octavo/models/gpt2.hpp>
#include <octavo/models/llama.hpp>

#include <type_traits>

namespace octavo OCTAVO_ABI {

namespace detail {

/// The model of a preset. Overloads, because nvcc 13 takes partial specialisations for values of
/// different types as one.
template <LlamaConfig Config, class Precision, Device D, class Gradient, class Parallel>
std::type_identity<Llama<Config, Precision, D, Gradient, Parallel>> model_of();
template <Gpt2Config Config, class Precision, Device D, class Gradient, class Parallel>
std::type_identity<Gpt2<Config, Precision, D, Gradient, Parallel>> model_of();

template <LlamaConfig Config>
std::type_identity<LlamaFamily<Config>> family_of();
template <Gpt2Config Config>
std::type_identity<Gpt2Family<Config>> family_of();

}  // namespace detail

/// The family of a preset: `PresetFamily<llama3_8b>` is `LlamaFamily<llama3_8b>`.
template <auto Config>
using PresetFamily = typename decltype(detail::family_of<Config>())::type;

/// The model of a preset: `PresetModel<llama3_8b, Bf16, Cpu>` is `Llama<llama3_8b, Bf16, Cpu>`, and
/// `PresetModel<gpt2_124m, Bf16, Cpu>` is `Gpt2<gpt2_124m, Bf16, Cpu>`.
template <auto Config, class Precision, Device D, class Gradient = StorageOf<Precision>,
          class Parallel = TensorParallel<1>>
using PresetModel =
    typename decltype(detail::model_of<Config, Precision, D, Gradient, Parallel>())::type;

}  // namespace octavo

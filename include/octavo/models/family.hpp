/// @file
/// Models by preset, independent of their family.
///
/// A *family* is a type that names the parts of a decoder. The library has `LlamaFamily`,
/// `Gemma3Family` and `Gpt2Family`; a custom family may derive from one of them and replace the
/// parts that differ. A family has
/// - `config`: a value with `layers`, `hidden`, `vocabulary`, `padded_vocabulary()`,
///   `tied_embeddings`, `norm_epsilon`, `name` and `facts()`;
/// - `block_kind(layer)`: the kind of each block, and `block_shapes`: an array of their
///   `BlockShape`s, one for each kind;
/// - `longest_sequence`: the maximum sequence length in tokens;
/// - `Embedding<T, G, D>`: the token embedding, with learned positions if the family has them;
/// - `Positions<D>`: the position data passed to blocks;
/// - `Norm<T, G, D>`: the final norm;
/// - `Block<Kind, T, P, G, D>`: a block of a kind in the precisions of the `BlockPrecision` P;
/// - `Roles<Kind>`, if the linear layers of a kind do not have the `DefaultRoles`: a
///   `LinearRoles<…>`;
/// - `tensor_parallel`, if several ranks share the layers: their number. The family's parts are
///   then those of one rank, as in `ParallelLlamaFamily`.
#pragma once

#include <octavo/models/gemma3.hpp>
#include <octavo/models/gpt2.hpp>
#include <octavo/models/llama.hpp>

#include <type_traits>

namespace octavo OCTAVO_ABI {

namespace detail {

/// The model of a preset. Overloads, because nvcc 13 treats partial specialisations for values of
/// different types as the same.
template <LlamaConfig Config, class Precision, Device D, class Gradient, class Parallel>
std::type_identity<Llama<Config, Precision, D, Gradient, Parallel>> model_of();
template <Gpt2Config Config, class Precision, Device D, class Gradient, class Parallel>
std::type_identity<Gpt2<Config, Precision, D, Gradient, Parallel>> model_of();
template <Gemma3Config Config, class Precision, Device D, class Gradient, class Parallel>
std::type_identity<Gemma3<Config, Precision, D, Gradient, Parallel>> model_of();

template <LlamaConfig Config>
std::type_identity<LlamaFamily<Config>> family_of();
template <Gpt2Config Config>
std::type_identity<Gpt2Family<Config>> family_of();
template <Gemma3Config Config>
std::type_identity<Gemma3Family<Config>> family_of();

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

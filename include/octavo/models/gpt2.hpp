/// @file
/// GPT-2: LayerNorm, learned positions, GELU, biases and a head tied to the embedding.
#pragma once

#include <octavo/models/decoder.hpp>
#include <octavo/models/gpt2_config.hpp>

#include <array>

namespace octavo OCTAVO_ABI {

/// The parts of a GPT-2.
/// Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
template <Gpt2Config Config>
struct Gpt2Family {
  static_assert(Config.layers > 0 && Config.hidden > 0 && Config.heads > 0 &&
                    Config.vocabulary > 0 && Config.positions > 1,
                "Gpt2Config: layers, hidden, heads and vocabulary must be positive, and positions "
                "must be at least 2");
  static_assert(Config.norm_epsilon > 0 && is_finite(Config.norm_epsilon),
                "Gpt2Config: norm_epsilon must be positive and finite");
  static_assert(Config.hidden % Config.heads == 0,
                "Gpt2Config: hidden must be a multiple of heads; change one of them");

  static constexpr Gpt2Config config = Config;
  static constexpr BlockShape block_shape{.hidden = Config.hidden,
                                          .ffn = Config.ffn(),
                                          .heads = Config.heads,
                                          .kv_heads = Config.heads,
                                          .head_dim = Config.head_dim(),
                                          .norm_epsilon = Config.norm_epsilon,
                                          .bias = true};
  static constexpr std::array block_shapes{block_shape};
  static constexpr int block_kind(int) { return 0; }
  static constexpr Index longest_sequence = Config.positions;

  template <class T, class G, Device D>
  using Embedding = PositionEmbedding<T, Config.hidden, Config.positions, G, D>;
  template <Device D>
  using Positions = NoPositions<D>;
  template <class T, class G, Device D>
  using Norm = LayerNorm<T, Config.hidden, G, D>;
  template <class T, class P, class G, Device D>
  using Attention = GroupedQueryAttention<
      block_shape.with(P::attention_forward), NoRotation<block_shape, T, G, D>, T,
      typename P::template Of<LinearRole::qkv>, typename P::template Of<LinearRole::output>, G, D>;
  template <class T, class P, class G, Device D>
  using Mlp = MLP<block_shape.with(P::activation_input), Gelu, T,
                  typename P::template Of<LinearRole::gate_up>,
                  typename P::template Of<LinearRole::down>, G, D>;
  template <int, class T, class P, class G, Device D>
  using Block = AttentionMlpBlock<T, Config.hidden, G, D, Norm<T, G, D>, Attention<T, P, G, D>,
                                  Mlp<T, P, G, D>>;
};

/// A GPT-2, such as `Gpt2<gpt2_124m, Fp8Recipe<Delayed>, Cuda>`.
template <Gpt2Config Config, class Precision, Device D, class Gradient = StorageOf<Precision>,
          class Parallel = TensorParallel<1>>
class Gpt2 : public Decoder<Gpt2Family<Config>, Precision, D, Gradient> {
 public:
  static_assert(Parallel::degree == 1,
                "Gpt2: ranks cannot share its layers, because biases and learned positions are not "
                "divided; choose TensorParallel<1>, and DataParallel for several ranks");
  static_assert(!is_lora<Precision>,
                "Lora: a GPT-2 does not support adapters, because its LayerNorms cannot be frozen; "
                "choose a Llama or a Qwen3");
  using Decoder<Gpt2Family<Config>, Precision, D, Gradient>::Decoder;
};

}  // namespace octavo

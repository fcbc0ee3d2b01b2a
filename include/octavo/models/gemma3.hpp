/// @file
/// Gemma 3: local and global layers with two rotations, norms before and after each sublayer,
/// normalised queries and keys, a gate with GELU, and a scaled embedding.
#pragma once

#include <octavo/models/decoder.hpp>
#include <octavo/models/gemma3_config.hpp>

#include <array>
#include <limits>

namespace octavo OCTAVO_ABI {

/// Cosines and sines of both rotations: table 0 of global layers, table 1 of local ones.
template <Gemma3Config Config, Device D>
class Gemma3Positions : public RoPE<D> {
 public:
  void allocate(Arena<D>& arena, BatchShape batch) {
    RoPE<D>::allocate(arena, batch, Config.head_dim, 2);
  }
  void initialize_sync(const Context<D>& context) {
    const RopeFrequencies global{static_cast<double>(Config.rope_theta), Config.head_dim,
                                 Config.rope_scaling, this->positions()};
    const RopeFrequencies local{static_cast<double>(Config.local_rope_theta), Config.head_dim,
                                RopeScaling{}, this->positions()};
    this->fill_sync(global, context, global.magnitude(), 0);
    this->fill_sync(local, context, local.magnitude(), 1);
  }
};

namespace detail {

/// Returns √x for x > 0, by Newton's method, because std::sqrt is not constexpr. Other numbers,
/// which Gemma3Family refuses, give 1.
constexpr float constexpr_sqrt(float x) {
  if (!(x > 0 && is_finite(x))) return 1;
  double root = x > 1 ? x : 1;
  for (int i = 0; i < 64; ++i) root = (root + static_cast<double>(x) / root) / 2;
  return static_cast<float>(root);
}

constexpr BlockShape block_shape_of(const Gemma3Config& config, bool is_global) {
  return {.hidden = config.hidden,
          .ffn = config.ffn,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .norm_epsilon = config.norm_epsilon,
          .norm_offset = 1,
          .post_norm = true,
          .rotation = is_global ? 0 : 1,
          .window = is_global ? 0 : config.window,
          .score_scale = 1.0f / constexpr_sqrt(config.query_scalar)};
}

}  // namespace detail

/// The parts of a Gemma 3.
/// Source: Gemma 3 technical report, arXiv 2503.19786; transformers, modeling_gemma3.py.
template <Gemma3Config Config>
struct Gemma3Family {
  static_assert(Config.layers > 0 && Config.hidden > 0 && Config.ffn > 0 && Config.heads > 0 &&
                    Config.kv_heads > 0 && Config.head_dim > 0 && Config.vocabulary > 0 &&
                    Config.window > 0 && Config.global_every > 0,
                "Gemma3Config: all sizes must be positive");
  static_assert(Config.norm_epsilon > 0 && is_finite(Config.norm_epsilon) &&
                    Config.rope_theta > 0 && is_finite(Config.rope_theta) &&
                    Config.local_rope_theta > 0 && is_finite(Config.local_rope_theta) &&
                    Config.query_scalar > 0 && is_finite(Config.query_scalar),
                "Gemma3Config: norm_epsilon, rope_theta, local_rope_theta and query_scalar must be "
                "positive and finite");
  static_assert(Config.rope_scaling.is_valid(),
                "Gemma3Config: parameters of rope_scaling must be positive and finite, and "
                "low_frequency_factor below high_frequency_factor; attention_factor may be 0");

  static constexpr Gemma3Config config = Config;
  /// Kind 0 is local, kind 1 global.
  static constexpr std::array block_shapes{detail::block_shape_of(Config, false),
                                           detail::block_shape_of(Config, true)};
  static constexpr int block_kind(int layer) { return Config.is_global(layer) ? 1 : 0; }
  static constexpr Index longest_sequence = std::numeric_limits<Index>::max();

  template <class T, class G, Device D>
  using Embedding = ScaledEmbedding<T, Config.hidden, G, D>;
  template <Device D>
  using Positions = Gemma3Positions<Config, D>;
  template <class T, class G, Device D>
  using Norm = RMSNorm<T, Config.hidden, G, D, 1>;
  template <int Kind, class T, class P, class G, Device D>
  using Attention = GroupedQueryAttention<block_shapes[Kind].with(P::attention_forward),
                                          NormalisedRotation<block_shapes[Kind], T, G, D>, T,
                                          typename P::template Of<LinearRole::qkv>,
                                          typename P::template Of<LinearRole::output>, G, D>;
  template <class T, class P, class G, Device D>
  using Mlp = MLP<block_shapes[0].with(P::activation_input), GeGlu, T,
                  typename P::template Of<LinearRole::gate_up>,
                  typename P::template Of<LinearRole::down>, G, D>;
  template <ConfigName NormName, ConfigName PostNormName, class Part, class T, class G, Device D>
  using Branch = ResidualBranch<NormName, "", Norm<T, G, D>, Part, T, Config.hidden, D,
                                Norm<T, G, D>, PostNormName>;
  template <int Kind, class T, class P, class G, Device D>
  using Block = PreNormBlock<
      T, Config.hidden, G, D,
      Branch<"attention_norm", "attention_post_norm", Attention<Kind, T, P, G, D>, T, G, D>,
      Branch<"mlp_norm", "mlp_post_norm", Mlp<T, P, G, D>, T, G, D>>;
};

/// A Gemma 3 for text, such as `Gemma3<gemma3_1b, Fp8Recipe<Delayed>, Cuda>`.
template <Gemma3Config Config, class Precision, Device D, class Gradient = StorageOf<Precision>,
          class Parallel = TensorParallel<1>>
class Gemma3 : public Decoder<Gemma3Family<Config>, Precision, D, Gradient> {
 public:
  static_assert(Parallel::degree == 1,
                "Gemma3: ranks cannot share its layers, because its results are normalised; choose "
                "TensorParallel<1>, and DataParallel for several ranks");
  using Decoder<Gemma3Family<Config>, Precision, D, Gradient>::Decoder;
};

}  // namespace octavo

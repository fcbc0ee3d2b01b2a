/// @file
/// Llama, Mistral, Qwen2 and Qwen3: RMSNorm, rotary positions and SwiGLU.
#pragma once

#include <octavo/models/decoder.hpp>
#include <octavo/models/llama_config.hpp>

#include <array>
#include <limits>

namespace octavo OCTAVO_ABI {

/// Cosines and sines of a Llama's rotary positions.
template <LlamaConfig Config, Device D>
class LlamaPositions : public RoPE<D> {
 public:
  void allocate(Arena<D>& arena, BatchShape batch) {
    RoPE<D>::allocate(arena, batch, Config.head_dim);
  }
  void initialize_sync(const Context<D>& context) {
    const RopeFrequencies frequencies{static_cast<double>(Config.rope_theta), Config.head_dim,
                                      Config.rope_scaling, this->positions()};
    this->fill_sync(frequencies, context, frequencies.magnitude());
  }
};

namespace detail {

/// Whether `ranks` can share each layer, which divides its heads and its MLP features.
constexpr bool divides_heads(const LlamaConfig& config, int ranks) {
  return config.heads % ranks == 0 && config.kv_heads % ranks == 0;
}
constexpr bool divides(const LlamaConfig& config, int ranks) {
  return divides_heads(config, ranks) && config.ffn % ranks == 0;
}

/// Returns the block shape of one of `ranks` ranks that share a block. Returns the whole shape if
/// it is not divisible, so that only the intended check fails.
constexpr BlockShape block_shape_of(const LlamaConfig& config, int ranks) {
  const int divisor = divides(config, ranks) ? ranks : 1;
  return {.hidden = config.hidden,
          .ffn = config.ffn / divisor,
          .heads = config.heads / divisor,
          .kv_heads = config.kv_heads / divisor,
          .head_dim = config.head_dim,
          .norm_epsilon = config.norm_epsilon,
          .qkv_bias = config.qkv_bias,
          .tensor_parallel = ranks};
}

/// A plain MLP, or a mixture of experts.
template <bool HasExperts>
struct MlpOf {
  template <BlockShape Shape, ExpertShape, class T, class Up, class Down, class G, Device D>
  using Type = MLP<Shape, SwiGlu, T, Up, Down, G, D>;
};
template <>
struct MlpOf<true> {
  template <BlockShape Shape, ExpertShape Experts, class T, class Up, class Down, class G, Device D>
  using Type = ExpertsMLP<Shape, Experts, T, Up, Down, G, D>;
};

/// Returns the shape with another window of attention.
constexpr BlockShape windowed(BlockShape shape, int window) {
  shape.window = window;
  return shape;
}

}  // namespace detail

/// The parts of a Llama whose blocks have shape `Shape`.
template <LlamaConfig Config, BlockShape Shape>
struct LlamaParts {
  static_assert(Config.layers > 0 && Config.hidden > 0 && Config.ffn > 0 && Config.heads > 0 &&
                    Config.kv_heads > 0 && Config.head_dim > 0 && Config.vocabulary > 0,
                "LlamaConfig: layers, hidden, ffn, heads, kv_heads, head_dim and vocabulary must "
                "be positive");
  static_assert(Config.norm_epsilon > 0 && is_finite(Config.norm_epsilon) &&
                    Config.rope_theta > 0 && is_finite(Config.rope_theta),
                "LlamaConfig: norm_epsilon and rope_theta must be positive and finite");
  static_assert(Config.rope_scaling.is_valid(),
                "LlamaConfig: parameters of rope_scaling must be positive and finite, and "
                "low_frequency_factor below high_frequency_factor; attention_factor may be 0");
  static_assert(Config.experts.experts >= 0 && Config.experts.balance_coefficient >= 0 &&
                    is_finite(Config.experts.balance_coefficient),
                "LlamaConfig: experts and balance_coefficient of experts must be at least 0");
  static_assert(Config.experts.experts != 0 ||
                    (Config.experts.choices == 0 && Config.experts.balance_coefficient == 0),
                "LlamaConfig: without experts, choices and balance_coefficient have no effect; set "
                "experts.experts, or leave them 0");
  static_assert(Config.window >= 0, "LlamaConfig: window must be at least 0; 0 sets no window");
  static_assert(Config.window <= 0 || (Config.first_windowed_layer >= 0 &&
                                       Config.first_windowed_layer <= Config.layers),
                "LlamaConfig: first_windowed_layer must be 0 to layers");

  static constexpr LlamaConfig config = Config;
  static constexpr BlockShape block_shape = Shape;
  /// The shapes of both kinds of blocks: with a window, and without one.
  static constexpr std::array block_shapes{detail::windowed(Shape, Config.window),
                                           detail::windowed(Shape, 0)};
  static constexpr int block_kind(int layer) {
    return Config.window > 0 && layer < Config.first_windowed_layer ? 1 : 0;
  }
  static constexpr Index longest_sequence = std::numeric_limits<Index>::max();

  template <class T, class G, Device D>
  using Embedding = octavo::Embedding<T, Config.hidden, G, D>;
  template <Device D>
  using Positions = LlamaPositions<Config, D>;
  template <class T, class G, Device D>
  using Norm = RMSNorm<T, Config.hidden, G, D>;
  template <class T, class G, Device D>
  using Rotate = std::conditional_t<Config.qk_norm, NormalisedRotation<Shape, T, G, D>,
                                    Rotation<Shape, T, G, D>>;
  template <int Kind, class T, class P, class G, Device D>
  using Attention =
      GroupedQueryAttention<block_shapes[Kind].with(P::attention_forward), Rotate<T, G, D>, T,
                            typename P::template Of<LinearRole::qkv>,
                            typename P::template Of<LinearRole::output>, G, D>;
  static constexpr ExpertShape experts = Config.experts;
  template <class T, class P, class G, Device D>
  using Mlp = typename detail::MlpOf<(Config.experts.experts > 0)>::template Type<
      Shape.with(P::activation_input), experts, T, typename P::template Of<LinearRole::gate_up>,
      typename P::template Of<LinearRole::down>, G, D>;
  template <int Kind, class T, class P, class G, Device D>
  using Block = AttentionMlpBlock<T, Config.hidden, G, D, Norm<T, G, D>,
                                  Attention<Kind, T, P, G, D>, Mlp<T, P, G, D>>;
};

/// The parts of a Llama; with `window` of a Mistral, with `qkv_bias` of a Qwen2, with `qk_norm` of
/// a Qwen3, and with `experts` of a Mixtral or a Qwen3-MoE.
/// Source: Touvron et al. 2023, arXiv 2302.13971; Grattafiori et al. 2024, arXiv 2407.21783; Jiang
/// et al. 2023, arXiv 2310.06825; Qwen2 and Qwen3 technical reports, arXiv 2407.10671 and
/// 2505.09388.
template <LlamaConfig Config>
struct LlamaFamily : LlamaParts<Config, detail::block_shape_of(Config, 1)> {};

/// The parts that one rank has of a Llama whose layers are shared by `Degree` ranks.
template <LlamaConfig Config, int Degree>
struct ParallelLlamaFamily : LlamaParts<Config, detail::block_shape_of(Config, Degree)> {
  using Parts = LlamaParts<Config, detail::block_shape_of(Config, Degree)>;
  static constexpr int tensor_parallel = Degree;

  static_assert(Config.experts.experts == 0,
                "TensorParallel: ranks cannot share experts; choose TensorParallel<1>, and "
                "DataParallel for several ranks");
  static_assert(detail::divides_heads(Config, Degree),
                "TensorParallel: heads and kv_heads of the LlamaConfig must be multiples of the "
                "degree, so that each rank has whole heads; choose a smaller TensorParallel");
  static_assert(!detail::divides_heads(Config, Degree) || detail::divides(Config, Degree),
                "TensorParallel: ffn of the LlamaConfig must be a multiple of the degree; choose a "
                "smaller TensorParallel");

  template <class T, class G, Device D>
  using Embedding = ParallelEmbedding<T, Config.hidden, G, D>;
  /// A sublayer of a block (attention or MLP) with its norm.
  template <ConfigName NormName, class Part, class T, class G, Device D>
  using Branch = ParallelBranch<NormName, "", typename Parts::template Norm<T, G, D>, Part, T,
                                Config.hidden, D, Degree>;
  template <int Kind, class T, class P, class G, Device D>
  using Block = PreNormBlock<
      T, Config.hidden, G, D,
      Branch<"attention_norm", typename Parts::template Attention<Kind, T, P, G, D>, T, G, D>,
      Branch<"mlp_norm", typename Parts::template Mlp<T, P, G, D>, T, G, D>>;
};

namespace detail {

template <LlamaConfig Config, int Degree>
using LlamaFamilyOf =
    std::conditional_t<Degree == 1, LlamaFamily<Config>, ParallelLlamaFamily<Config, Degree>>;

}  // namespace detail

/// A Llama, such as `Llama<llama3_8b, Fp8Recipe<Delayed>, Cuda>`. A class, because nvcc 13 cannot
/// mangle the configuration in an alias.
/// @tparam Parallel  number of ranks that share each layer, such as `TensorParallel<2>`
template <LlamaConfig Config, class Precision, Device D, class Gradient = StorageOf<Precision>,
          class Parallel = TensorParallel<1>>
class Llama
    : public Decoder<detail::LlamaFamilyOf<Config, Parallel::degree>, Precision, D, Gradient> {
 public:
  using Decoder<detail::LlamaFamilyOf<Config, Parallel::degree>, Precision, D, Gradient>::Decoder;
};

/// A Qwen3, such as `Qwen3<qwen3_8b, Fp8Recipe<Delayed>, Cuda>`: a Llama with `qk_norm`.
template <LlamaConfig Config, class Precision, Device D, class Gradient = StorageOf<Precision>,
          class Parallel = TensorParallel<1>>
  requires(Config.qk_norm)
using Qwen3 = Llama<Config, Precision, D, Gradient, Parallel>;

}  // namespace octavo

/// @file
/// One block of a Llama: normalised attention and normalised MLP around a residual stream.
#pragma once

#include <octavo/layers/attention.hpp>
#include <octavo/layers/mlp.hpp>
#include <octavo/layers/parameter_run.hpp>
#include <octavo/layers/rms_norm.hpp>

namespace octavo {

/// The precision of a block's four linear layers.
template <class Qkv, class Output, class GateUp, class Down>
struct BlockPrecision {
  using QkvPrecision = Qkv;
  using OutputPrecision = Output;
  using GateUpPrecision = GateUp;
  using DownPrecision = Down;
};

/// x + attention(norm(x)), then + mlp(norm(·)).
/// @tparam T  format of weights and activations
/// @tparam P  a `BlockPrecision`
/// @tparam G  format of gradients of weights
template <BlockShape Shape, class T, class P, class G, Device D>
class TransformerBlock {
 public:
  using Attention =
      GroupedQueryAttention<Shape, T, typename P::QkvPrecision, typename P::OutputPrecision, G, D>;
  using Mlp = MLP<Shape, T, typename P::GateUpPrecision, typename P::DownPrecision, G, D>;

  /// What the backward needs. Parts that the recompute policy drops point to memory that the
  /// blocks of one type share.
  struct Saved {
    typename Attention::Saved attention;
    typename Mlp::Saved mlp;
    float* attention_inverse_rms = nullptr;  ///< [tokens]
    float* mlp_inverse_rms = nullptr;        ///< [tokens]
    T* middle = nullptr;                     ///< [tokens, hidden], between attention and MLP
  };

  /// Memory that the blocks of one type share: parts of `Saved` that are not kept, and scratch.
  struct Shared {
    Saved saved;
    typename Attention::Scratch attention;
    typename Mlp::Scratch mlp;
    T* normalised_gradient = nullptr;  ///< [tokens, hidden]
  };

  /// Takes weights and their quantised copies.
  /// @param initial_deviation   of the weights' initial values
  /// @param residual_deviation  of those that write to the residual stream
  void take(Arena<D>& arena, const std::string& name, LayerRegistry<D> registry,
            float initial_deviation, float residual_deviation, Recompute recompute) {
    recompute_ = recompute;
    attention_norm_.declare(name + ".attention_norm", Shape.norm_epsilon);
    attention_.declare(name, registry, initial_deviation, residual_deviation,
                       recompute == Recompute::block);
    mlp_norm_.declare(name + ".mlp_norm", Shape.norm_epsilon);
    mlp_.declare(name, registry, initial_deviation, residual_deviation,
                 recompute >= Recompute::ffn);
    run_.take_weights(arena, [this](const auto& visitor) { this->visit(visitor); });
    attention_.take_weight_copies(arena);
    mlp_.take_weight_copies(arena);
  }

  void take_gradients(Arena<D>& arena) {
    run_.take_gradients(arena, [this](const auto& visitor) { this->visit(visitor); });
  }

  /// Takes what blocks share.
  static void take_shared(Arena<D>& arena, Shared& shared, Index tokens, Recompute recompute) {
    Attention::take_shared(arena, shared.saved.attention, tokens);
    Mlp::take_shared(arena, shared.saved.mlp, tokens);
    take_saved_where(arena, shared.saved, tokens,
                     [&](Recompute dropped_from) { return recompute >= dropped_from; });
    shared.normalised_gradient =
        arena.template take<T>(MemoryKind::activations, tokens * Shape.hidden);
    arena.overlay([&] { Attention::take_scratch(arena, shared.attention, tokens); },
                  [&] { Mlp::take_scratch(arena, shared.mlp, tokens); });
  }

  /// Takes what this block keeps for the backward.
  void take_saved(Arena<D>& arena, const Shared& shared, Index tokens) {
    saved_ = shared.saved;
    take_saved_where(arena, saved_, tokens,
                     [&](Recompute dropped_from) { return recompute_ < dropped_from; });
  }

  template <class M>
  void quantize_weights(const Context<D>& context) {
    attention_.template quantize_weights<M>(context);
    mlp_.template quantize_weights<M>(context);
  }

  /// @param x  [tokens, hidden]
  /// @param y  [tokens, hidden]; must not alias x
  template <class M>
  void forward(TensorView<const T, 2, D> x, TensorView<T, 2, D> y, BatchShape batch,
               const RoPE<D>& rope, const Context<D>& context) {
    forward_attention<M>(x, batch, rope, context);
    const Index tokens = batch.rows();
    const auto normalised = normalise_middle<M>(
        {.row_major = true, .transposed = keeps<M>(Recompute::norms)}, tokens, context);
    mlp_.project(normalised, saved_.mlp, context);
    const auto activated = mlp_.template activate<M>(
        saved_.mlp, tokens, {.row_major = true, .transposed = keeps<M>(Recompute::swiglu)},
        context);
    mlp_.finish(activated, middle(tokens), y, context);
  }

  /// Turns the gradient of y into that of x, in place, and makes the weights' gradients.
  /// @param x           [tokens, hidden], the forward's input
  /// @param gradient    [tokens, hidden]
  /// @param accumulate  whether weights' gradients are added to what is there
  void backward(TensorView<const T, 2, D> x, TensorView<T, 2, D> gradient, BatchShape batch,
                const RoPE<D>& rope, const Shared& shared, bool accumulate,
                const Context<D>& context) {
    using Again = Mode::recompute;
    const Index tokens = batch.rows();
    const TensorView<T, 2, D> normalised_gradient{shared.normalised_gradient,
                                                  {tokens, Shape.hidden}};
    const TensorView<const T, 2, D> incoming = normalised_gradient;
    constexpr Copies transposed{.row_major = false, .transposed = true};
    if (!accumulate) {
      visit([&](auto& parameter) {
        if (!parameter.is_matrix()) parameter.clear_gradient(context);
      });
    }

    if (recompute_ == Recompute::block) forward_attention<Again>(x, batch, rope, context);
    const bool again = recompute_ >= Recompute::ffn;
    auto mlp_input = mlp_.template input<Again>(saved_.mlp, tokens, transposed);
    if (recompute_ >= Recompute::norms) {
      mlp_input =
          normalise_middle<Again>({.row_major = again, .transposed = true}, tokens, context);
    }
    if (again) mlp_.project(mlp_input, saved_.mlp, context);
    const auto activated =
        recompute_ >= Recompute::swiglu
            ? mlp_.template activate<Again>(saved_.mlp, tokens, transposed, context)
            : mlp_.template activated<Again>(saved_.mlp, tokens, transposed);
    mlp_.backward(gradient, activated, mlp_input, normalised_gradient, saved_.mlp, shared.mlp,
                  accumulate, context);
    mlp_norm_.backward(incoming, middle(tokens), inverse_rms(saved_.mlp_inverse_rms, tokens),
                       gradient, context);

    auto attention_input = attention_.template input<Again>(saved_.attention, tokens, transposed);
    if (recompute_ >= Recompute::norms && recompute_ < Recompute::block) {
      attention_norm_.forward(x, attention_input, inverse_rms(saved_.attention_inverse_rms, tokens),
                              context);
    }
    attention_.backward(gradient, attention_input, batch, rope, normalised_gradient,
                        saved_.attention, shared.attention, accumulate, context);
    attention_norm_.backward(incoming, x, inverse_rms(saved_.attention_inverse_rms, tokens),
                             gradient, context);
  }

  /// Where its parameters lie.
  [[nodiscard]] const ParameterRun<T, G, D>& run() const { return run_; }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    attention_norm_.visit(visitor);
    attention_.visit(visitor);
    mlp_norm_.visit(visitor);
    mlp_.visit(visitor);
  }

 private:
  /// Takes the parts of `saved` that `wanted` names by the first policy that drops them.
  template <class Wanted>
  static void take_saved_where(Arena<D>& arena, Saved& saved, Index tokens, const Wanted& wanted) {
    if (wanted(Recompute::norms)) {
      Attention::take_saved_input(arena, saved.attention, tokens);
      Mlp::take_saved_input(arena, saved.mlp, tokens);
    }
    if (wanted(Recompute::swiglu)) Mlp::take_saved_activated(arena, saved.mlp, tokens);
    if (wanted(Recompute::ffn)) Mlp::take_saved_gate_up(arena, saved.mlp, tokens);
    if (wanted(Recompute::block)) {
      constexpr auto kind = MemoryKind::activations;
      Attention::take_saved(arena, saved.attention, tokens);
      saved.attention_inverse_rms = arena.template take<float>(kind, tokens);
      saved.mlp_inverse_rms = arena.template take<float>(kind, tokens);
      saved.middle = arena.template take<T>(kind, tokens * Shape.hidden);
    }
  }

  /// Whether a pass in mode M keeps what `dropped_from` and later policies drop.
  template <class M>
  [[nodiscard]] bool keeps(Recompute dropped_from) const {
    return M::saves && recompute_ < dropped_from;
  }

  /// The first half: middle = x + attention(norm(x)).
  template <class M>
  void forward_attention(TensorView<const T, 2, D> x, BatchShape batch, const RoPE<D>& rope,
                         const Context<D>& context) {
    const Index tokens = batch.rows();
    const bool transposed = keeps<M>(Recompute::norms) || std::is_same_v<M, Mode::recompute>;
    const auto normalised = attention_.template input<M>(
        saved_.attention, tokens, {.row_major = true, .transposed = transposed});
    attention_norm_.forward(x, normalised, inverse_rms(saved_.attention_inverse_rms, tokens),
                            context);
    attention_.template forward<M>(normalised, batch, rope, x, middle(tokens), saved_.attention,
                                   context);
  }

  template <class M>
  auto normalise_middle(Copies copies, Index tokens, const Context<D>& context) const {
    const auto normalised = mlp_.template input<M>(saved_.mlp, tokens, copies);
    const TensorView<const T, 2, D> source = middle(tokens);
    mlp_norm_.forward(source, normalised, inverse_rms(saved_.mlp_inverse_rms, tokens), context);
    return normalised;
  }

  [[nodiscard]] TensorView<T, 2, D> middle(Index tokens) const {
    return {saved_.middle, {tokens, Shape.hidden}};
  }
  static TensorView<float, 1, D> inverse_rms(float* data, Index tokens) { return {data, {tokens}}; }

  Recompute recompute_ = Recompute::none;
  ParameterRun<T, G, D> run_;
  RMSNorm<T, Shape.hidden, G, D> attention_norm_;
  Attention attention_;
  RMSNorm<T, Shape.hidden, G, D> mlp_norm_;
  Mlp mlp_;
  Saved saved_;
};

}  // namespace octavo

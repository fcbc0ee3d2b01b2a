/// @file
/// A sublayer of a transformer block with its norm and residual connection.
#pragma once

#include <octavo/core/config_name.hpp>
#include <octavo/kernels/elementwise.hpp>
#include <octavo/layers/before_norm.hpp>
#include <octavo/layers/linear.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/layers/shapes.hpp>

#include <string>

namespace octavo OCTAVO_ABI {

/// The absent norm of a part's result.
template <Device D>
struct NoPostNorm {
  static constexpr Index statistics = 0;
  void declare(const std::string&, float) {}
  template <class Visitor>
  void visit(Visitor&&) {}
};

/// Computes y = x + part(norm(x)), or with a post norm y = x + post_norm(part(norm(x))).
/// @tparam NormName  suffix of the names of the norm's parameters, such as "attention_norm"
/// @tparam Prefix    prefix of the names of the part's layers, such as "first"; may be ""
/// @tparam Norm  `RMSNorm<…>`, `LayerNorm<…>`, or a type with the same members
/// @tparam Part  `GroupedQueryAttention<…>`, `MLP<…>`, or a type with the same members
/// @tparam PostNorm  `NoPostNorm`, or a type like `Norm`; the part then does not add the residual
///                   (`BlockShape::post_norm`)
/// @tparam PostNormName  suffix of the names of the post norm's parameters
template <ConfigName NormName, ConfigName Prefix, class Norm, class Part, class T, int Hidden,
          Device D, class PostNorm = NoPostNorm<D>, ConfigName PostNormName = "">
class ResidualBranch {
  static constexpr bool has_post_norm = PostNorm::statistics > 0;

 public:
  /// Data that the backward needs. Parts that the recompute policy drops point to memory that the
  /// blocks of one type share.
  struct Saved {
    typename Part::Saved part;
    float* statistics = nullptr;       ///< [Norm::statistics · tokens]
    T* result = nullptr;               ///< [tokens, Hidden]: of the part, if a post norm reads it
    float* post_statistics = nullptr;  ///< [PostNorm::statistics · tokens]
  };

  /// Temporary memory of one branch's backward.
  struct Scratch {
    typename Part::Scratch part;
    T* normalised_gradient = nullptr;  ///< [tokens, Hidden]
    T* result_gradient = nullptr;      ///< [tokens, Hidden], with a post norm
  };

  /// Declares the branch.
  /// @param block  the name of the block
  void declare(const std::string& block, LayerRegistry<D> registry, BlockInitial initial,
               Recomputation recomputation) {
    const std::string prefix = Prefix.text();
    recomputation_ = recomputation;
    norm_.declare(block + '.' + NormName.text(), initial.norm_epsilon);
    post_norm_.declare(block + '.' + PostNormName.text(), initial.norm_epsilon);
    part_.declare(prefix.empty() ? block : block + '.' + prefix, registry, initial, recomputation);
  }

  void allocate_weight_copies(Arena<D>& arena) { part_.allocate_weight_copies(arena); }

  /// Allocates the part's KV cache, if it has one.
  void allocate_cache(Arena<D>& arena, Index longest) {
    if constexpr (requires { part_.allocate_cache(arena, longest); })
      part_.allocate_cache(arena, longest);
  }

  /// Allocates the tensors of `saved` for which `wanted(from)` is true, where `from` and all later
  /// policies drop the tensor.
  template <class Wanted>
  static void allocate_saved(Arena<D>& arena, Saved& saved, Index tokens, const Wanted& wanted) {
    constexpr auto kind = MemoryKind::activations;
    Part::allocate_saved(arena, saved.part, tokens, wanted);
    if (has_post_norm && wanted(kept_by_all_policies)) {
      saved.result = arena.template allocate<T>(kind, tokens * Hidden);
      saved.post_statistics = arena.template allocate<float>(kind, PostNorm::statistics * tokens);
    }
    if (!wanted(Recompute::block)) return;
    saved.statistics = arena.template allocate<float>(kind, Norm::statistics * tokens);
  }
  /// Allocates the memory that blocks share in the forward.
  static void allocate_shared_buffers(Arena<D>& arena, Saved& saved, Index tokens) {
    Part::allocate_shared_buffers(arena, saved.part, tokens);
  }
  static void allocate_scratch(Arena<D>& arena, Scratch& scratch, Index tokens) {
    Part::allocate_scratch(arena, scratch.part, tokens);
    if (has_post_norm) {
      scratch.result_gradient =
          arena.template allocate<T>(MemoryKind::activations, tokens * Hidden);
    }
  }

  template <class M>
  void quantize_weights(const Context<D>& context) {
    part_.template quantize_weights<M>(context);
  }

  /// Runs the forward.
  /// @param x  [tokens, Hidden]
  /// @param y  [tokens, Hidden]; must not alias x
  template <class M, class Positions>
  void forward(TensorView<const T, 2, D> x, TensorView<T, 2, D> y, const BatchView<D>& batch,
               const Positions& positions, const Saved& saved, const Context<D>& context) {
    constexpr bool again = std::is_same_v<M, Mode::recompute>;
    const bool keeps = M::saves && (again || !recomputation_.drops(Recompute::norms));
    const auto normalised =
        normalise<M>(x, {.row_major = true, .transposed = keeps}, saved, context);
    if constexpr (has_post_norm) {
      const TensorView<T, 2, D> result{saved.result, x.shape()};
      part_.template forward<M>(normalised, {}, result, batch, positions, saved.part, context);
      post_norm_.forward(result, Operand<T, OperandKind::input, D>{y}, post_statistics(saved, x),
                         context);
      add(x, y, context);
    } else {
      part_.template forward<M>(normalised, x, y, batch, positions, saved.part, context);
    }
  }

  /// Replaces the gradient of y with that of x, in place, and computes the parameters' gradients:
  /// see PreNormBlock::backward.
  /// @param x           [tokens, Hidden], the forward's input
  /// @param gradient    [tokens, Hidden]
  template <class Positions>
  void backward(TensorView<const T, 2, D> x, TensorView<T, 2, D> gradient,
                const BatchView<D>& batch, const Positions& positions, const Saved& saved,
                const Scratch& scratch, bool accumulate, const Context<D>& context) {
    using RecomputeMode = Mode::recompute;
    const OperandCopies copies = part_.backward_input();
    const auto normalised =
        recomputation_.in_backward(Recompute::norms)
            ? normalise<RecomputeMode>(x, copies, saved, context)
            : part_.template input<RecomputeMode>(saved.part, batch.rows(), copies);
    const TensorView<T, 2, D> normalised_gradient{scratch.normalised_gradient, x.shape()};
    TensorView<T, 2, D> result_gradient = gradient;
    if constexpr (has_post_norm) {
      result_gradient = {scratch.result_gradient, x.shape()};
      fill_zero(result_gradient.data(), result_gradient.bytes(), context);
      post_norm_.backward(gradient, TensorView<const T, 2, D>(saved.result, x.shape()),
                          post_statistics(saved, x), result_gradient, context);
    }
    part_.backward(result_gradient, normalised, normalised_gradient, batch, positions, saved.part,
                   scratch.part, accumulate, context);
    norm_.backward(normalised_gradient, x, statistics(saved, x.extent(0)), gradient, context);
  }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    norm_.visit(visitor);
    part_.visit(visitor);
    post_norm_.visit(visitor);
  }
  /// Calls `visitor(parameter)` for the adapters of frozen layers: see Lora.
  template <class Visitor>
  void visit_adapters(Visitor&& visitor) {
    part_.visit_adapters(visitor);
  }

 private:
  template <class M>
  auto normalise(TensorView<const T, 2, D> x, OperandCopies copies, const Saved& saved,
                 const Context<D>& context) const {
    const auto normalised = part_.template input<M>(saved.part, x.extent(0), copies);
    const TensorView<float, 1, D> kept = statistics(saved, x.extent(0));
    if constexpr (leaves_norm_to_layer<M, Norm> &&
                  requires { requires Part::takes_input_before_norm; }) {
      return BeforeNorm{norm_, x, normalised, kept};
    } else {
      norm_.forward(x, normalised, kept, context);
      return normalised;
    }
  }
  static TensorView<float, 1, D> post_statistics(const Saved& saved, TensorView<const T, 2, D> x) {
    return {saved.post_statistics, {PostNorm::statistics * x.extent(0)}};
  }
  static TensorView<float, 1, D> statistics(const Saved& saved, Index tokens) {
    return {saved.statistics, {Norm::statistics * tokens}};
  }

  Recomputation recomputation_;
  Norm norm_;
  Part part_;
  PostNorm post_norm_;
};

}  // namespace octavo

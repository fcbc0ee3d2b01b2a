/// @file
/// One block of a decoder: consecutive branches along the residual stream.
#pragma once

#include <octavo/comm/tensor_parallel.hpp>
#include <octavo/layers/flat_parameters.hpp>
#include <octavo/layers/residual_branch.hpp>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace octavo OCTAVO_ABI {

template <class Numbers, class T, int Hidden, class G, Device D, class... Branches>
class PreNormBranches;

/// Runs branches in sequence: x₁ = branch₀(x₀), x₂ = branch₁(x₁), …, each x + part(norm(x)). A
/// Llama's are attention and MLP.
/// @tparam T         format of weights and activations
/// @tparam G         format of the weights' gradients
/// @tparam Branches  `ResidualBranch<…>`, or types with the same members
template <class T, int Hidden, class G, Device D, class... Branches>
using PreNormBlock =
    PreNormBranches<std::index_sequence_for<Branches...>, T, Hidden, G, D, Branches...>;

/// See PreNormBlock.
/// @tparam I  the numbers of the branches, for expressions over all of them
template <std::size_t... I, class T, int Hidden, class G, Device D, class... Branches>
class PreNormBranches<std::index_sequence<I...>, T, Hidden, G, D, Branches...> {
  static constexpr std::size_t count = sizeof...(Branches);
  /// Number of ranks that share the residual stream's rows.
  static constexpr Index degree = std::max({tensor_degree<Branches>...});
  static_assert(((tensor_degree<Branches> == degree) && ...),
                "PreNormBlock: all branches of a block must be shared by the same number of ranks");

 public:
  /// Data that the backward needs. Parts that the recompute policy drops point to memory that the
  /// blocks of one type share.
  struct Saved {
    std::tuple<typename Branches::Saved...> branches;
    std::array<T*, count - 1> between{};  ///< [tokens, Hidden], after each branch except the last
  };

  /// A device buffer for a block's offloaded activations.
  struct Offloaded {
    Saved saved;  ///< `Shared::saved`, and the activations in this buffer
    ArenaRange memory;
  };

  /// Memory that the blocks of one type share: the parts of `Saved` that are not kept, scratch
  /// memory, and the buffers that blocks with offloaded activations use in turn.
  struct Shared {
    Saved saved;
    std::tuple<typename Branches::Scratch...> scratch;
    std::array<Offloaded, activation_buffers> offloaded;
  };

  /// Allocates weights and their quantised copies.
  /// @param lender  see FlatParameters::allocate_weights
  void allocate(Arena<D>& arena, const std::string& name, LayerRegistry<D> registry,
                BlockInitial initial, Recompute recompute,
                const FlatParameters<T, G, D>* lender = nullptr) {
    recompute_ = recompute;
    (std::get<I>(branches_).declare(name, registry, initial,
                                    Recomputation{recompute, I == count - 1}),
     ...);
    flat_parameters_.allocate_weights(arena, each_parameter(), registry.layout, lender);
    (std::get<I>(branches_).allocate_weight_copies(arena), ...);
  }

  /// Allocates the gradients.
  /// @param lender  see FlatParameters::allocate_gradients
  void allocate_gradients(Arena<D>& arena, const FlatParameters<T, G, D>* lender = nullptr) {
    flat_parameters_.allocate_gradients(arena, each_parameter(), lender);
  }

  /// Allocates the memory that blocks share.
  static void allocate_shared_buffers(Arena<D>& arena, Shared& shared, Index tokens,
                                      Recompute recompute) {
    std::apply(
        [&](auto&... saved) { (Branches::allocate_shared_buffers(arena, saved, tokens), ...); },
        shared.saved.branches);
    allocate_saved_if(arena, shared.saved, tokens,
                      [&](Recompute from) { return recompute >= from; });
    T* gradient = arena.template allocate<T>(MemoryKind::activations, tokens / degree * Hidden);
    const auto allocate_scratch = [&]<class Branch>(std::type_identity<Branch>, auto& scratch) {
      scratch.normalised_gradient = gradient;
      return [&] { Branch::allocate_scratch(arena, scratch, tokens); };
    };
    std::apply(
        [&](auto&... scratch) {
          arena.overlay(allocate_scratch(std::type_identity<Branches>{}, scratch)...);
        },
        shared.scratch);
  }

  /// Allocates a device buffer for activations that are offloaded: those that only
  /// `Recompute::block` drops. Call it after `allocate_shared_buffers`.
  static void allocate_offloaded(Arena<D>& arena, Shared& shared, std::size_t buffer,
                                 Index tokens) {
    Offloaded& offloaded = shared.offloaded[buffer];
    offloaded.saved = shared.saved;
    offloaded.memory = arena.range_of([&] {
      allocate_saved_if(arena, offloaded.saved, tokens,
                        [](Recompute from) { return from == Recompute::block; });
    });
  }

  /// Allocates the memory that inference-only blocks share, without memory for a backward.
  static void allocate_inference(Arena<D>& arena, Shared& shared, Index tokens) {
    std::apply(
        [&](auto&... saved) { (Branches::allocate_shared_buffers(arena, saved, tokens), ...); },
        shared.saved.branches);
    allocate_saved_if(arena, shared.saved, tokens, [](Recompute) { return true; });
  }

  /// Allocates this block's KV cache.
  /// @param longest  maximum length of the text in tokens
  void allocate_cache(Arena<D>& arena, const Shared& shared, Index longest) {
    saved_ = shared.saved;
    (std::get<I>(branches_).allocate_cache(arena, longest), ...);
  }

  /// Allocates the memory that this block keeps for the backward.
  void allocate_saved(Arena<D>& arena, const Shared& shared, Index tokens) {
    saved_ = shared.saved;
    allocate_saved_if(arena, saved_, tokens, [&](Recompute from) { return recompute_ < from; });
  }
  /// Does the same if activations are offloaded.
  /// @param buffer  the device buffer for them
  void allocate_saved_offloaded(Arena<D>& arena, const Shared& shared, std::size_t buffer,
                                Index tokens) {
    saved_ = shared.offloaded[buffer].saved;
    allocate_saved_if(arena, saved_, tokens, [&](Recompute from) {
      return recompute_ < from && from != Recompute::block;
    });
  }

  template <class M>
  void quantize_weights(const Context<D>& context) {
    (std::get<I>(branches_).template quantize_weights<M>(context), ...);
  }

  /// Runs the forward.
  /// @param x  [tokens, Hidden]
  /// @param y  [tokens, Hidden]; must not alias x
  template <class M, class Positions>
  void forward(TensorView<const T, 2, D> x, TensorView<T, 2, D> y, const BatchView<D>& batch,
               const Positions& positions, const Context<D>& context) {
    (std::get<I>(branches_).template forward<M>(input_of(I, x), output_of(I, y), batch, positions,
                                                std::get<I>(saved_.branches), context),
     ...);
  }

  /// Replaces the gradient of y with that of x, in place, and computes the parameters' gradients.
  /// Gradients of linear layers' weights are added to if `accumulate` and overwritten otherwise;
  /// all others are added to.
  /// @param x           [tokens, Hidden], the forward's input
  /// @param gradient    [tokens, Hidden]
  template <class Positions>
  void backward(TensorView<const T, 2, D> x, TensorView<T, 2, D> gradient,
                const BatchView<D>& batch, const Positions& positions, const Shared& shared,
                bool accumulate, const Context<D>& context) {
    if (recompute_ == Recompute::block) {
      (forward_again<I>(x, batch, positions, context), ...);
    }
    (std::get<count - 1 - I>(branches_).backward(
         input_of(count - 1 - I, x), gradient, batch, positions,
         std::get<count - 1 - I>(saved_.branches), std::get<count - 1 - I>(shared.scratch),
         accumulate, context),
     ...);
  }

  /// Returns the block's flat parameters.
  [[nodiscard]] const FlatParameters<T, G, D>& flat_parameters() const { return flat_parameters_; }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    (std::get<I>(branches_).visit(visitor), ...);
  }
  /// Calls `visitor(parameter)` for the adapters' parameters, which are not in the block's flat
  /// parameters.
  template <class Visitor>
  void visit_adapters(Visitor&& visitor) {
    (std::get<I>(branches_).visit_adapters(visitor), ...);
  }

 private:
  /// Allocates the tensors of `saved` for which `wanted(from)` is true, where `from` and all later
  /// policies drop the tensor.
  template <class Wanted>
  static void allocate_saved_if(Arena<D>& arena, Saved& saved, Index tokens, const Wanted& wanted) {
    std::apply([&](auto&... of) { (Branches::allocate_saved(arena, of, tokens, wanted), ...); },
               saved.branches);
    if (!wanted(Recompute::block)) return;
    for (T*& state : saved.between) {
      state = arena.template allocate<T>(MemoryKind::activations, tokens / degree * Hidden);
    }
  }

  /// Runs the forward of branch `i` again, unless it is the last.
  template <std::size_t i, class Positions>
  void forward_again(TensorView<const T, 2, D> x, const BatchView<D>& batch,
                     const Positions& positions, const Context<D>& context) {
    if constexpr (i != count - 1) {
      std::get<i>(branches_).template forward<Mode::recompute>(
          input_of(i, x), TensorView<T, 2, D>{saved_.between[i], x.shape()}, batch, positions,
          std::get<i>(saved_.branches), context);
    }
  }
  [[nodiscard]] TensorView<const T, 2, D> input_of(std::size_t i,
                                                   TensorView<const T, 2, D> x) const {
    if (i > 0) x = {saved_.between[i - 1], x.shape()};
    return x;
  }
  [[nodiscard]] TensorView<T, 2, D> output_of(std::size_t i, TensorView<T, 2, D> y) const {
    return i == count - 1 ? y : TensorView<T, 2, D>{saved_.between[i], y.shape()};
  }
  [[nodiscard]] auto each_parameter() {
    return [this](const auto& body) { this->visit(body); };
  }

  Recompute recompute_ = Recompute::none;
  FlatParameters<T, G, D> flat_parameters_;
  std::tuple<Branches...> branches_;
  Saved saved_;
};

/// x + attention(norm(x)), then + mlp(norm(·)): the block of a Llama or a GPT-2.
template <class T, int Hidden, class G, Device D, class Norm, class Attention, class Mlp>
using AttentionMlpBlock =
    PreNormBlock<T, Hidden, G, D,
                 ResidualBranch<"attention_norm", "", Norm, Attention, T, Hidden, D>,
                 ResidualBranch<"mlp_norm", "", Norm, Mlp, T, Hidden, D>>;

}  // namespace octavo

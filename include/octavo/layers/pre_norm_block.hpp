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

/// Runs branches in sequence: x₁ = branch₀(x₀), x₂ = branch₁(x₁), …, each x + part(norm(x)). A
/// Llama's are attention and MLP.
/// @tparam T         format of weights and activations
/// @tparam G         format of the weights' gradients
/// @tparam Branches  `ResidualBranch<…>`, or types with the same members
template <class T, int Hidden, class G, Device D, class... Branches>
class PreNormBlock {
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
  /// @param lender  see FlatParameters::take_weights
  void take(Arena<D>& arena, const std::string& name, LayerRegistry<D> registry,
            BlockInitial initial, Recompute recompute,
            const FlatParameters<T, G, D>* lender = nullptr) {
    recompute_ = recompute;
    for_each_place([&](auto i) {
      const Recomputation of_branch{recompute, i == count - 1};
      std::get<i>(branches_).declare(name, registry, initial, of_branch);
    });
    run_.take_weights(arena, each_parameter(), registry.layout, lender);
    for_each_branch([&](auto& branch) { branch.take_weight_copies(arena); });
  }

  /// Allocates the gradients.
  /// @param lender  see FlatParameters::take_gradients
  void take_gradients(Arena<D>& arena, const FlatParameters<T, G, D>* lender = nullptr) {
    run_.take_gradients(arena, each_parameter(), lender);
  }

  /// Allocates the memory that blocks share.
  static void take_shared(Arena<D>& arena, Shared& shared, Index tokens, Recompute recompute) {
    std::apply([&](auto&... saved) { (Branches::take_shared(arena, saved, tokens), ...); },
               shared.saved.branches);
    take_saved_where(arena, shared.saved, tokens,
                     [&](Recompute dropped_from) { return recompute >= dropped_from; });
    T* gradient = arena.template take<T>(MemoryKind::activations, tokens / degree * Hidden);
    const auto take_scratch = [&]<class Branch>(std::type_identity<Branch>, auto& scratch) {
      scratch.normalised_gradient = gradient;
      return [&] { Branch::take_scratch(arena, scratch, tokens); };
    };
    std::apply(
        [&](auto&... scratch) {
          arena.overlay(take_scratch(std::type_identity<Branches>{}, scratch)...);
        },
        shared.scratch);
  }

  /// Allocates a device buffer for activations that are offloaded: those that only
  /// `Recompute::block` drops. Call it after `take_shared`.
  static void take_offloaded(Arena<D>& arena, Shared& shared, std::size_t buffer, Index tokens) {
    Offloaded& offloaded = shared.offloaded[buffer];
    offloaded.saved = shared.saved;
    offloaded.memory = arena.range_of([&] {
      take_saved_where(arena, offloaded.saved, tokens,
                       [](Recompute dropped_from) { return dropped_from == Recompute::block; });
    });
  }

  /// Allocates the memory that inference-only blocks share, without memory for a backward.
  static void take_inference(Arena<D>& arena, Shared& shared, Index tokens) {
    std::apply([&](auto&... saved) { (Branches::take_shared(arena, saved, tokens), ...); },
               shared.saved.branches);
    take_saved_where(arena, shared.saved, tokens, [](Recompute) { return true; });
  }

  /// Allocates this block's KV cache.
  /// @param longest  maximum length of the text in tokens
  void take_cache(Arena<D>& arena, const Shared& shared, Index longest) {
    saved_ = shared.saved;
    for_each_branch([&](auto& branch) { branch.take_cache(arena, longest); });
  }

  /// Allocates the memory that this block keeps for the backward.
  void take_saved(Arena<D>& arena, const Shared& shared, Index tokens) {
    saved_ = shared.saved;
    take_saved_where(arena, saved_, tokens,
                     [&](Recompute dropped_from) { return recompute_ < dropped_from; });
  }
  /// Does the same if activations are offloaded.
  /// @param buffer  the device buffer for them
  void take_saved_offloaded(Arena<D>& arena, const Shared& shared, std::size_t buffer,
                            Index tokens) {
    saved_ = shared.offloaded[buffer].saved;
    take_saved_where(arena, saved_, tokens, [&](Recompute dropped_from) {
      return recompute_ < dropped_from && dropped_from != Recompute::block;
    });
  }

  template <class M>
  void quantize_weights(const Context<D>& context) {
    for_each_branch([&](auto& branch) { branch.template quantize_weights<M>(context); });
  }

  /// Runs the forward.
  /// @param x  [tokens, Hidden]
  /// @param y  [tokens, Hidden]; must not alias x
  template <class M, class Positions>
  void forward(TensorView<const T, 2, D> x, TensorView<T, 2, D> y, const BatchView<D>& batch,
               const Positions& positions, const Context<D>& context) {
    for_each_place([&](auto i) {
      std::get<i>(branches_).template forward<M>(input_of(i, x), output_of(i, y), batch, positions,
                                                 std::get<i>(saved_.branches), context);
    });
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
    for_each_place([&](auto i) {
      if (recompute_ != Recompute::block || i == count - 1) return;
      std::get<i>(branches_).template forward<Mode::recompute>(
          input_of(i, x), output_of(i, gradient), batch, positions, std::get<i>(saved_.branches),
          context);
    });
    for_each_place([&](auto from_the_end) {
      constexpr std::size_t i = count - 1 - from_the_end;
      std::get<i>(branches_).backward(input_of(i, x), gradient, batch, positions,
                                      std::get<i>(saved_.branches), std::get<i>(shared.scratch),
                                      accumulate, context);
    });
  }

  /// Returns the block's flat parameters.
  [[nodiscard]] const FlatParameters<T, G, D>& run() const { return run_; }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    for_each_branch([&](auto& branch) { branch.visit(visitor); });
  }
  /// Calls `visitor(parameter)` for the adapters' parameters, which are not in the block's flat
  /// parameters.
  template <class Visitor>
  void visit_adapters(Visitor&& visitor) {
    for_each_branch([&](auto& branch) { branch.visit_adapters(visitor); });
  }

 private:
  /// Allocates the parts of `saved` for which `wanted(dropped_from)` is true. `dropped_from` is the
  /// first policy that drops the part.
  template <class Wanted>
  static void take_saved_where(Arena<D>& arena, Saved& saved, Index tokens, const Wanted& wanted) {
    std::apply([&](auto&... of) { (Branches::take_saved(arena, of, tokens, wanted), ...); },
               saved.branches);
    if (!wanted(Recompute::block)) return;
    for (T*& state : saved.between) {
      state = arena.template take<T>(MemoryKind::activations, tokens / degree * Hidden);
    }
  }

  template <class Body>
  void for_each_branch(const Body& body) {
    std::apply([&](auto&... branch) { (body(branch), ...); }, branches_);
  }
  /// Calls `body(i)` with the number of every branch as a constant.
  template <class Body>
  static void for_each_place(const Body& body) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (body(std::integral_constant<std::size_t, I>{}), ...);
    }(std::index_sequence_for<Branches...>{});
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
  FlatParameters<T, G, D> run_;
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

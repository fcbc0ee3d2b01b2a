// The memory of a mixture of experts of any shape. Allocates the same as octavo::ExpertsMLP, in the
// same order.
#pragma once

#include <octavo/octavo.hpp>
#include <plan_memory/shape.hpp>

#include <cstdint>

namespace planner {

/// @tparam Up, Down  the linear layers of an expert
template <class Up, class Down, class T, octavo::Device D>
struct ExpertsLayout {
  static constexpr auto kind = octavo::MemoryKind::activations;
  using Input = octavo::OperandMemory<T, octavo::OperandKind::input, D>;

  /// Returns the number of the experts' rows for a batch of this many tokens.
  static Index row_count(const BlockSizes& sizes, Index tokens) {
    return octavo::expert_row_count(tokens * sizes.choices, sizes.experts);
  }

  /// Allocates memory that blocks share in the forward.
  static void allocate_shared_buffers(octavo::Arena<D>& arena, const BlockSizes& sizes,
                                      Index tokens) {
    const Index rows = row_count(sizes, tokens);
    (void)arena.template allocate<float>(kind, tokens * sizes.experts);
    Input().allocate_transient(arena, tokens, sizes.hidden);
    typename Up::Layer::InputMemory copies;
    copies.allocate_kept(arena, rows, sizes.hidden);
    copies.allocate_transient(arena, rows, sizes.hidden);
    typename Down::Layer::InputMemory().allocate_transient(arena, rows, sizes.ffn);
    (void)arena.template allocate<T>(kind, rows * sizes.hidden);
  }

  /// Allocates the activations in `wanted`, according to the first policy that drops each.
  template <class Wanted>
  static void allocate_saved(octavo::Arena<D>& arena, const BlockSizes& sizes, Index tokens,
                             const Wanted& wanted) {
    using octavo::Recompute;
    const Index rows = row_count(sizes, tokens);
    if (wanted(Recompute::norms)) Input().allocate_kept(arena, tokens, sizes.hidden);
    if (wanted(Recompute::swiglu)) {
      typename Down::Layer::InputMemory().allocate_kept(arena, rows, sizes.ffn);
    }
    if (wanted(Recompute::ffn)) (void)arena.template allocate<T>(kind, rows * sizes.wide_columns());
    if (!wanted(Recompute::block)) return;
    const Index pairs = tokens * sizes.choices;
    (void)arena.template allocate<float>(kind, tokens * sizes.experts);
    (void)arena.template allocate<float>(kind, pairs);
    for (const Index count : {pairs, rows, pairs, sizes.experts + 1, rows / octavo::expert_tile}) {
      (void)arena.template allocate<std::int32_t>(kind, count);
    }
  }

  /// Allocates the memory for the backward.
  static void allocate_scratch(octavo::Arena<D>& arena, const BlockSizes& sizes, Index tokens) {
    const Index rows = row_count(sizes, tokens);
    const auto allocate = [&](auto memory, Index columns) {
      memory.allocate_values(arena, kind, rows, columns);
      memory.allocate_row_major(arena, kind, rows, columns);
      memory.allocate_transposed(arena, kind, rows, columns);
    };
    (void)arena.template allocate<float>(kind, tokens * sizes.choices);
    (void)arena.template allocate<float>(kind, tokens * sizes.experts);
    (void)arena.template allocate<T>(kind, rows * sizes.ffn);
    arena.overlay([&] { allocate(typename Down::Layer::OutputGradientMemory(), sizes.hidden); },
                  [&] {
                    allocate(typename Up::Layer::OutputGradientMemory(), sizes.wide_columns());
                    (void)arena.template allocate<T>(kind, rows * sizes.hidden);
                  });
  }
};

}  // namespace planner

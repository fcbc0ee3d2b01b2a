/// @file
/// The load-balancing loss of a decoder's experts.
#pragma once

#include <octavo/layers/experts_mlp.hpp>
#include <octavo/models/stage_hooks.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Returns whether a family's blocks have experts with a load-balancing loss.
template <class Family>
constexpr bool balances_experts() {
  if constexpr (requires { Family::experts; }) {
    return Family::experts.experts > 0 && Family::balance_coefficient > 0;
  } else {
    return false;
  }
}

/// The load-balancing loss of all routers of a decoder, for each micro-batch.
template <class Family, Device D, bool = balances_experts<Family>()>
class DecoderExperts {
 public:
  void take(Arena<D>&, LayerRegistry<D>&) {}
  void begin_forward(const Context<D>&) {}
  void begin_backward(Accumulation, Index) {}
};

template <class Family, Device D>
class DecoderExperts<Family, D, true> {
 public:
  /// Allocates the sums, and tells the routers where they are.
  void take(Arena<D>& arena, LayerRegistry<D>& registry) {
    constexpr Index experts = Family::experts.experts;
    constexpr auto kind = MemoryKind::activations;
    loss_.sums = {{arena.template take<std::int32_t>(kind, experts), {experts}},
                  {arena.template take<float>(kind, experts), {experts}}};
    registry.expert_loss = &loss_;
  }
  void begin_forward(const Context<D>& context) {
    fill_zero(loss_.sums.counts.data(), loss_.sums.counts.bytes(), context);
    fill_zero(loss_.sums.probabilities.data(), loss_.sums.probabilities.bytes(), context);
  }
  /// @param rows  of the micro-batch
  void begin_backward(Accumulation accumulation, Index rows) {
    loss_.term = BalanceTerm<D>::of(loss_.sums, Family::balance_coefficient * accumulation.share,
                                    Family::config.layers * rows);
  }

 private:
  ExpertLoss<D> loss_;
};

}  // namespace octavo::detail

/// @file
/// The load-balancing loss of a model's experts.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/kernels/elementwise.hpp>
#include <octavo/kernels/router.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/tensor/batch.hpp>

#include <cmath>
#include <cstdint>

namespace octavo OCTAVO_ABI {

/// The load-balancing loss of all routers of a model. Layers register their routers before the
/// memory is allocated. The model clears the sums before a micro-batch, the forwards of training
/// add to them, and the backwards, which run after all forwards, read them. The loss therefore
/// covers one micro-batch and all layers, without padding, as in transformers.
template <Device D>
struct ExpertLoss {
  ExpertBalance<D> sums{};  ///< empty: the loss is not computed
  BalanceTerm<D> term{};

  /// Registers a router.
  /// @param experts      number of its experts
  /// @param coefficient  of the loss; 0: not computed
  /// @throws ConfigError  for a coefficient that is negative or not finite
  /// @throws UsageError   if another router was registered with other values
  void add_router(Index experts, float coefficient) {
    require<ConfigError>(
        coefficient >= 0 && std::isfinite(coefficient),
        "the balance coefficient of experts must be finite and at least 0, but is ", coefficient,
        "; 0 computes no such loss");
    require<UsageError>(routers_ == 0 || (experts == experts_ && coefficient == coefficient_),
                        "all routers of a model must have the same number of experts and balance "
                        "coefficient, but have ",
                        experts_, " and ", experts, " experts, and coefficients ", coefficient_,
                        " and ", coefficient);
    experts_ = experts;
    coefficient_ = coefficient;
    ++routers_;
  }
  void allocate(Arena<D>& arena) {
    if (coefficient_ == 0) return;
    constexpr auto kind = MemoryKind::activations;
    sums = {{arena.template allocate<std::int32_t>(kind, experts_), {experts_}},
            {arena.template allocate<float>(kind, experts_), {experts_}}};
  }

  [[nodiscard]] bool is_computed() const { return sums.counts.size() != 0; }

  /// Clears the sums before the forwards of a micro-batch.
  /// @param padding  rows at the end of each sequence that are not counted
  void begin_forward(BatchShape batch, Index padding, const Context<D>& context) {
    batch_ = batch;
    padding_ = padding;
    if (!is_computed()) return;
    fill_zero(sums.counts.data(), sums.counts.bytes(), context);
    fill_zero(sums.probabilities.data(), sums.probabilities.bytes(), context);
  }
  /// Sets the term of the loss before the backwards of the same micro-batch.
  /// @param share  of the micro-batch: see Accumulation
  void begin_backward(float share) {
    const Index counted = batch_.rows() - batch_.sequences * padding_;
    if (is_computed()) term = BalanceTerm<D>::of(sums, coefficient_ * share, routers_ * counted);
  }

  /// Calls `body(begin, count, is_counted)` for consecutive rows of the micro-batch: once if it has
  /// no padding, and otherwise twice for each sequence.
  /// @param rows  of the micro-batch
  template <class Body>
  void for_each_part(Index rows, const Body& body) const {
    if (padding_ == 0) return body(Index{0}, rows, true);
    for (Index i = 0; i < batch_.sequences; ++i) {
      const Index end = (i + 1) * batch_.tokens;
      body(i * batch_.tokens, batch_.tokens - padding_, true);
      body(end - padding_, padding_, false);
    }
  }

 private:
  Index experts_ = 0;
  Index routers_ = 0;
  float coefficient_ = 0;
  BatchShape batch_{};
  Index padding_ = 0;
};

}  // namespace octavo

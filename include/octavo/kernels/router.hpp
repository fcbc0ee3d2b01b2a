/// @file
/// The router of a mixture of experts: logits, choice of experts, and load balance, all in FP32.
#pragma once

#include <octavo/tensor/tensor.hpp>

namespace octavo OCTAVO_ABI {

/// Computes logits = x · wᵀ in FP32. Term i of an element is added to sum i mod 32, and the sums
/// are then added in halves: all devices give the same bits for BF16 operands.
/// @param x       [tokens, hidden]
/// @param w       [experts, hidden]
/// @param logits  [tokens, experts]
/// @throws ShapeError  if shapes do not match
/// @note enqueues; does not synchronise
template <class T, Device D>
void router_logits(TensorView<const T, 2, D> x, TensorView<const T, 2, D> w,
                   TensorView<float, 2, D> logits, const Context<D>& context) {
  check_shape("router_logits", "w", w, {w.extent(0), x.extent(1)});
  check_shape("router_logits", "logits", logits, {x.extent(0), w.extent(0)});
  router_logits_body(x, w, logits, context);
}

/// The results that a router computes from its logits.
template <Device D>
struct ExpertChoices {
  TensorView<float, 2, D> probabilities;   ///< [tokens, experts]: softmax of the logits
  TensorView<std::int32_t, 2, D> experts;  ///< [tokens, choices]: by descending logit
  TensorView<float, 2, D> weights;         ///< [tokens, choices]: factors of the experts' outputs
  bool renormalised = false;               ///< the weights of a token sum to 1

  /// Returns those of consecutive tokens.
  [[nodiscard]] ExpertChoices rows(Index begin, Index count) const {
    return {probabilities.rows(begin, count), experts.rows(begin, count),
            weights.rows(begin, count), renormalised};
  }
};

namespace detail {

template <Device D>
void check_choices(const char* operation, const ExpertChoices<D>& choices) {
  const Index tokens = choices.probabilities.extent(0);
  const Index experts = choices.probabilities.extent(1);
  const Index count = choices.experts.extent(1);
  require<ShapeError>(count >= 1 && count <= experts, operation, ": a token must choose 1 to ",
                      experts, " experts, but chooses ", count);
  check_shape(operation, "experts", choices.experts, {tokens, count});
  check_shape(operation, "weights", choices.weights, {tokens, count});
}

/// Returns a number that is larger for larger logits and, among equal logits, for experts with
/// lower indices. 0 and -0 are equal; NaN is the smallest. No expert has `no_expert_key`.
OCTAVO_HOST_DEVICE inline std::uint64_t expert_key(std::uint32_t logit_bits, Index expert) {
  if (logit_bits == 0x80000000u) logit_bits = 0;
  const std::uint32_t flipped = (logit_bits >> 31) != 0 ? ~logit_bits : logit_bits | 0x80000000u;
  const bool is_nan = (logit_bits & 0x7fffffffu) > 0x7f800000u;
  return std::uint64_t{is_nan ? 0 : flipped} << 32 |
         (0xfffffffeu - static_cast<std::uint32_t>(expert));
}
inline constexpr std::uint64_t no_expert_key = ~std::uint64_t{0};
/// Returns the expert of a key.
OCTAVO_HOST_DEVICE inline std::int32_t expert_of_key(std::uint64_t key) {
  return static_cast<std::int32_t>(0xfffffffeu - static_cast<std::uint32_t>(key));
}

}  // namespace detail

/// Computes the softmax of the logits, chooses the experts with the largest logits, and sets their
/// weights: their probabilities, divided by the sum of those chosen if `renormalised`. If logits
/// are equal, the expert with the lower index is chosen. NaN is chosen last.
/// @param logits  [tokens, experts]
/// @throws ShapeError  if shapes do not match
/// @note enqueues; does not synchronise
/// Source: transformers' MixtralTopKRouter and Qwen3MoeTopKRouter (`norm_topk_prob`).
template <Device D>
void choose_experts(TensorView<const float, 2, D> logits, const ExpertChoices<D>& choices,
                    const Context<D>& context) {
  check_shape("choose_experts", "logits", logits, choices.probabilities.shape());
  detail::check_choices("choose_experts", choices);
  choose_experts_body(logits, choices, context);
}

/// Sums of a router's choices over tokens and layers, for the load-balancing loss.
template <Device D>
struct ExpertBalance {
  TensorView<std::int32_t, 1, D> counts;  ///< [experts]: pairs of each expert
  TensorView<float, 1, D> probabilities;  ///< [experts]: sums of the probabilities
};

/// Adds a router's choices to the sums. Sum i of 32 contains the probabilities of tokens i, i + 32,
/// …, and the sums are then added in order.
/// @note enqueues; does not synchronise
template <Device D>
void add_expert_balance(const ExpertChoices<D>& choices, const ExpertBalance<D>& balance,
                        const Context<D>& context) {
  const Index experts = choices.probabilities.extent(1);
  detail::check_choices("add_expert_balance", choices);
  check_shape("add_expert_balance", "counts", balance.counts, {experts});
  check_shape("add_expert_balance", "probabilities", balance.probabilities, {experts});
  add_expert_balance_body(choices, balance, context);
}

/// Computes loss = experts · Σ (counts / n) · (probabilities / n), which is the number of choices
/// if all experts are chosen equally often.
/// @param n     number of tokens in the sums, those of each layer counted separately
/// @param loss  [1]
/// @note enqueues; does not synchronise
/// Source: transformers' load_balancing_loss_func; Fedus et al. 2021, arXiv 2101.03961.
template <Device D>
void expert_balance_loss(const ExpertBalance<D>& balance, Index n, TensorView<float, 1, D> loss,
                         const Context<D>& context) {
  check_shape("expert_balance_loss", "probabilities", balance.probabilities,
              balance.counts.shape());
  check_shape("expert_balance_loss", "loss", loss, {1});
  expert_balance_loss_body(balance, n, loss, context);
}

/// The load-balancing loss as a term of the loss that a step minimises.
template <Device D>
struct BalanceTerm {
  TensorView<const std::int32_t, 1, D> counts;  ///< [experts], of all layers; empty: no such term
  float factor = 0;  ///< multiplies a count: coefficient of the loss · experts / n²

  /// @param coefficient  of the loss
  /// @param n            as in expert_balance_loss
  static BalanceTerm of(const ExpertBalance<D>& balance, float coefficient, Index n) {
    const auto experts = static_cast<double>(balance.counts.extent(0));
    const double divisor = static_cast<double>(n) * static_cast<double>(n);
    return {balance.counts,
            static_cast<float>(static_cast<double>(coefficient) * experts / divisor)};
  }
};

/// Computes the gradient of the logits from that of the weights and from the load-balancing loss,
/// whose counts are constants.
/// @param weight_gradient  [tokens, choices]
/// @param logits_gradient  [tokens, experts], overwritten
/// @throws ShapeError  if shapes do not match
/// @note enqueues; does not synchronise
template <Device D>
void choose_experts_backward(const ExpertChoices<D>& choices,
                             TensorView<const float, 2, D> weight_gradient,
                             const BalanceTerm<D>& balance, TensorView<float, 2, D> logits_gradient,
                             const Context<D>& context) {
  constexpr const char* name = "choose_experts_backward";
  detail::check_choices(name, choices);
  check_shape(name, "weight_gradient", weight_gradient, choices.weights.shape());
  check_shape(name, "logits_gradient", logits_gradient, choices.probabilities.shape());
  if (!balance.counts.empty()) {
    check_shape(name, "counts", balance.counts, {choices.probabilities.extent(1)});
  }
  choose_experts_backward_body(choices, weight_gradient, balance, logits_gradient, context);
}

/// Computes x_gradient += logits_gradient · w, summed in FP32.
/// @param logits_gradient  [tokens, experts]
/// @param w                [experts, hidden]
/// @param x_gradient       [tokens, hidden]
/// @throws ShapeError  if shapes do not match
/// @note enqueues; does not synchronise
template <class T, Device D>
void add_router_input_gradient(TensorView<const float, 2, D> logits_gradient,
                               TensorView<const T, 2, D> w, TensorView<T, 2, D> x_gradient,
                               const Context<D>& context) {
  constexpr const char* name = "add_router_input_gradient";
  check_shape(name, "w", w, {logits_gradient.extent(1), x_gradient.extent(1)});
  check_shape(name, "x_gradient", x_gradient, {logits_gradient.extent(0), w.extent(1)});
  add_router_input_gradient_body(logits_gradient, w, x_gradient, context);
}

namespace detail {
/// The tokens are divided into this many pieces, whose sums are added in order.
inline constexpr Index router_pieces = 16;
}  // namespace detail

/// Returns the bytes of workspace that `router_weight_gradient` needs on any device.
constexpr std::size_t router_workspace(Index experts, Index hidden) {
  return static_cast<std::size_t>(detail::router_pieces * experts * hidden) * sizeof(float);
}

/// Computes w_gradient = logits_gradientᵀ · x, summed in FP32 and in a fixed order, which is added
/// to if `accumulate` and overwritten otherwise.
/// @param logits_gradient  [tokens, experts]
/// @param x                [tokens, hidden]
/// @param w_gradient       [experts, hidden]
/// @throws ShapeError  if shapes do not match
/// @note enqueues; does not synchronise; uses `router_workspace` bytes of the context's workspace
template <class T, class G, Device D>
void router_weight_gradient(TensorView<const float, 2, D> logits_gradient,
                            TensorView<const T, 2, D> x, TensorView<G, 2, D> w_gradient,
                            bool accumulate, const Context<D>& context) {
  constexpr const char* name = "router_weight_gradient";
  check_shape(name, "x", x, {logits_gradient.extent(0), x.extent(1)});
  check_shape(name, "w_gradient", w_gradient, {logits_gradient.extent(1), x.extent(1)});
  router_weight_gradient_body(logits_gradient, x, w_gradient, accumulate, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/router.hpp>

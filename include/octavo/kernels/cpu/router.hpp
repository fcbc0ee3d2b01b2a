/// @file
/// The router of a mixture of experts on the `Cpu` device.
#pragma once

#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/kernels/router.hpp>

#include <algorithm>
#include <bit>
#include <cmath>

namespace octavo OCTAVO_ABI::detail {

/// Returns Σ x · w over a row, in the order of router_logits.
template <class T>
float router_dot(const T* x, const T* w, Index count) {
  constexpr Index lanes = 32;
  std::array<float, lanes> sums{};
  const Index whole = count / lanes * lanes;
  for (Index i = 0; i < whole; i += lanes) {
    for (Index lane = 0; lane < lanes; ++lane) {
      sums[static_cast<std::size_t>(lane)] +=
          static_cast<float>(x[i + lane]) * static_cast<float>(w[i + lane]);
    }
  }
  for (Index i = whole; i < count; ++i) {
    sums[static_cast<std::size_t>(i - whole)] +=
        static_cast<float>(x[i]) * static_cast<float>(w[i]);
  }
  for (std::size_t half = lanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

/// See router_logits.
template <class T>
void router_logits_body(TensorView<const T, 2, Cpu> x, TensorView<const T, 2, Cpu> w,
                        TensorView<float, 2, Cpu> logits, const Context<Cpu>& context) {
  const Index experts = w.extent(0);
  parallel_for(x.extent(0), w.size(), context, [&](Index t) {
    for (Index e = 0; e < experts; ++e) {
      logits.row(t)[e] = router_dot(x.row(t), w.row(e), x.extent(1));
    }
  });
}

/// Computes the softmax of a token's logits.
inline void router_softmax(const float* logits, float* probabilities, Index experts) {
  float most = logits[0];
  for (Index e = 1; e < experts; ++e) most = std::max(most, logits[e]);
  float sum = 0;
  for (Index e = 0; e < experts; ++e) {
    probabilities[e] = std::exp(logits[e] - most);
    sum += probabilities[e];
  }
  for (Index e = 0; e < experts; ++e) probabilities[e] /= sum;
}

/// See choose_experts.
inline void choose_experts_body(TensorView<const float, 2, Cpu> logits,
                                const ExpertChoices<Cpu>& choices, const Context<Cpu>& context) {
  const Index experts = logits.extent(1);
  const Index count = choices.experts.extent(1);
  parallel_for(logits.extent(0), experts * (count + 4), context, [&](Index t) {
    const float* row = logits.row(t);
    float* probabilities = choices.probabilities.row(t);
    float* weights = choices.weights.row(t);
    router_softmax(row, probabilities, experts);
    std::uint64_t last = no_expert_key;
    float sum = 0;
    for (Index j = 0; j < count; ++j) {
      std::uint64_t next = 0;
      for (Index e = 0; e < experts; ++e) {
        const std::uint64_t key = expert_key(std::bit_cast<std::uint32_t>(row[e]), e);
        if (key < last) next = std::max(next, key);
      }
      last = next;
      const std::int32_t chosen = expert_of_key(next);
      choices.experts.row(t)[j] = chosen;
      weights[j] = probabilities[chosen];
      sum += weights[j];
    }
    if (!choices.renormalised) return;
    for (Index j = 0; j < count; ++j) weights[j] /= sum;
  });
}

/// See add_expert_balance.
inline void add_expert_balance_body(const ExpertChoices<Cpu>& choices,
                                    const ExpertBalance<Cpu>& balance,
                                    const Context<Cpu>& context) {
  const auto probabilities = choices.probabilities;
  const Index tokens = probabilities.extent(0);
  parallel_for(probabilities.extent(1), tokens, context, [&](Index e) {
    constexpr Index lanes = 32;
    float sums[lanes] = {};  // nvcc does not accept a std::array with this size in a lambda
    for (Index t = 0; t < tokens; ++t) {
      sums[t % lanes] += probabilities.row(t)[e];
    }
    float total = 0;
    for (const float sum : sums) total += sum;
    balance.probabilities.data()[e] += total;
  });
  const std::int32_t* experts = choices.experts.data();
  for (Index i = 0; i < choices.experts.size(); ++i) ++balance.counts.data()[experts[i]];
}

/// See expert_balance_loss.
inline void expert_balance_loss_body(const ExpertBalance<Cpu>& balance, Index n,
                                     TensorView<float, 1, Cpu> loss, const Context<Cpu>&) {
  const Index experts = balance.counts.extent(0);
  const auto tokens = static_cast<double>(n);
  double sum = 0;
  for (Index e = 0; e < experts; ++e) {
    sum += balance.counts.data()[e] / tokens *
           (static_cast<double>(balance.probabilities.data()[e]) / tokens);
  }
  *loss.data() = static_cast<float>(static_cast<double>(experts) * sum);
}

/// See choose_experts_backward. With the sum s of the chosen probabilities, a renormalised weight
/// is p / s, and dp = (dw − Σ dw · w) / s. Then dlogit = p · (dp − Σ dp · p).
inline void choose_experts_backward_body(const ExpertChoices<Cpu>& choices,
                                         TensorView<const float, 2, Cpu> weight_gradient,
                                         const BalanceTerm<Cpu>& balance,
                                         TensorView<float, 2, Cpu> logits_gradient,
                                         const Context<Cpu>& context) {
  const Index experts = logits_gradient.extent(1);
  const Index count = choices.experts.extent(1);
  parallel_for(logits_gradient.extent(0), 4 * experts, context, [&](Index t) {
    const float* probabilities = choices.probabilities.row(t);
    const std::int32_t* chosen = choices.experts.row(t);
    const float* weights = choices.weights.row(t);
    const float* dw = weight_gradient.row(t);
    float* gradient = logits_gradient.row(t);
    for (Index e = 0; e < experts; ++e) {
      gradient[e] = balance.counts.empty()
                        ? 0.0f
                        : balance.factor * static_cast<float>(balance.counts.data()[e]);
    }
    float mean = 0;
    float divisor = 1;
    if (choices.renormalised) {
      divisor = 0;
      for (Index j = 0; j < count; ++j) {
        mean += dw[j] * weights[j];
        divisor += probabilities[chosen[j]];
      }
    }
    for (Index j = 0; j < count; ++j) gradient[chosen[j]] += (dw[j] - mean) / divisor;
    float dot = 0;
    for (Index e = 0; e < experts; ++e) dot += gradient[e] * probabilities[e];
    for (Index e = 0; e < experts; ++e) gradient[e] = probabilities[e] * (gradient[e] - dot);
  });
}

/// See add_router_input_gradient.
template <class T>
void add_router_input_gradient_body(TensorView<const float, 2, Cpu> logits_gradient,
                                    TensorView<const T, 2, Cpu> w, TensorView<T, 2, Cpu> x_gradient,
                                    const Context<Cpu>& context) {
  constexpr Index width = 256;
  const Index experts = w.extent(0);
  const Index hidden = w.extent(1);
  parallel_for(x_gradient.extent(0), w.size(), context, [&](Index t) {
    for (Index begin = 0; begin < hidden; begin += width) {
      const Index columns = std::min(width, hidden - begin);
      std::array<float, width> sums{};
      for (Index e = 0; e < experts; ++e) {
        const float factor = logits_gradient.row(t)[e];
        const T* row = w.row(e) + begin;
        for (Index i = 0; i < columns; ++i) {
          sums[static_cast<std::size_t>(i)] += factor * static_cast<float>(row[i]);
        }
      }
      T* target = x_gradient.row(t) + begin;
      for (Index i = 0; i < columns; ++i) {
        target[i] = T(static_cast<float>(target[i]) + sums[static_cast<std::size_t>(i)]);
      }
    }
  });
}

/// See router_weight_gradient.
template <class T, class G>
void router_weight_gradient_body(TensorView<const float, 2, Cpu> logits_gradient,
                                 TensorView<const T, 2, Cpu> x, TensorView<G, 2, Cpu> w_gradient,
                                 bool accumulate, const Context<Cpu>& context) {
  const Index tokens = x.extent(0);
  const Index hidden = x.extent(1);
  const Index piece = ceil_divide(tokens, router_pieces);
  parallel_for(w_gradient.extent(0), x.size(), context, [&](Index e) {
    constexpr Index width = 256;
    for (Index begin = 0; begin < hidden; begin += width) {
      const Index columns = std::min(width, hidden - begin);
      std::array<float, width> totals{};
      for (Index first = 0; first < tokens; first += piece) {
        std::array<float, width> sums{};
        for (Index t = first; t < std::min(first + piece, tokens); ++t) {
          const float factor = logits_gradient.row(t)[e];
          const T* row = x.row(t) + begin;
          for (Index i = 0; i < columns; ++i) {
            sums[static_cast<std::size_t>(i)] += factor * static_cast<float>(row[i]);
          }
        }
        for (std::size_t i = 0; i < static_cast<std::size_t>(columns); ++i) totals[i] += sums[i];
      }
      G* target = w_gradient.row(e) + begin;
      for (Index i = 0; i < columns; ++i) {
        const float before = accumulate ? static_cast<float>(target[i]) : 0.0f;
        target[i] = G(before + totals[static_cast<std::size_t>(i)]);
      }
    }
  });
}

}  // namespace octavo::detail

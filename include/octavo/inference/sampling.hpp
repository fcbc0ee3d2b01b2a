/// @file
/// Drawing a token from logits.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/math.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

/// Which tokens may be drawn, and how likely. Each limit is of what the one before it left.
struct SamplingOptions {
  double temperature = 0.8;  ///< logits are divided by it; 0 always takes the likeliest
  Index top_k = 0;           ///< only the likeliest so many; 0: no limit
  /// Only the likeliest that together have at least this probability: the fewest, and one at least.
  double top_p = 1;
};

/// Draws tokens. Of equally likely ones the lowest comes first: with temperature 0, and where a
/// limit has room for some of them only.
class Sampler {
 public:
  /// @throws ConfigError  for a temperature that is negative or not finite, a negative `top_k`, or
  ///                      a `top_p` that is not above 0 and at most 1
  explicit Sampler(const SamplingOptions& options) : options_(options) {
    require<ConfigError>(std::isfinite(options.temperature) && options.temperature >= 0,
                         "the temperature is ", options.temperature, "; give 0 or more");
    require<ConfigError>(options.top_k >= 0, "top-k is ", options.top_k,
                         "; give a number of tokens, or 0 for no limit");
    require<ConfigError>(options.top_p > 0 && options.top_p <= 1, "top-p is ", options.top_p,
                         "; give a probability above 0, and 1 for no limit");
  }

  /// A token, with the probability that the options and softmax(logits / temperature) give it.
  /// @param logits  at least one
  /// @param random  from 0 to below 1: it decides
  /// @throws ConfigError  if one of them is NaN, or all are -Inf, or one is Inf
  [[nodiscard]] std::int32_t draw(std::span<const float> logits, double random) {
    const float largest = find_largest(logits);
    const auto likeliest = std::find(logits.begin(), logits.end(), largest) - logits.begin();
    if (options_.temperature == 0) return static_cast<std::int32_t>(likeliest);
    double total = weigh(logits, largest);
    if (options_.top_k == 0 && options_.top_p == 1) {
      return pick(weights_.size(), random * total, [&](std::size_t i) {
        return Candidate{static_cast<std::int32_t>(i), weights_[i]};
      });
    }
    total = limit(total);
    return pick(candidates_.size(), random * total, [&](std::size_t i) { return candidates_[i]; });
  }

 private:
  struct Candidate {
    std::int32_t token;
    float weight;  ///< its probability over the likeliest's
  };
  static bool comes_first(const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  }

  static float find_largest(std::span<const float> logits) {
    float largest = logits[0];
    bool are_numbers = true;
    for (const float logit : logits) {
      largest = logit > largest ? logit : largest;
      are_numbers = are_numbers && logit == logit;
    }
    require<ConfigError>(are_numbers && std::isfinite(largest),
                         "the model's logits are not finite: its weights are damaged, or too large "
                         "for their format; take others");
    return largest;
  }

  /// Sets `weights_`; returns their sum.
  double weigh(std::span<const float> logits, float largest) {
    weights_.resize(logits.size());
    const auto factor = static_cast<float>(1 / options_.temperature);
    constexpr float never = -std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const float weight = fast_exp((logits[i] - largest) * factor);
      // Where the factor is 0 or infinite, these would be NaN.
      weights_[i] = logits[i] == largest ? 1.0f : logits[i] == never ? 0.0f : weight;
    }
    double total = 0;
    for (const float weight : weights_) total += static_cast<double>(weight);
    return total;
  }

  /// Sets `candidates_` to the tokens that the limits leave; returns the sum of their weights.
  double limit(double total) {
    const auto all = weights_.size();
    const auto most =
        options_.top_k == 0 ? all : std::min(all, static_cast<std::size_t>(options_.top_k));
    // Without a number of tokens, what is too unlikely for `top_p` together is passed over.
    const double least = most < all ? 0 : (1 - options_.top_p) * total / static_cast<double>(all);
    candidates_.clear();
    for (std::size_t i = 0; i < all; ++i) {
      if (static_cast<double>(weights_[i]) < least) continue;
      candidates_.push_back({static_cast<std::int32_t>(i), weights_[i]});
    }
    if (most < candidates_.size()) {
      const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(most);
      std::nth_element(candidates_.begin(), end, candidates_.end(), comes_first);
      candidates_.erase(end, candidates_.end());
      total = 0;
      for (const Candidate& candidate : candidates_) total += static_cast<double>(candidate.weight);
    }
    std::sort(candidates_.begin(), candidates_.end(), comes_first);
    double sum = 0;
    std::size_t count = 0;
    while (count < candidates_.size() && (count == 0 || sum < options_.top_p * total)) {
      sum += static_cast<double>(candidates_[count++].weight);
    }
    candidates_.resize(count);
    return sum;
  }

  /// The first candidate at which the weights add up to more than `left`; the last with a weight if
  /// rounding leaves some.
  template <class At>
  static std::int32_t pick(std::size_t count, double left, const At& at) {
    std::int32_t last = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Candidate candidate = at(i);
      if (candidate.weight == 0) continue;
      last = candidate.token;
      left -= static_cast<double>(candidate.weight);
      if (left < 0) break;
    }
    return last;
  }

  SamplingOptions options_;
  std::vector<float> weights_;  ///< of all tokens: probabilities over the likeliest's
  std::vector<Candidate> candidates_;
};

}  // namespace octavo

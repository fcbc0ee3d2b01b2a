/// @file
/// Sampling a token from logits.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/math.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Options of sampling. Each limit applies to the tokens that the previous one keeps.
struct SamplingOptions {
  double temperature = 0.8;  ///< logits are divided by it; 0 chooses the most likely token
  Index top_k = 0;           ///< number of most likely tokens to sample from; 0: no limit
  /// Samples from the smallest set of most likely tokens that together have this probability.
  double top_p = 1;
};

namespace detail {

/// Number of logits that are processed in parallel, in vectors if the compiler has them. Sums do
/// not depend on the vectors.
inline constexpr std::size_t logit_lanes = 16;
/// Number of logits with a separate sum.
inline constexpr std::size_t logit_block = 1024;

}  // namespace detail

/// Samples tokens. Among equally likely tokens, lower IDs come first: with temperature 0, and if a
/// limit includes only some of them.
class Sampler {
 public:
  /// @throws ConfigError  for a temperature that is negative or not finite, a negative `top_k`, or
  ///                      a `top_p` that is not above 0 and at most 1
  explicit Sampler(const SamplingOptions& options) : options_(options) {
    require<ConfigError>(std::isfinite(options.temperature) && options.temperature >= 0,
                         "the temperature must be finite and at least 0, but is ",
                         options.temperature);
    require<ConfigError>(options.top_k >= 0, "top-k must be at least 0, but is ", options.top_k,
                         "; pass 0 for no limit");
    require<ConfigError>(options.top_p > 0 && options.top_p <= 1,
                         "top-p must be above 0 and at most 1, but is ", options.top_p,
                         "; pass 1 for no limit");
  }

  /// Samples a token with its probability in softmax(logits / temperature) within the limits.
  /// @param logits  at least one
  /// @param random  uniform in [0, 1): determines the token
  /// @throws ConfigError  if there is no logit, one is NaN or Inf, or all are -Inf; or `random` is
  ///                      out of range
  [[nodiscard]] std::int32_t draw(std::span<const float> logits, double random) {
    require<ConfigError>(!logits.empty(),
                         "draw: there must be at least one logit; pass those of "
                         "all tokens of the model");
    require<ConfigError>(random >= 0 && random < 1,
                         "draw: random must be at least 0 and below 1, but is ", random,
                         "; pass a uniform random number");
    const std::size_t likeliest = find_likeliest(logits);
    if (options_.temperature == 0) return static_cast<std::int32_t>(likeliest);
    double total = compute_weights(logits, logits[likeliest]);
    if (options_.top_k == 0 && options_.top_p == 1) return pick_unlimited(random * total);
    total = limit(total);
    return pick(candidates_.size(), random * total, [&](std::size_t i) { return candidates_[i]; });
  }

 private:
  struct Candidate {
    std::int32_t token;
    float weight;  ///< its probability divided by that of the most likely token
  };
  struct Bucket {
    Index count = 0;
    double sum = 0;
  };
  static bool ranks_before(const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  }

  /// Calls `body(lane, i)` for each i from `begin` to below `end`.
  template <class Body>
  static void for_each_lane(std::size_t begin, std::size_t end, const Body& body) {
    for (; begin + detail::logit_lanes <= end; begin += detail::logit_lanes) {
      for (std::size_t lane = 0; lane < detail::logit_lanes; ++lane) body(lane, begin + lane);
    }
    for (std::size_t i = begin; i < end; ++i) body(i - begin, i);
  }

  /// Returns an integer that orders floats by value; -0 equals +0. Integers of NaNs lie beyond
  /// those of infinities.
  static std::int32_t order_of(float value) {
    const auto bits = std::bit_cast<std::int32_t>(value + 0.0f);
    return bits ^ ((bits >> 31) & std::numeric_limits<std::int32_t>::max());
  }

  /// Returns the first of the largest logits. First finds its block by comparing integers:
  /// compilers vectorise their maximum regardless of options about NaN (Clang, and GCC 12 with
  /// -O3).
  static std::size_t find_likeliest(std::span<const float> logits) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    std::int32_t largest = std::numeric_limits<std::int32_t>::min();
    std::int32_t smallest = std::numeric_limits<std::int32_t>::max();
    std::size_t found = 0;
    for (std::size_t begin = 0; begin < logits.size(); begin += detail::logit_block) {
      const std::size_t count = std::min(detail::logit_block, logits.size() - begin);
      std::int32_t most = std::numeric_limits<std::int32_t>::min();
      std::int32_t least = std::numeric_limits<std::int32_t>::max();
      for (const float logit : logits.subspan(begin, count)) {
        most = std::max(most, order_of(logit));
        least = std::min(least, order_of(logit));
      }
      smallest = std::min(smallest, least);
      if (most <= largest) continue;
      largest = most;
      found = begin;
    }
    const bool are_numbers = smallest >= order_of(-infinity) && largest < order_of(infinity);
    require<ConfigError>(are_numbers && largest > order_of(-infinity),
                         "the model's logits are not finite: its weights are damaged, or too large "
                         "for their format; use other weights");
    while (order_of(logits[found]) != largest) ++found;
    return found;
  }

  /// Sets `weights_`, and the sum and the largest weight of each block. Returns the sum of all.
  double compute_weights(std::span<const float> logits, float largest) {
    weights_.resize(logits.size());
    const auto factor = static_cast<float>(1 / options_.temperature);
    constexpr float never = -std::numeric_limits<float>::infinity();
    sums_.clear();
    block_maxima_.clear();
    double total = 0;
    for (std::size_t begin = 0; begin < logits.size(); begin += detail::logit_block) {
      double sums[detail::logit_lanes] = {};
      const std::size_t end = std::min(begin + detail::logit_block, logits.size());
      for_each_lane(begin, end, [&](std::size_t lane, std::size_t i) {
        const float weight = fast_exp((logits[i] - largest) * factor);
        // These would be NaN if the factor is 0 or infinite.
        weights_[i] = logits[i] == largest ? 1.0f : logits[i] == never ? 0.0f : weight;
        sums[lane] += static_cast<double>(weights_[i]);
      });
      sums_.push_back(std::accumulate(std::begin(sums), std::end(sums), 0.0));
      total += sums_.back();
      std::int32_t top = 0;
      for (std::size_t i = begin; i < end; ++i) top = std::max(top, order_of(weights_[i]));
      block_maxima_.push_back(std::bit_cast<float>(top));
    }
    return total;
  }

  /// Applies `pick` to all tokens, after finding the block that contains the result.
  [[nodiscard]] std::int32_t pick_unlimited(double left) const {
    std::size_t found = 0;
    double block_remainder = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      if (sums_[i] == 0) continue;
      found = i;
      if (left < sums_[i]) {
        block_remainder = left;
        break;
      }
      left -= sums_[i];
    }
    const std::size_t first = found * detail::logit_block;
    return pick(std::min(detail::logit_block, weights_.size() - first), block_remainder,
                [&](std::size_t i) {
                  return Candidate{static_cast<std::int32_t>(first + i), weights_[first + i]};
                });
  }

  /// Returns a lower bound of the `top_k` largest weights: at least `top_k` blocks contain a weight
  /// that is not smaller. Blocks below it need no further search. 0: no bound is known.
  [[nodiscard]] float top_k_bound() {
    const auto most = static_cast<std::size_t>(options_.top_k);
    if (most == 0 || block_maxima_.size() < most) return 0.0f;
    sorted_maxima_ = block_maxima_;
    const auto last = sorted_maxima_.begin() + static_cast<std::ptrdiff_t>(most - 1);
    std::nth_element(sorted_maxima_.begin(), last, sorted_maxima_.end(), std::greater<>{});
    return *last;
  }

  /// Calls `body(i)` for each weight that is not 0 and at least `least`.
  template <class Body>
  void for_each_at_least(float least, const Body& body) const {
    for (std::size_t block = 0; block < block_maxima_.size(); ++block) {
      if (block_maxima_[block] < least) continue;
      const std::size_t begin = block * detail::logit_block;
      const std::size_t end = std::min(begin + detail::logit_block, weights_.size());
      for (std::size_t i = begin; i < end; ++i) {
        if (weights_[i] >= least && weights_[i] != 0) body(i);
      }
    }
  }

  /// Returns a close lower bound of the weights within the limits, in one pass instead of a sort.
  /// Weights with equal upper bits are counted together.
  float least_weight(double total) {
    constexpr int lower_bits = 19;
    const auto bucket_of = [](float weight) {
      return std::bit_cast<std::uint32_t>(weight) >> lower_bits;
    };
    buckets_.assign(bucket_of(1.0f) + 1, {});
    for_each_at_least(top_k_bound(), [&](std::size_t i) {
      Bucket& bucket = buckets_[bucket_of(weights_[i])];
      ++bucket.count;
      bucket.sum += static_cast<double>(weights_[i]);
    });
    constexpr double rounding = 1 + 1e-9;
    Bucket larger;
    auto last = static_cast<std::uint32_t>(buckets_.size());
    while (last > 0) {
      --last;
      larger.count += buckets_[last].count;
      larger.sum += buckets_[last].sum;
      if (options_.top_k == 0 ? larger.sum >= rounding * options_.top_p * total
                              : larger.count >= options_.top_k) {
        break;
      }
    }
    return std::bit_cast<float>(last << lower_bits);
  }

  /// Sets `candidates_` to the tokens within the limits. Returns the sum of their weights.
  double limit(double total) {
    candidates_.clear();
    for_each_at_least(least_weight(total), [&](std::size_t i) {
      candidates_.push_back({static_cast<std::int32_t>(i), weights_[i]});
    });
    std::sort(candidates_.begin(), candidates_.end(), ranks_before);
    if (options_.top_k != 0) {
      candidates_.resize(std::min(candidates_.size(), static_cast<std::size_t>(options_.top_k)));
      total = 0;
      for (const Candidate& candidate : candidates_) total += static_cast<double>(candidate.weight);
    }
    double sum = 0;
    std::size_t count = 0;
    while (count < candidates_.size() && (count == 0 || sum < options_.top_p * total)) {
      sum += static_cast<double>(candidates_[count++].weight);
    }
    candidates_.resize(count);
    return sum;
  }

  /// Returns the first candidate at which the sum of weights exceeds `left`, or the last candidate
  /// with a weight if rounding prevents that.
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
  std::vector<float> weights_;        ///< of all tokens: probabilities divided by the largest one
  std::vector<double> sums_;          ///< of each block of weights
  std::vector<float> block_maxima_;   ///< largest weight of each block
  std::vector<float> sorted_maxima_;  ///< `block_maxima_`, partly sorted in descending order
  std::vector<Bucket> buckets_;       ///< of tokens with similar weights
  std::vector<Candidate> candidates_;
};

}  // namespace octavo

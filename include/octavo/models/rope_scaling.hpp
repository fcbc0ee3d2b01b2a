/// @file
/// Rotary frequencies, and their scaling for sequences longer than in the original training.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/formats/format_traits.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace octavo OCTAVO_ABI {

/// How rotary frequencies are scaled for sequences longer than in the original training.
enum class RopeKind {
  plain,    ///< not at all
  linear,   ///< all frequencies are divided by the factor
  dynamic,  ///< a larger base for sequences beyond the original length
  yarn,     ///< low frequencies are divided by the factor, high ones kept, others interpolated
  llama3,   ///< the same with other limits
};

/// Parameters of a scaling, named as in `rope_scaling` of a Hugging Face configuration. A kind
/// ignores parameters that it does not have.
/// Source: transformers, modeling_rope_utils.py; Peng et al. 2023, arXiv 2309.00071 (YaRN).
struct RopeScaling {
  RopeKind kind = RopeKind::plain;
  float factor = 1.0f;
  float low_frequency_factor = 1.0f;   ///< of llama3
  float high_frequency_factor = 4.0f;  ///< of llama3
  /// Sequence length of the original training in tokens: of llama3, yarn and dynamic.
  int original_length = 8192;
  float beta_fast = 32.0f;  ///< of yarn: rotations above which frequencies are kept
  float beta_slow = 1.0f;   ///< of yarn: rotations below which frequencies are divided
  /// Factor of cosines and sines of yarn; 0: 0.1 · ln(factor) + 1.
  float attention_factor = 0.0f;
  bool truncate = true;  ///< of yarn: the limits are rounded to whole pairs

  /// Whether all parameters that the kind has are in range.
  [[nodiscard]] constexpr bool is_valid() const {
    const auto is_positive = [](float value) { return value > 0 && is_finite(value); };
    const bool has_length =
        kind == RopeKind::plain || kind == RopeKind::linear || original_length > 0;
    if (kind != RopeKind::plain && !is_positive(factor)) return false;
    if (kind == RopeKind::yarn) {
      return has_length && is_positive(beta_fast) && is_positive(beta_slow) &&
             attention_factor >= 0 && is_finite(attention_factor);
    }
    if (kind == RopeKind::llama3) {
      return has_length && low_frequency_factor > 0 &&
             low_frequency_factor < high_frequency_factor && is_finite(high_frequency_factor);
    }
    return has_length;
  }
};

/// The frequencies of a rotary embedding.
struct RopeFrequencies {
  double theta = 10000;
  Index head_dim = 0;
  RopeScaling scaling{};
  /// Length in tokens of the longest sequence: a dynamic scaling depends on it.
  Index longest = 0;

  /// Returns the angle by which pair `j` of a head rotates per position.
  [[nodiscard]] double operator()(Index j) const {
    const double factor = scaling.factor;
    switch (scaling.kind) {
      case RopeKind::plain:
        return plain(theta, j);
      case RopeKind::linear:
        return plain(theta, j) / factor;
      case RopeKind::dynamic: {
        const auto dim = static_cast<double>(head_dim);
        const auto length = static_cast<double>(std::max<Index>(longest, scaling.original_length));
        const double growth = factor * length / scaling.original_length - (factor - 1);
        return plain(theta * std::pow(growth, dim / (dim - 2)), j);
      }
      case RopeKind::yarn: {
        const double low = yarn_limit(scaling.beta_fast);
        double high = yarn_limit(scaling.beta_slow);
        const double first = std::max(scaling.truncate ? std::floor(low) : low, 0.0);
        high =
            std::min(scaling.truncate ? std::ceil(high) : high, static_cast<double>(head_dim - 1));
        if (first == high) high += 0.001;
        const double divided =
            std::clamp((static_cast<double>(j) - first) / (high - first), 0.0, 1.0);
        return plain(theta, j) * (divided / factor + (1 - divided));
      }
      case RopeKind::llama3:
        break;
    }
    const double frequency = plain(theta, j);
    const double wavelength = 2.0 * std::numbers::pi / frequency;
    const double ratio = scaling.original_length / wavelength;
    const double low = scaling.low_frequency_factor;
    const double high = scaling.high_frequency_factor;
    const double divided = frequency / factor;
    if (ratio > high) return frequency;
    if (ratio < low) return divided;
    const double smooth = (ratio - low) / (high - low);
    return (1.0 - smooth) * divided + smooth * frequency;
  }

  /// Returns the factor of all cosines and sines.
  [[nodiscard]] double magnitude() const {
    if (scaling.kind != RopeKind::yarn) return 1;
    if (scaling.attention_factor != 0) return scaling.attention_factor;
    return scaling.factor <= 1 ? 1 : 0.1 * std::log(static_cast<double>(scaling.factor)) + 1;
  }

 private:
  [[nodiscard]] double plain(double base, Index j) const {
    return std::pow(base, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim));
  }
  /// Returns the pair that makes this number of rotations in the original length.
  [[nodiscard]] double yarn_limit(double rotations) const {
    return static_cast<double>(head_dim) *
           std::log(scaling.original_length / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  }
};

}  // namespace octavo

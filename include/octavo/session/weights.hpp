/// @file
/// Weights that are copied into a session or out of it, piece by piece.
#pragma once

#include <octavo/core/array.hpp>
#include <octavo/core/error.hpp>
#include <octavo/formats/format_traits.hpp>
#include <octavo/layers/parameter_part.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>

namespace octavo OCTAVO_ABI {

/// A parameter as it appears to users: not sharded, and without padding rows.
struct WeightInfo {
  std::string name;    ///< such as "blocks.0.qkv.weight"
  std::string format;  ///< of its elements: "fp32" or "bf16"
  Index rows = 0;      ///< 1 for vectors
  Index columns = 0;
  bool is_adapter = false;  ///< see Lora
};

/// Provides elements of a parameter, row-major: `values` starts at element `begin`. Several threads
/// call it at the same time.
using WeightSource = std::function<void(Index begin, std::span<float> values)>;

/// Receives elements of a parameter. Each element is passed once; the order is arbitrary if ranks
/// have parts of the parameter.
using WeightSink =
    std::function<void(const WeightInfo& weight, Index begin, std::span<const float> values)>;

namespace detail {

/// Elements per piece: 4 MiB of floats.
inline constexpr Index weights_at_once = Index{1} << 20;

/// @tparam T        format of the weight
/// @param place_of  returns the position of a value in the whole weight
/// @throws ConfigError  naming the first value that is not finite in the format
template <class T, class PlaceOf>
void require_finite(const std::string& name, std::span<const float> values,
                    const PlaceOf& place_of) {
  const auto wrong = std::find_if(values.begin(), values.end(), [](float value) {
    return !std::isfinite(static_cast<float>(T(value)));
  });
  if (wrong == values.end()) return;
  throw ConfigError(message(name, ": element ", place_of(wrong - values.begin()),
                            " must be finite in ", FormatTraits<T>::name,
                            ", the weight's format, but is ", *wrong));
}

/// Calls a source for the elements of a part of a parameter; padding elements become 0.
/// @param shape   of the part
/// @param live    elements of the whole that are not padding
/// @param begin   of the first value in the part
inline void take_elements(const ParameterPart& part, const Array<Index, 2>& shape, Index live,
                          const WeightSource& source, Index begin, std::span<float> values) {
  const Index end = begin + static_cast<Index>(values.size());
  const auto between = [&](Index from, Index to) {
    return values.subspan(static_cast<std::size_t>(from - begin),
                          static_cast<std::size_t>(to - from));
  };
  Index at = begin;  // values before it are filled
  const auto pad_to = [&](Index place) { std::ranges::fill(between(at, place), 0.0f); };
  part.for_each_stripe(shape, [&](Index stripe, Index whole, Index count) {
    const Index from = std::max(stripe, begin);
    const Index first = whole + from - stripe;
    const Index wanted = std::min(std::min(stripe + count, end) - from, live - first);
    if (wanted <= 0) return;
    pad_to(from);
    source(first, between(from, from + wanted));
    at = from + wanted;
  });
  pad_to(end);
}

}  // namespace detail
}  // namespace octavo

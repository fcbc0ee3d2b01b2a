/// @file
/// Decodes the names of a state's entries that belong to parameters.
#pragma once

#include <octavo/core/macros.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <string>

namespace octavo OCTAVO_ABI::detail {

/// The kind of a parameter's state that an entry contains.
enum class ParameterState {
  weight,
  master,
  first_moment,
  second_moment,
  first_scale,
  second_scale
};

inline constexpr std::array<const char*, 6> parameter_state_prefixes{
    "model.",
    "optimizer.master.",
    "optimizer.first_moment.",
    "optimizer.second_moment.",
    "optimizer.first_moment_scale.",
    "optimizer.second_moment_scale."};
inline constexpr std::array<const char*, 6> parameter_state_names{
    "weights",        "master weights",          "first moments",
    "second moments", "scales of first moments", "scales of second moments"};

struct ParameterStateName {
  ParameterState kind;
  std::string parameter;

  [[nodiscard]] bool is_scale() const { return kind >= ParameterState::first_scale; }
  [[nodiscard]] bool is_first() const {
    return kind == ParameterState::first_moment || kind == ParameterState::first_scale;
  }
  [[nodiscard]] const char* text() const {
    return parameter_state_names[static_cast<std::size_t>(kind)];
  }
};

/// Returns nothing if the entry does not belong to a parameter.
inline std::optional<ParameterStateName> parameter_state(const std::string& name) {
  for (std::size_t i = 0; i < parameter_state_prefixes.size(); ++i) {
    const std::string prefix = parameter_state_prefixes[i];
    if (!name.starts_with(prefix)) continue;
    return ParameterStateName{static_cast<ParameterState>(i), name.substr(prefix.size())};
  }
  return std::nullopt;
}

/// Returns the name of the moment whose scales an entry contains, or "".
inline std::string moment_of_scale(const std::string& name) {
  const auto state = parameter_state(name);
  if (!state.has_value() || !state->is_scale()) return {};
  const auto moment =
      state->is_first() ? ParameterState::first_moment : ParameterState::second_moment;
  return parameter_state_prefixes[static_cast<std::size_t>(moment)] + state->parameter;
}

}  // namespace octavo OCTAVO_ABI::detail

/// @file
/// Conversion of state between recipes and between formats of the optimizer's state.
#pragma once

#include <octavo/checkpoint/checkpoint_pieces.hpp>
#include <octavo/formats/formats.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Returns the scale of a group of a moment.
/// @tparam Code  FirstMomentCode or SecondMomentCode
template <class Code>
E8M0 scale_of_group(std::span<const float> group) {
  float amax = 0;
  for (const float value : group) amax = std::max(amax, std::abs(value));
  return Code::Levels::scale(amax);
}
/// Returns the codes of a group, each rounded to the nearest.
template <class Code>
void encode_group(std::span<const float> group, std::byte* codes) {
  constexpr std::uint32_t half = 1u << 31;
  const E8M0 scale = scale_of_group<Code>(group);
  for (std::size_t i = 0; i < group.size(); ++i) {
    const std::uint32_t code = Code::encode(Code::saturated(group[i], scale), scale, half);
    codes[i] = static_cast<std::byte>(EightBit::upper(code).bits);
  }
}
/// Returns the values of groups, the last of which may be shorter.
template <class Code>
void decode_groups(std::span<const std::byte> codes, std::span<const std::byte> scales,
                   std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const E8M0 scale = E8M0::from_bits(static_cast<std::uint8_t>(scales[i / moment_group]));
    values[i] = Code::decode(EightBit{static_cast<std::uint8_t>(codes[i])}, scale);
  }
}

/// Converts the entries of a checkpoint to those of a session with another recipe or optimizer.
class CheckpointConversion {
 public:
  /// @param pieces          must outlive this object
  /// @param is_same_recipe  if so, scales and histories are kept
  /// @param wanted          all entries that the session needs
  CheckpointConversion(const CheckpointPieces& pieces, bool is_same_recipe,
                       std::span<const StateEntry> wanted)
      : pieces_(pieces), is_same_recipe_(is_same_recipe) {
    for (const StateEntry& entry : wanted) has_scaling_ |= entry.name.starts_with(scaling_prefix);
  }

  /// Returns whether the session does not need this entry of the checkpoint.
  [[nodiscard]] static bool is_dropped(const std::string& name) {
    const auto state = parameter_state(name);
    return name.starts_with(scaling_prefix) ||
           (state.has_value() && (state->is_scale() || state->kind == ParameterState::master ||
                                  state->kind == ParameterState::second_moment));
  }
  /// Returns a line "what\tname"; see `text`.
  [[nodiscard]] static std::string dropped_text(const std::string& name) {
    if (name.starts_with(scaling_prefix)) {
      return message("scales with histories: dropped\t", operand_of(name), '\n');
    }
    const auto state = parameter_state(name);
    if (state->is_scale()) return {};  // reported with the moments
    return message(state->text(), ": dropped\t", state->parameter, '\n');
  }

  /// Returns whether an entry differs from the checkpoint's entry of that name.
  [[nodiscard]] bool converts_entry(const StateEntry& wanted) const {
    if (is_of_recipe(wanted)) return !is_same_recipe_;
    return source_of(wanted) != nullptr;
  }

  /// @param bytes  receives the entry, `wanted.bytes` bytes
  /// @throws IoError  naming the file, if one cannot be read
  void make(const StateEntry& wanted, std::span<std::byte> bytes) const {
    if (is_of_recipe(wanted)) {
      make_initial(wanted, bytes);
      return;
    }
    const ParameterStateName state = *parameter_state(wanted.name);
    const StateEntry& source = *source_of(wanted);
    const Index group = state.is_scale() ? moment_group : 1;
    const Index begin = wanted.begin * group;
    const Index end =
        std::min(begin + elements_of(wanted.shape) * group, elements_of(source.whole));
    constexpr Index at_once = Index{1} << 20;
    static_assert(at_once % moment_group == 0);
    std::vector<float> values;
    for (Index at = begin; at < end; at += at_once) {
      values.resize(static_cast<std::size_t>(std::min(at_once, end - at)));
      read_values(source, wanted.part, at, values);
      const std::size_t size = bytes.size() / static_cast<std::size_t>(elements_of(wanted.shape));
      put(state, wanted.format, values,
          bytes.data() + size * static_cast<std::size_t>((at - begin) / group));
    }
  }

  /// Describes the conversion of an entry, as a line "what\tname" of one parameter or operand, or
  /// "".
  [[nodiscard]] std::string text(const StateEntry& wanted) const {
    if (wanted.name.starts_with(scaling_prefix)) {
      return message("scales with histories: ",
                     is_same_recipe_ ? "kept" : "initialised again; the next step calibrates them",
                     '\t', operand_of(wanted.name), '\n');
    }
    const auto state = parameter_state(wanted.name);
    if (!state.has_value() || state->is_scale()) return {};
    const StateEntry* source = source_of(wanted);
    const std::string what =
        source == nullptr
            ? message("kept in ", wanted.format)
            : message("converted from ", source->format, ' ', parameter_state(source->name)->text(),
                      ", ", is_finer(source->format, wanted.format) ? "rounded to " : "now ",
                      wanted.format);
    return message(state->text(), ": ", what, '\t', state->parameter, '\n');
  }

 private:
  static constexpr const char* scaling_prefix = "scaling.";

  static std::string operand_of(const std::string& name) {
    const std::size_t begin = std::strlen(scaling_prefix);
    return name.substr(begin, name.rfind('.') - begin);
  }
  static bool is_of_recipe(const StateEntry& entry) {
    return entry.name == "session.recipe" || entry.name == "session.must_calibrate" ||
           entry.name.starts_with(scaling_prefix);
  }
  static int bits_of(const std::string& format) {
    return format == "fp32" ? 32 : format == "bf16" ? 16 : format == "8-bit" ? 8 : 0;
  }
  static bool is_finer(const std::string& format, const std::string& other) {
    return bits_of(format) > bits_of(other);
  }

  /// Returns the entry from which an entry of a parameter is computed; null if it is stored as it
  /// is, or if there is none.
  [[nodiscard]] const StateEntry* source_of(const StateEntry& wanted) const {
    const auto state = parameter_state(wanted.name);
    if (!state.has_value()) return nullptr;
    const StateEntry* own = pieces_.find(wanted.name);
    if (own != nullptr && own->format == wanted.format) return nullptr;
    const auto find = [&](ParameterState kind) {
      return pieces_.find(parameter_state_prefixes[static_cast<std::size_t>(kind)] +
                          state->parameter);
    };
    const StateEntry* source = nullptr;
    if (state->kind == ParameterState::weight || state->kind == ParameterState::master) {
      source = find(ParameterState::master);
      if (source == nullptr) source = find(ParameterState::weight);
    } else {
      source =
          find(state->is_first() ? ParameterState::first_moment : ParameterState::second_moment);
    }
    const bool is_known = source != nullptr && bits_of(source->format) != 0 &&
                          (state->is_scale() || source->whole == wanted.whole);
    return is_known ? source : nullptr;
  }

  /// Resets scales to 1 and clears histories, for another recipe; the next step calibrates them.
  void make_initial(const StateEntry& wanted, std::span<std::byte> bytes) const {
    std::ranges::fill(bytes, std::byte{0});
    if (wanted.name == "session.must_calibrate") {
      const std::int64_t calibrates = has_scaling_ ? 1 : 0;
      std::memcpy(bytes.data(), &calibrates, sizeof(calibrates));
    } else if (wanted.name.ends_with(".scale") || wanted.name.ends_with(".scale_inverse")) {
      constexpr float one = 1.0f;
      std::memcpy(bytes.data(), &one, sizeof(one));
    }
  }

  /// Reads elements without conversion.
  [[nodiscard]] std::vector<std::byte> read(const StateEntry& source, const ParameterPart& part,
                                            Index begin, std::size_t count,
                                            std::size_t size) const {
    StateEntry elements;
    elements.name = source.name;
    elements.format = source.format;
    elements.shape = {static_cast<Index>(count)};
    elements.whole = source.whole;
    elements.begin = begin;
    elements.part = part;
    elements.bytes = count * size;
    std::vector<std::byte> bytes(elements.bytes);
    pieces_.read(elements, bytes);
    return bytes;
  }

  /// @param begin  for an 8-bit moment, a multiple of the group size
  void read_values(const StateEntry& source, const ParameterPart& part, Index begin,
                   std::span<float> values) const {
    const auto size = static_cast<std::size_t>(bits_of(source.format) / 8);
    const std::vector<std::byte> bytes = read(source, part, begin, values.size(), size);
    if (source.format == "fp32") {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    } else if (source.format == "bf16") {
      for (std::size_t i = 0; i < values.size(); ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + i * size, size);
        values[i] = static_cast<float>(Bf16::from_bits(bits));
      }
    } else {
      const ParameterStateName state = *parameter_state(source.name);
      const ParameterState scale =
          state.is_first() ? ParameterState::first_scale : ParameterState::second_scale;
      const StateEntry* scale_entry =
          pieces_.find(parameter_state_prefixes[static_cast<std::size_t>(scale)] + state.parameter);
      require<IoError>(scale_entry != nullptr, "the checkpoint has ", source.name,
                       " without its scales; it is damaged, use another checkpoint");
      const std::vector<std::byte> scales = read(
          *scale_entry, part, begin / moment_group,
          static_cast<std::size_t>(ceil_divide(static_cast<Index>(values.size()), moment_group)),
          1);
      if (state.is_first()) {
        decode_groups<FirstMomentCode>(bytes, scales, values);
      } else {
        decode_groups<SecondMomentCode>(bytes, scales, values);
      }
    }
  }

  /// Rounds values to a format.
  static void put(const ParameterStateName& state, const std::string& format,
                  std::span<const float> values, std::byte* target) {
    if (format == "fp32") {
      std::memcpy(target, values.data(), values.size_bytes());
    } else if (format == "bf16") {
      for (const float value : values) {
        const Bf16 rounded(value);
        std::memcpy(target, &rounded, sizeof(rounded));
        target += sizeof(rounded);
      }
    } else {
      for (std::size_t begin = 0; begin < values.size(); begin += moment_group) {
        const auto group =
            values.subspan(begin, std::min<std::size_t>(moment_group, values.size() - begin));
        if (state.is_scale()) {
          const E8M0 scale = state.is_first() ? scale_of_group<FirstMomentCode>(group)
                                              : scale_of_group<SecondMomentCode>(group);
          *target++ = static_cast<std::byte>(scale.bits);
        } else if (state.is_first()) {
          encode_group<FirstMomentCode>(group, target + begin);
        } else {
          encode_group<SecondMomentCode>(group, target + begin);
        }
      }
    }
  }

  const CheckpointPieces& pieces_;
  bool is_same_recipe_;
  bool has_scaling_ = false;
};

}  // namespace octavo OCTAVO_ABI::detail

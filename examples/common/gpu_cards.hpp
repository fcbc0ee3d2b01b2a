// GPUs by name, for programs that plan for a GPU that is not in this machine.
#pragma once

#include <octavo/core/capability.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace programs {

/// A GPU that is sold under a name.
struct GpuCard {
  const char* name;
  int capability;  ///< compute capability, times ten
  double gib;      ///< memory that the driver lists, in GiB
};

/// Source: NVIDIA's data sheets, and the memory that nvidia-smi lists.
inline constexpr std::array gpu_cards{
    GpuCard{"A100 40GB", 80, 40}, GpuCard{"A100 80GB", 80, 80},    GpuCard{"RTX 3090", 86, 24},
    GpuCard{"A10", 86, 22.5},     GpuCard{"RTX A6000", 86, 48},    GpuCard{"L40S", 89, 45},
    GpuCard{"RTX 4090", 89, 24},  GpuCard{"H100", 90, 80},         GpuCard{"H200", 90, 141},
    GpuCard{"GH200", 90, 95},     GpuCard{"B200", 100, 179},       GpuCard{"B300", 103, 267},
    GpuCard{"RTX 5090", 120, 32}, GpuCard{"RTX PRO 6000", 120, 96}};

/// The compute capabilities of all GPUs that the CUDA Toolkit 13.0 compiles for and Octavo
/// supports, times ten.
inline constexpr std::array known_capabilities{80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

/// How far Octavo is tested on GPUs of a compute capability. `scripts/check sass` compiles for 10.x
/// and 12.x, and `benchmarks/results/ptx-h100.md` lists what ran as PTX.
inline const char* tested_on(int capability) {
  if (capability == 90) return "run and measured";
  if (capability == 80 || capability == 86 || capability == 89)
    return "tested as PTX on an H100 or H200, never run on this GPU";
  const int major = capability / 10;
  return major == 10 || major == 12 ? "compiled only, never run" : "neither compiled nor run";
}

namespace detail {

/// Returns the letters and digits of a name in lower case, without the maker and its brands.
inline std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char letter : name) {
    const auto code = static_cast<unsigned char>(letter);
    if (std::isalnum(code) != 0) plain += static_cast<char>(std::tolower(code));
  }
  for (const std::string_view maker : {"nvidia", "geforce", "rtx"}) {
    if (plain.starts_with(maker)) plain.erase(0, maker.size());
  }
  return plain;
}

}  // namespace detail

/// Returns the card of this name, such as "RTX 4090", or else the cards whose name begins with it,
/// such as "a100".
/// @param advice  how to choose any other GPU, for the message
/// @throws ConfigError  if there is none; it lists the names
inline std::vector<GpuCard> cards_named(std::string_view name, const char* advice) {
  const std::string wanted = detail::plain_name(name);
  std::vector<GpuCard> found;
  std::string names;
  for (const GpuCard& card : gpu_cards) {
    names += (names.empty() ? "" : ", ") + std::string(card.name);
    const std::string plain = detail::plain_name(card.name);
    if (!wanted.empty() && plain == wanted) return {card};
    if (!wanted.empty() && plain.starts_with(wanted)) found.push_back(card);
  }
  octavo::require<octavo::ConfigError>(!found.empty(), "the card must be one of ", names,
                                       ", but is '", name, "'; for another GPU, ", advice);
  return found;
}

/// A compute capability such as "8.6", "sm_86" or "sm_90a", and a memory such as ":24GiB" behind
/// it.
struct GivenCapability {
  int capability = 0;
  std::optional<double> gib;
};

/// Returns the capability and the memory that a text names, or nothing if it has another form.
/// @throws ConfigError  if Octavo does not support the capability, if no GPU has it, or if the
///                      memory is not a number
inline std::optional<GivenCapability> capability_given(std::string_view text) {
  std::string_view name = text.substr(0, text.find(':'));
  const bool is_architecture = name.starts_with("sm_") || name.starts_with("compute_");
  if (is_architecture) name.remove_prefix(name.find('_') + 1);
  if (is_architecture && (name.ends_with('a') || name.ends_with('f'))) name.remove_suffix(1);
  std::string digits(name);
  if (!is_architecture && digits.size() >= 3 && digits[digits.size() - 2] == '.') {
    digits.erase(digits.size() - 2, 1);
  } else if (!is_architecture) {
    return {};
  }
  if (digits.size() < 2 || digits.size() > 3 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    return {};
  }
  GivenCapability given{std::stoi(digits), {}};
  const std::string refusal = octavo::capability_refusal(given.capability);
  octavo::require<octavo::ConfigError>(refusal.empty(), refusal);
  std::string known;
  for (const int one : known_capabilities) {
    known += octavo::message(known.empty() ? "" : ", ", one / 10, '.', one % 10);
  }
  const bool is_known = std::ranges::count(known_capabilities, given.capability) > 0;
  octavo::require<octavo::ConfigError>(is_known, "no GPU has compute capability ",
                                       given.capability / 10, '.', given.capability % 10,
                                       "; pass one of ", known);
  if (text.find(':') == std::string_view::npos) return given;
  const std::string_view memory = text.substr(text.find(':') + 1);
  double gib = 0;
  const auto [end, error] = std::from_chars(memory.data(), memory.data() + memory.size(), gib);
  const std::string_view unit(end, static_cast<std::size_t>(memory.data() + memory.size() - end));
  octavo::require<octavo::ConfigError>(
      error == std::errc{} && gib > 0 && gib < 1e6 &&
          (unit.empty() || unit == "GiB" || unit == "GB"),
      "the memory of a card must be a number of GiB, such as sm_86:24GiB, but is '", memory, "'");
  given.gib = gib;
  return given;
}

}  // namespace programs

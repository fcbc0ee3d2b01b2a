// GPUs by name, for programs that plan for a GPU that is not in this machine.
#pragma once

#include <octavo/core/capability.hpp>

#include <algorithm>
#include <array>
#include <cctype>
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
    GpuCard{"A100 40GB", 80, 40}, GpuCard{"A100 80GB", 80, 80}, GpuCard{"L40S", 89, 45},
    GpuCard{"RTX 4090", 89, 24},  GpuCard{"H100", 90, 80},      GpuCard{"H200", 90, 141},
    GpuCard{"B200", 100, 179},    GpuCard{"RTX 5090", 120, 32}, GpuCard{"RTX PRO 6000", 120, 96}};

/// How far Octavo is tested on GPUs of a compute capability.
inline const char* tested_on(int capability) {
  if (capability == 90) return "run and measured";
  if (capability < 90) return "kernels tested on an H100, never run on this GPU";
  return "compiled only, never run";
}

namespace detail {

/// Returns the letters and digits of a name in lower case, without the maker.
inline std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char letter : name) {
    const auto code = static_cast<unsigned char>(letter);
    if (std::isalnum(code) != 0) plain += static_cast<char>(std::tolower(code));
  }
  for (const std::string_view maker : {"nvidia", "geforce"}) {
    if (plain.starts_with(maker)) plain.erase(0, maker.size());
  }
  return plain;
}

}  // namespace detail

/// Returns the cards whose name begins with this one, such as "RTX 4090" or "a100".
/// @param advice  how to choose any other GPU, for the message
/// @throws ConfigError  if there is none; it lists the names
inline std::vector<GpuCard> cards_named(std::string_view name, const char* advice) {
  const std::string wanted = detail::plain_name(name);
  std::vector<GpuCard> found;
  std::string names;
  for (const GpuCard& card : gpu_cards) {
    names += (names.empty() ? "" : ", ") + std::string(card.name);
    if (!wanted.empty() && detail::plain_name(card.name).starts_with(wanted)) found.push_back(card);
  }
  octavo::require<octavo::ConfigError>(!found.empty(), "the card must be one of ", names,
                                       ", but is '", name, "'; for another GPU, ", advice);
  return found;
}

}  // namespace programs

/// @file
/// Unicode's normal forms by utf8proc. The only header that includes utf8proc: programs that
/// include it must link octavo::utf8proc.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/data/normal_form.hpp>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include <utf8proc.h>

namespace octavo OCTAVO_ABI {

/// Converts text to a normal form of utf8proc's Unicode version (15.0 in utf8proc 2.8).
/// @param text  valid UTF-8
/// @throws ConfigError  if utf8proc fails
/// Source: The Unicode Standard, annex 15
[[nodiscard]] inline std::string normalize_by_utf8proc(std::string_view text, NormalForm form) {
  const bool composes = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool is_compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
      (is_compatible ? UTF8PROC_COMPAT : 0));
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &result, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(result, &std::free);
  require<ConfigError>(size >= 0, "utf8proc cannot normalise a text of ", text.size(),
                       " bytes: ", size < 0 ? utf8proc_errmsg(size) : "");
  return {reinterpret_cast<const char*>(owned.get()), static_cast<std::size_t>(size)};
}

}  // namespace octavo

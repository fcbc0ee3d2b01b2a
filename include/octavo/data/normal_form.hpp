/// @file
/// Unicode's normal forms, and text that they leave unchanged.
#pragma once

#include <octavo/data/code_point.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace octavo OCTAVO_ABI {

/// Normal forms of Unicode, annex 15.
enum class NormalForm { nfc, nfd, nfkc, nfkd };

/// Converts valid UTF-8 to a normal form; see normalize_by_utf8proc.
using NormalizeText = std::string (*)(std::string_view text, NormalForm form);

namespace detail {

/// Some code points that NFC leaves unchanged and that combine with no other: a text that contains
/// only these is in NFC. They include Latin, Greek, Cyrillic, Japanese, Chinese and Korean letters,
/// punctuation and symbols, and no combining marks.
/// Source: The Unicode Standard, annex 15: NFC_Quick_Check is Yes and the combining class 0.
inline constexpr std::array nfc_inert{
    CodePoints{0x0000, 0x02ff},   CodePoints{0x0370, 0x0373},  CodePoints{0x0376, 0x0377},
    CodePoints{0x037b, 0x037d},   CodePoints{0x0384, 0x0386},  CodePoints{0x0388, 0x038a},
    CodePoints{0x038e, 0x03a1},   CodePoints{0x03a3, 0x0482},  CodePoints{0x048a, 0x052f},
    CodePoints{0x0531, 0x0556},   CodePoints{0x0561, 0x0587},  CodePoints{0x05d0, 0x05ea},
    CodePoints{0x0620, 0x064a},   CodePoints{0x0660, 0x066f},  CodePoints{0x10d0, 0x10ff},
    CodePoints{0x1e00, 0x1eff},   CodePoints{0x2002, 0x2064},  CodePoints{0x2070, 0x2071},
    CodePoints{0x2074, 0x208e},   CodePoints{0x20a0, 0x20bf},  CodePoints{0x2100, 0x2125},
    CodePoints{0x2127, 0x2129},   CodePoints{0x212c, 0x218b},  CodePoints{0x2190, 0x2328},
    CodePoints{0x232b, 0x2426},   CodePoints{0x2440, 0x244a},  CodePoints{0x2460, 0x2adb},
    CodePoints{0x2add, 0x2b73},   CodePoints{0x3000, 0x3029},  CodePoints{0x3030, 0x303f},
    CodePoints{0x3041, 0x3096},   CodePoints{0x309b, 0x30ff},  CodePoints{0x3105, 0x312f},
    CodePoints{0x3131, 0x318e},   CodePoints{0x3190, 0x31e3},  CodePoints{0x31f0, 0x321e},
    CodePoints{0x3220, 0x4dbf},   CodePoints{0x4e00, 0x9ffc},  CodePoints{0xac00, 0xd7a3},
    CodePoints{0xff01, 0xffbe},   CodePoints{0xffe0, 0xffe6},  CodePoints{0x1f300, 0x1f6d7},
    CodePoints{0x1f900, 0x1f978}, CodePoints{0x20000, 0x2a6dd}};

/// Returns the first byte of the first character that is not in `nfc_inert`, or the size of
/// the text.
/// @param text  valid UTF-8
[[nodiscard]] inline std::size_t nfc_inert_prefix(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, length] = first_character(text.substr(at));
    const auto range =
        std::find_if(nfc_inert.begin(), nfc_inert.end(),
                     [code = code](CodePoints points) { return code <= points.last; });
    if (range == nfc_inert.end() || code < range->first) return at;
    at += length;
  }
  return text.size();
}

/// Returns the first byte that a normal form may change, or the size of the text.
/// @param text  valid UTF-8
[[nodiscard]] inline std::size_t unchanged_prefix(std::string_view text, NormalForm form) {
  if (form == NormalForm::nfc) return nfc_inert_prefix(text);
  const auto found = std::find_if(
      text.begin(), text.end(), [](char byte) { return static_cast<std::uint8_t>(byte) >= 0x80; });
  return static_cast<std::size_t>(found - text.begin());
}

}  // namespace detail

}  // namespace octavo

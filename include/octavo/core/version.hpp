/// @file
/// The library's version, as numbers and as text.
#pragma once

namespace octavo {

inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;

/// The version as users write it, for example in bug reports.
inline constexpr const char* version_string = "0.1.0";

}  // namespace octavo

/// @file
/// The library's version, as numbers, as text and as the name of a namespace.
#pragma once

// The library lives in an inline namespace named after its minor version: octavo::Linear is
// octavo::v0_1::Linear, and users write octavo::Linear. A program can therefore link files compiled
// with two minor versions, or with and without cuDNN: each file keeps its own functions. Such files
// must not exchange the library's types. A function that has such a parameter does not link, but
// the linker cannot detect functions that return such a type, or structs that contain one.
// Exceptions of the other version can only be caught as std::exception. Do not forward-declare the
// library's names; include its headers.
//
// Headers write `namespace octavo OCTAVO_ABI {`, which is `namespace octavo::inline v0_1 {`:
// editors, Universal Ctags and Doxygen read the name `octavo` without knowing the macro.
#if defined(OCTAVO_WITH_CUDNN)
#define OCTAVO_ABI ::inline v0_1_cudnn
#else
#define OCTAVO_ABI ::inline v0_1
#endif

namespace octavo OCTAVO_ABI {

inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;

/// The version as users write it, for example in bug reports.
inline constexpr const char* version_string = "0.1.0";

}  // namespace octavo

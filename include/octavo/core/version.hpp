/// @file
/// The library's version, as numbers, as text and as the name of a namespace.
#pragma once

// All that the library has stands in an inline namespace of this name, which nobody has to write:
// octavo::Linear is octavo::v0_1_0::Linear. So a program may link files that were compiled
// with two versions, or with cuDNN and without, and each keeps the functions that it was compiled
// with. Such files must not hand each other the library's types. A function that takes one as a
// parameter does not link; nothing tells the others apart, such as functions that return one and
// structs of a program's own that have one as a member. Errors of the one are std::exception to the
// other, and no more. Forward declarations of the library's names have no place in other files:
// include its headers.
#if defined(OCTAVO_WITH_CUDNN)
#define OCTAVO_ABI v0_1_0_cudnn
#else
#define OCTAVO_ABI v0_1_0
#endif

namespace octavo::inline OCTAVO_ABI {

inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;

/// The version as users write it, for example in bug reports.
inline constexpr const char* version_string = "0.1.0";

}  // namespace octavo

/// @file
/// The GPU and the libraries that run the computation.
#pragma once

#include <octavo/core/context.hpp>

#include <string>

namespace octavo OCTAVO_ABI {

/// Returns the hardware and the library versions on which results depend, such as "NVIDIA H200
/// of 132 multiprocessors, CUDA 13.0, a driver for 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0". Empty on
/// `Cpu`, which uses no library.
template <Device D>
[[nodiscard]] std::string libraries_text(const Context<D>& context) {
  return libraries_text_body(context);
}

namespace detail {

inline std::string libraries_text_body(const Context<Cpu>&) { return {}; }

}  // namespace detail
}  // namespace octavo

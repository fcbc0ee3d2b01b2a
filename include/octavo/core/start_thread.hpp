/// @file
/// Starting a thread.
#pragma once

#include <octavo/core/error.hpp>

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace octavo OCTAVO_ABI::detail {

/// Starts a thread.
/// @param purpose  of the thread, for the message, such as "writing a checkpoint"
/// @throws Error  with the purpose, if the system cannot create another thread
template <class Body>
[[nodiscard]] std::thread start_thread(std::string_view purpose, Body body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw Error(message("cannot start a thread for ", purpose, ": ", error.code().message(),
                        "; raise the process limit (ulimit -u), or that of the job"));
  }
}

}  // namespace octavo OCTAVO_ABI::detail

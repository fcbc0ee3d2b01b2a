/// @file
/// Reading a whole file of text.
#pragma once

#include <octavo/core/error.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

namespace octavo::inline OCTAVO_ABI {

/// The bytes of a file that is small, such as a configuration.
/// @param most  bytes that it may have
/// @throws IoError  naming the file, if it cannot be read or is larger
[[nodiscard]] inline std::string read_text_file(const std::filesystem::path& path,
                                                std::size_t most = 100'000'000) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto end = [&](const std::string& what) {
    if (descriptor >= 0) ::close(descriptor);
    throw IoError(message(path.string(), ": cannot be read: ", what));
  };
  struct stat status {};
  if (descriptor < 0 || ::fstat(descriptor, &status) != 0) end(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) end("it is no file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > most) end(message("it has ", size, " bytes, of at most ", most));
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::read(descriptor, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) end(std::strerror(errno));
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  text.resize(done);
  ::close(descriptor);
  return text;
}

}  // namespace octavo

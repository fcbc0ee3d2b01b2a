/// @file
/// Files as a user meets them who does not own them.
#pragma once

#include <filesystem>

#include <unistd.h>

namespace support {

/// While it lives, this process has no more rights than another user, where it has all: permissions
/// of files count.
class AnotherUser {
 public:
  AnotherUser() : is_root_(::geteuid() == 0) {
    if (is_root_) is_other_ = ::seteuid(65534) == 0;
  }
  AnotherUser(const AnotherUser&) = delete;
  AnotherUser& operator=(const AnotherUser&) = delete;
  ~AnotherUser() {
    if (is_other_ && ::seteuid(0) != 0) ::_exit(1);
  }

  /// Whether permissions count, and new files can be made in a folder.
  [[nodiscard]] bool can_write_to(const std::filesystem::path& folder) const {
    return (!is_root_ || is_other_) && ::eaccess(folder.c_str(), W_OK | X_OK) == 0;
  }

 private:
  bool is_root_;
  bool is_other_ = false;
};

}  // namespace support

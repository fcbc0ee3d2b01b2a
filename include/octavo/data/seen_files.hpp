/// @file
/// Which files a run reads, so that it reads none twice.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/data/open_file.hpp>

#include <filesystem>
#include <map>
#include <string>

namespace octavo OCTAVO_ABI {

namespace detail {

/// What gave a file that is not named itself: a folder, or a pattern.
struct FileGroup {
  std::filesystem::path name;  ///< empty: the file is named
  bool is_pattern = false;
};

/// Files by their identities, and who named them.
class SeenFiles {
 public:
  /// Files that come from now on are those of the next thing that was named.
  void begin_source() { ++source_; }

  /// Notes a file. Two links in one folder, or matched by one pattern, to one file: returns a
  /// remark about the second.
  /// @throws ConfigError  if another source gave it: validation would see what was trained on
  std::string add(FileIdentity identity, const std::filesystem::path& path,
                  const FileGroup& group) {
    const auto [place, added] = seen_.try_emplace(identity, Seen{path, group, source_});
    if (added) return "";
    const Seen& first = place->second;
    std::string same = "the same file as " + first.path.string();
    if (first.source == source_) return same;
    const bool one_path = path.lexically_normal() == first.path.lexically_normal();
    std::string what = group.name.empty() ? "" : group.name.string() + ": its ";
    what += path.string() + " is ";
    what += !one_path                  ? same
            : first.group.name.empty() ? "named already"
            : first.group.is_pattern   ? "matched by " + first.group.name.string() + " already"
                                       : "in the folder " + first.group.name.string() + " already";
    throw ConfigError(what + "; name each text once, or validation would see what was trained on");
  }

 private:
  struct Seen {
    std::filesystem::path path;
    FileGroup group;  ///< that gave it
    int source;
  };

  std::map<FileIdentity, Seen> seen_;
  int source_ = 0;
};

}  // namespace detail

}  // namespace octavo

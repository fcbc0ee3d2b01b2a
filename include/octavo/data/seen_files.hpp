/// @file
/// Detecting files that a run would read twice.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/data/open_file.hpp>

#include <filesystem>
#include <map>
#include <string>

namespace octavo OCTAVO_ABI {

namespace detail {

/// The folder or the pattern through which a file was found, if the file is not named directly.
struct FileGroup {
  std::filesystem::path name;  ///< empty: the file is named
  bool is_pattern = false;
};

/// The files of a run by identity, and the sources that named them.
class SeenFiles {
 public:
  /// Begins the files of the next source.
  void begin_source() { ++source_; }

  /// Adds a file. If two names in one folder or pattern refer to the same file, returns a remark
  /// about the second.
  /// @throws ConfigError  if another source has the file: validation would see training data
  std::string add(FileIdentity identity, const std::filesystem::path& path,
                  const FileGroup& group) {
    const auto [place, added] = seen_.try_emplace(identity, Seen{path, group, source_});
    if (added) return "";
    const Seen& first = place->second;
    std::string same = "the same file as " + first.path.string();
    if (first.source == source_) return same;
    const bool is_same_path = path.lexically_normal() == first.path.lexically_normal();
    std::string what = group.name.empty() ? "" : group.name.string() + ": its ";
    what += path.string() + " is ";
    what += !is_same_path              ? same
            : first.group.name.empty() ? "named already"
            : first.group.is_pattern   ? "matched by " + first.group.name.string() + " already"
                                       : "in the folder " + first.group.name.string() + " already";
    throw ConfigError(what + "; name each file once, so that validation sees no training data");
  }

 private:
  struct Seen {
    std::filesystem::path path;
    FileGroup group;  ///< the folder or pattern that the file was found by
    int source;
  };

  std::map<FileIdentity, Seen> seen_;
  int source_ = 0;
};

}  // namespace detail

}  // namespace octavo

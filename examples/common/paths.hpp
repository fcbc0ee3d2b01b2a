// The files and folders that flags name: whether they are there, before anything is read of them.
#pragma once

#include <octavo/core/error.hpp>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace programs {

/// Throws unless a path is that of a file.
/// @param given   the flag and its value
/// @param advice  what to give
/// @throws IoError  with both
inline void require_file(std::string_view given, const std::filesystem::path& path,
                         std::string_view advice) {
  std::error_code error;
  octavo::require<octavo::IoError>(std::filesystem::exists(path, error), given,
                                   ": there is no such file; ", advice);
  octavo::require<octavo::IoError>(!std::filesystem::is_directory(path, error), given,
                                   ": is a folder; ", advice);
}

/// Throws unless a path is that of a folder; likewise.
/// @throws IoError  with both
inline void require_folder(std::string_view given, const std::filesystem::path& path,
                           std::string_view advice) {
  std::error_code error;
  octavo::require<octavo::IoError>(std::filesystem::exists(path, error), given,
                                   ": there is no such folder; ", advice);
  octavo::require<octavo::IoError>(std::filesystem::is_directory(path, error), given,
                                   ": is no folder; ", advice);
}

/// Throws if a chat's template is to be read from a file that is not there.
/// @param flag  that names it
/// @throws IoError  naming it, and what to give
inline void require_chat_template(const std::string& flag, const std::string& name) {
  if (!name.ends_with(".json")) return;
  require_file(flag + ' ' + name, name, "give a template's name, or a file of JSON that has one");
}

}  // namespace programs

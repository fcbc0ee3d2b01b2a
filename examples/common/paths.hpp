// Checks that the files and folders named by flags exist, before they are read.
#pragma once

#include <octavo/core/error.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace programs {

/// Throws if a path does not exist or is a folder.
/// @param given   the flag and its value, which begin the message
/// @param advice  what to pass instead, which ends it
/// @throws IoError  with both
inline void require_file(std::string_view given, const std::filesystem::path& path,
                         std::string_view advice) {
  std::error_code error;
  octavo::require<octavo::IoError>(std::filesystem::exists(path, error), given,
                                   ": there is no such file; ", advice);
  octavo::require<octavo::IoError>(!std::filesystem::is_directory(path, error), given,
                                   ": is a folder; ", advice);
}

/// Throws if a path does not exist or is not a folder; the parameters are the same.
/// @throws IoError  with both
inline void require_folder(std::string_view given, const std::filesystem::path& path,
                           std::string_view advice) {
  std::error_code error;
  octavo::require<octavo::IoError>(std::filesystem::exists(path, error), given,
                                   ": there is no such folder; ", advice);
  octavo::require<octavo::IoError>(std::filesystem::is_directory(path, error), given,
                                   ": is not a folder; ", advice);
}

/// Throws if writing an output would replace a file that is not an earlier output.
/// @param given      the flag and its value, which begin the message
/// @param beginning  the first characters of every output
/// @throws ConfigError  if the path is a file that begins otherwise and is not empty
inline void require_own_output(std::string_view given, const std::filesystem::path& path,
                               std::string_view beginning) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  std::string found(beginning.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(found.data(), static_cast<std::streamsize>(found.size()));
  octavo::require<octavo::ConfigError>(file.gcount() == 0 || found == beginning, given,
                                       ": exists and was not written by this program; pass "
                                       "another name, or remove the file");
}

/// Throws if the name of a chat template is that of a JSON file, and the file does not exist.
/// @param flag  the flag that sets the name
/// @throws IoError  with advice
inline void require_chat_template(const std::string& flag, const std::string& name) {
  if (!name.ends_with(".json")) return;
  require_file(flag + ' ' + name, name,
               "pass the name of a template, or a JSON file that contains one");
}

}  // namespace programs

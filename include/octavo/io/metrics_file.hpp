/// @file
/// The metrics file of a run, one JSON object per line.
#pragma once

#include <octavo/core/json_line.hpp>
#include <octavo/io/appended_file.hpp>

#include <filesystem>
#include <utility>

namespace octavo OCTAVO_ABI {

/// Appends whole lines; see AppendedFile.
class MetricsFile {
 public:
  using Lines = AppendedFile::Lines;

  /// Creates the file or opens an existing one. Its folder must exist.
  /// @param before  whether existing lines are kept
  /// @throws IoError  if the file cannot be opened
  explicit MetricsFile(std::filesystem::path path, Lines before = Lines::removed)
      : file_(std::move(path), before) {}

  /// Appends a line.
  /// @throws IoError  if it cannot be written completely; the file then contains none of it
  void write(const JsonLine& line) { file_.append(line.str() + '\n'); }

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendedFile file_;
};

}  // namespace octavo

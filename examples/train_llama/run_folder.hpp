// The folder that a run is kept in.
#pragma once

#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <system_error>

#include <unistd.h>

namespace trainer {

namespace detail {

/// Makes a folder and those above it; false if it was there already.
/// @throws IoError  if it cannot be made
inline bool make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  const bool made = std::filesystem::create_directories(folder, error);
  octavo::require<octavo::IoError>(!error, folder.string(),
                                   ": cannot be created: ", error.message(),
                                   "; choose another --out, or give --no-out");
  return made;
}

/// Local time as 2026-11-22-141503.
inline std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d-%H%M%S", &local);
  return text;
}

}  // namespace detail

/// Throws if --out cannot take a run. Makes nothing.
/// @param out_from  the configuration file that --out stands in; empty: the command line
/// @throws ConfigError  if --out has one of the files that the run would write, or cannot be
///                      looked into
inline void require_free_out(const Options& options, const std::string& out_from) {
  if (options.out.empty()) return;
  for (const char* name : {"metrics.jsonl", "config.toml"}) {
    const std::filesystem::path file = std::filesystem::path(options.out) / name;
    std::error_code error;
    const bool taken = std::filesystem::exists(file, error);
    octavo::require<octavo::ConfigError>(!error, file.string(),
                                         ": cannot be looked for: ", error.message(),
                                         "; choose another --out, or give --no-out");
    octavo::require<octavo::ConfigError>(
        !taken, file.string(),
        " exists already, and a run would write over it; choose another --out",
        out_from.empty() ? "" : "; this one stands in " + out_from + ", and the command line wins");
  }
}

/// Makes the folder that --out names, else a new one below runs/. Empty with --no-out.
/// @throws IoError  if the folder cannot be made, or nothing can be written there
inline std::filesystem::path make_run_folder(const Options& options) {
  if (options.no_out) return {};
  if (!options.out.empty()) {
    std::filesystem::path folder = options.out;
    detail::make_folder(folder);
    octavo::require<octavo::IoError>(::access(folder.c_str(), W_OK | X_OK) == 0, folder.string(),
                                     ": cannot be written: ", std::strerror(errno),
                                     "; choose another --out, or give --no-out");
    return folder;
  }
  const std::string name =
      octavo::message("runs/", detail::time_text(), '-', options.model, '-', options.precision);
  std::filesystem::path folder = name;
  // Two runs may begin in one second.
  for (int next = 2; !detail::make_folder(folder); ++next) {
    folder = octavo::message(name, '-', next);
  }
  return folder;
}

}  // namespace trainer

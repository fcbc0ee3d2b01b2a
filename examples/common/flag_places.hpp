// The lines of a configuration file that set flags, for messages.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace programs {

/// A reader of configuration files that remembers where flags were set.
class FlagPlaces {
 public:
  virtual ~FlagPlaces() = default;
  /// Returns "c.toml:3: " if the configuration file sets `key` to this value there, otherwise "".
  [[nodiscard]] virtual std::string place_of(const std::string& key,
                                             const std::string& value) const = 0;
};

/// Returns where a flag was set: "c.toml:3: ", or "" for the command line.
inline std::string place_of(const CLI::App& app, const CLI::Option& option) {
  const auto* places = dynamic_cast<const FlagPlaces*>(app.get_config_formatter().get());
  if (places == nullptr || option.count() == 0) return "";
  return places->place_of(option.get_single_name(), option.results().back());
}

}  // namespace programs

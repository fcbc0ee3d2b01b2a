// Groups of a program's flags.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <utility>

namespace programs {

/// Declares flags in a group of --help.
class FlagGroup {
 public:
  FlagGroup(CLI::App& app, std::string name) : app_(&app), name_(std::move(name)) {}

  /// Declares a flag whose default --help prints and config.toml contains.
  CLI::Option* add(const std::string& flag, auto& value, const std::string& text) const {
    return add_without_default(flag, value, text)->capture_default_str();
  }
  /// Declares a flag that config.toml contains only if it was set. Needed if a default cannot be
  /// told from a choice, and for flags that other settings reject.
  CLI::Option* add_without_default(const std::string& flag, auto& value,
                                   const std::string& text) const {
    return app_->add_option(flag, value, text)->group(name_);
  }
  /// Declares a flag without a value.
  CLI::Option* add_switch(const std::string& flag, bool& value, const std::string& text) const {
    return app_->add_flag(flag, value, text)->group(name_);
  }

 private:
  CLI::App* app_;
  std::string name_;
};

}  // namespace programs

// Flags that have an effect only with other settings.
#pragma once

#include <CLI/CLI.hpp>
#include <common/flag_places.hpp>
#include <octavo/octavo.hpp>

#include <string>
#include <vector>

namespace programs {

/// A setting that flags need to have an effect.
struct FlagNeed {
  std::vector<const char*> flags;
  bool is_met;
  /// The flag that decides, such as "--schedule".
  const char* decides;
  /// Its value, such as "wsd"; empty: it must not be set.
  const char* value;
};

namespace detail {

/// Whether a flag was set. A file may set any flag to its default, as a run's config.toml does.
inline bool is_chosen(const CLI::App& app, const CLI::Option& option) {
  if (option.count() == 0 || option.results().back().empty()) return false;
  const bool is_switch = option.get_items_expected_max() == 0;
  if (is_switch && !option.as<bool>()) return false;
  return place_of(app, option).empty() || option.results().back() != option.get_default_str();
}

}  // namespace detail

/// Throws if a flag was set that has no effect, because a setting that it needs was not chosen. The
/// command line overrides a file: flags of the file that it makes ineffective count as not set.
/// @throws ConfigError  naming the flag, the setting, and what to do
inline void require_effects(CLI::App& app, const std::vector<FlagNeed>& needs) {
  for (const FlagNeed& need : needs) {
    if (need.is_met) continue;
    // Programs that share a table may lack some of its flags.
    const CLI::Option* const found = app.get_option_no_throw(need.decides);
    if (found == nullptr) continue;
    const CLI::Option& decides = *found;
    const bool is_in_command = decides.count() != 0 && place_of(app, decides).empty();
    for (const char* flag : need.flags) {
      CLI::Option& option = *app.get_option(flag);
      const std::string place = place_of(app, option);
      if (is_in_command && !place.empty()) option.clear();
      if (!detail::is_chosen(app, option)) continue;
      const std::string value = need.value;
      const std::string there =
          decides.count() != 0 ? decides.results().back() : decides.get_default_str();
      const std::string wanted = octavo::message(need.decides, ' ', value);
      throw octavo::ConfigError(
          value.empty() ? octavo::message(place, flag, " has no effect with ", need.decides,
                                          "; leave one of them out")
                        : octavo::message(place, flag, " needs ", wanted, ", but ", need.decides,
                                          there.empty() ? " is not set" : " is " + there, "; pass ",
                                          wanted, ", or leave ", flag, " out"));
    }
  }
}

}  // namespace programs

// The text of --help.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace programs {

/// CLI11's text of --help, without the empty default "[]" of flags that take several values.
class Help : public CLI::Formatter {
 public:
  [[nodiscard]] std::string make_option_opts(const CLI::Option* option) const override {
    std::string text = CLI::Formatter::make_option_opts(option);
    if (option->get_default_str() != "[]") return text;
    // Newer versions of CLI11 write the second form.
    for (const std::string empty : {"=[]", " [[]]"}) {
      if (const auto at = text.find(empty); at != std::string::npos) text.erase(at, empty.size());
    }
    return text;
  }
};

}  // namespace programs

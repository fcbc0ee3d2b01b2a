/// @file
/// Regular expressions of tokenizer files, which split text into words. The only header that
/// includes PCRE2: programs that include it, directly or indirectly, must link octavo::pcre2.
#pragma once

#if !defined(PCRE2_CODE_UNIT_WIDTH)
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <octavo/core/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <pcre2.h>
#include <time.h>

namespace octavo OCTAVO_ABI {

namespace detail {

[[nodiscard]] inline std::string pcre2_reason(int code) {
  std::array<PCRE2_UCHAR8, 256> text{};
  pcre2_get_error_message_8(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// Translates a regular expression of Rust's fancy-regex or of Oniguruma to PCRE2. Constructs that
/// these interpret differently are errors.
class PatternSyntax {
 public:
  /// @throws IoError  with `place` and the byte of an unsupported construct
  PatternSyntax(std::string_view pattern, const std::string& place)
      : pattern_(pattern), place_(place) {
    while (at_ < pattern_.size()) step();
    if (in_class_) fail("a class is not closed");
  }

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  /// The characters with Unicode's property White_Space. PCRE2's `\s` also matches U+180E.
  static constexpr std::string_view spaces =
      "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
      "\\x{3000}";

  [[noreturn]] void fail(std::string_view what) const {
    throw IoError(message(place_, ": byte ", at_, " of the pattern '", pattern_, "': ", what,
                          "; this pattern is not supported"));
  }
  [[nodiscard]] char letter(std::size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }

  void step() {
    const char first = letter();
    if (first == '\\') return escape();
    if (in_class_) {
      if (first == '[') fail("a class within a class is not supported");
      constexpr std::string_view operators = "&-~";
      if (operators.find(first) != std::string_view::npos && letter(1) == first)
        fail("an operation on two classes is not supported");
      if (first == ']') in_class_ = false;
    } else if (first == '[') {
      in_class_ = true;
      text_ += first;
      ++at_;
      if (letter() == '^') copy();
      if (letter() == ']') fail("an empty class is not supported");
      return;
    } else if (first == '^' || first == '$') {
      fail("anchors at the start or end of lines are not supported");
    } else if (first == '(') {
      open_group();
    } else if (first == ')' && caseless_.size() > 1) {
      caseless_.pop_back();
    } else if (first == '{') {
      return repetition();
    }
    copy();
  }

  /// Rejects look-behinds, because searches begin at the beginnings of pieces.
  void open_group() {
    const std::string_view rest = pattern_.substr(at_ + 1);
    const bool ignores_case = rest.starts_with("?i:");
    if (rest.starts_with('*')) fail("this kind of group is not supported");
    if (rest.starts_with('?') && !ignores_case) {
      if (rest.starts_with("?<=") || rest.starts_with("?<!"))
        fail("a look-behind is not supported");
      constexpr std::string_view known = ":!=>";
      if (known.find(letter(2)) == std::string_view::npos)
        fail("this kind of group is not supported");
    }
    caseless_.push_back(caseless_.back() || ignores_case);
  }

  /// Translates {n}, {n,} or {n,m}. Suffixes differ between the syntaxes: {n,m}+ is possessive or a
  /// repetition, {n}? is lazy or optional.
  void repetition() {
    const std::size_t begin = at_;
    copy();
    const auto digits = [this] {
      const std::size_t first = at_;
      while (letter() >= '0' && letter() <= '9') copy();
      return at_ > first;
    };
    const bool has_least = digits();
    const bool is_range = letter() == ',';
    if (is_range) {
      copy();
      (void)digits();
    }
    if (!has_least || letter() != '}') {
      at_ = begin;
      fail("a { that does not begin {n}, {n,} or {n,m} is not supported");
    }
    copy();
    if (letter() == '+') fail("a + after } is not supported");
    if (letter() == '?' && !is_range) fail("a ? after {n} is not supported");
  }

  void copy() { text_ += pattern_[at_++]; }

  void escape() {
    constexpr std::string_view letters = "pPdDrnt";
    const char kind = letter(1);
    if (kind == 's') {
      text_ += in_class_ ? std::string(spaces) : message('[', spaces, ']');
    } else if (kind == 'S') {
      text_ += in_class_ ? "\\S\\x{180e}" : message("[^", spaces, ']');
    } else {
      if (kind == 'p' || kind == 'P') property();
      const bool is_letter = (kind >= 'a' && kind <= 'z') || (kind >= 'A' && kind <= 'Z') ||
                             (kind >= '0' && kind <= '9') || kind == '\0';
      if ((is_letter && letters.find(kind) == std::string_view::npos) || kind == '<' || kind == '>')
        fail("this escape is not supported");
      text_ += {'\\', kind};
    }
    at_ += 2;
    if ((kind == 'p' || kind == 'P') && letter() == '{') {
      while (letter() != '}') copy();
      copy();
    }
  }

  /// Accepts only general categories, which are equal in all syntaxes. Scripts are not: PCRE2
  /// includes script extensions.
  void property() const {
    constexpr std::string_view categories =
        " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp "
        "C Cc Cf Co Cn ";
    const bool has_braces = letter(2) == '{';
    const std::string_view rest = pattern_.substr(std::min(at_ + 3, pattern_.size()));
    const std::size_t end = rest.find('}');
    if (has_braces && end == std::string_view::npos) fail("a property is not closed");
    const std::string_view name =
        has_braces ? rest.substr(0, end) : pattern_.substr(at_).substr(2, 1);
    const bool is_known = !name.empty() && name.find(' ') == std::string_view::npos &&
                          categories.find(message(' ', name, ' ')) != std::string_view::npos;
    if (!is_known) fail("only general categories are supported as properties");
    if (caseless_.back() && (name == "Lu" || name == "Ll" || name == "Lt"))
      fail("a category of one letter case is not supported in a group that ignores case");
  }

  std::string_view pattern_;
  const std::string& place_;
  std::string text_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::vector<bool> caseless_{false};  ///< whether each open group ignores case
};

template <auto free>
struct FreeWith {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};

/// The bytes in [begin, end).
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// A regular expression that finds words.
class SplitPattern {
 public:
  /// @param place  its source, for messages
  /// @throws IoError  if it is not valid, or not supported
  SplitPattern(std::string_view pattern, const std::string& place)
      : name_(message(place, ": the pattern '", pattern, '\'')) {
    const std::string text = with_gaps(PatternSyntax(pattern, place).text());
    int code = 0;
    std::size_t offset = 0;
    code_.reset(pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(),
                                PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE, &code, &offset,
                                nullptr));
    require<IoError>(code_ != nullptr, name_, " cannot be compiled: ", pcre2_reason(code));
    // Without a JIT, the interpreter finds the same matches.
    (void)pcre2_jit_compile_8(code_.get(), PCRE2_JIT_COMPLETE);
  }

 private:
  friend class SplitMatcher;

  /// Adds a group that matches where the pattern does not: up to 64 characters before its next
  /// match. Without the group, the time of a search would have no limit, because PCRE2 tries all
  /// later positions and counts the steps of each separately.
  static std::string with_gaps(const std::string& pattern) {
    return message("(?:", pattern, ")|(?<gap>(?s:.)(?:(?!", pattern, ")(?s:.)){0,63}+)");
  }

  std::string name_;  ///< its source and text, for messages
  std::unique_ptr<pcre2_code_8, FreeWith<pcre2_code_free_8>> code_;
};

/// Finds the matches of a pattern in one thread.
class SplitMatcher {
 public:
  /// @param pattern  outlives the matcher
  /// @param seconds  see `find`
  explicit SplitMatcher(const SplitPattern& pattern, double seconds = 30)
      : pattern_(pattern),
        seconds_(seconds),
        data_(pcre2_match_data_create_8(2, nullptr)),
        context_(pcre2_match_context_create_8(nullptr)),
        stack_(pcre2_jit_stack_create_8(std::size_t{1} << 15, std::size_t{1} << 26, nullptr)) {
    require<MemoryError>(data_ != nullptr && context_ != nullptr,
                         "there is too little memory to match a pattern; free some");
    pcre2_jit_stack_assign_8(context_.get(), nullptr, stack_.get());
  }

  /// Finds the first non-empty match at or after `from`. The result does not depend on earlier
  /// searches.
  /// @param subject  valid UTF-8
  /// @return whether one exists
  /// @throws ConfigError  if a match takes more than `max_steps` steps, or the memory of PCRE2's
  ///     default limit; or if all matches of more than `quick_steps` steps together take more than
  ///     `seconds` of the thread's processor time, and more than 1 µs per byte of the texts
  bool find(std::string_view subject, std::size_t from, ByteRange& match) {
    constexpr int gap_code = 2;
    while (from < subject.size()) {
      const int code = step(subject, from);
      const PCRE2_SIZE* places = pcre2_get_ovector_pointer_8(data_.get());
      match = {places[0], places[1]};
      bytes_ += static_cast<double>(match.end - from);
      if (code != gap_code) return true;
      from = match.end;
    }
    return false;
  }

 private:
  // The time of a step depends on the number of characters it repeats, so time has a limit as well.
  static constexpr std::uint32_t quick_steps = std::uint32_t{1} << 8;
  static constexpr std::uint32_t max_steps = std::uint32_t{1} << 24;
  static constexpr std::uint32_t growth = 16;

  static double processor_seconds() {
    ::timespec time{};
    (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  int try_step(std::string_view subject, std::size_t from, std::uint32_t steps) {
    (void)pcre2_set_match_limit_8(context_.get(), steps);
    return pcre2_match_8(pattern_.code_.get(), reinterpret_cast<PCRE2_SPTR8>(subject.data()),
                         subject.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data_.get(),
                         context_.get());
  }

  /// Matches the pattern at `from`, or else the gap, with few steps first.
  int step(std::string_view subject, std::size_t from) {
    int code = try_step(subject, from, quick_steps);
    double last = 0;  // seconds of the last attempt; the next may take `growth` times as long
    for (std::uint32_t steps = quick_steps * growth;
         code == PCRE2_ERROR_MATCHLIMIT && steps <= max_steps; steps *= growth) {
      if (slow_seconds_ + growth * last > seconds_ + 1e-6 * bytes_) break;
      const double begin = processor_seconds();
      code = try_step(subject, from, steps);
      last = processor_seconds() - begin;
      slow_seconds_ += last;
    }
    if (code >= 0) return code;
    throw ConfigError(
        message(pattern_.name_, " fails at byte ", from, " of a text of ", subject.size(), ": ",
                code == PCRE2_ERROR_MATCHLIMIT ? "it backtracks for too long" : pcre2_reason(code),
                "; use another tokenizer, or split the text"));
  }

  const SplitPattern& pattern_;
  double seconds_;
  double slow_seconds_ = 0;
  double bytes_ = 0;  ///< of the texts that were searched
  std::unique_ptr<pcre2_match_data_8, FreeWith<pcre2_match_data_free_8>> data_;
  std::unique_ptr<pcre2_match_context_8, FreeWith<pcre2_match_context_free_8>> context_;
  std::unique_ptr<pcre2_jit_stack_8, FreeWith<pcre2_jit_stack_free_8>> stack_;
};

}  // namespace detail

}  // namespace octavo

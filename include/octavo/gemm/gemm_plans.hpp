/// @file
/// Chosen GEMM algorithms as text, for use in a later run. Needs no CUDA. The functions that read
/// and write it are templates, so that only programs that use them compile them.
#pragma once

#include <octavo/gemm/gemm_planning.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

inline constexpr std::string_view gemm_plans_title = "# octavo gemm plans 2";

/// Computes a checksum of text: FNV-1a in 32 bits.
constexpr std::uint32_t text_checksum(std::string_view text) {
  std::uint32_t sum = 2166136261u;
  for (const char letter : text) {
    sum = (sum ^ static_cast<unsigned char>(letter)) * 16777619u;
  }
  return sum;
}

/// Replaces spaces, as in "NVIDIA_H200".
inline std::string without_blanks(std::string name) {
  for (char& letter : name) {
    if (static_cast<unsigned char>(letter) <= ' ') letter = '_';
  }
  return name.empty() ? "_" : name;
}

/// Returns the code in files for a GEMM's addend and bias: 1 for an addend, 2 for a bias, 3 for
/// both.
inline int epilogue_code(const GemmKey& key) { return (key.adds ? 1 : 0) + (key.bias ? 2 : 0); }

/// Returns the last hexadecimal digits of a word, including leading zeros.
inline std::string hexadecimal_digits(std::uint64_t word, std::size_t digits) {
  std::string text(digits, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, word /= 16) {
    *digit = "0123456789abcdef"[word % 16];
  }
  return text;
}

/// Returns a record without its checksum.
template <class Record>
std::string record_text(const Record& record) {
  const GemmKey& key = record.key;
  std::string text = message(
      "card=", without_blanks(record.library.card),
      " multiprocessors=", record.library.multiprocessors, " cublaslt=", record.library.version,
      " m=", key.m, " n=", key.n, " k=", key.k, " a=", name_of(key.a), " b=", name_of(key.b),
      " result=", name_of(key.result), " scales_a=", name_of(key.scales_a),
      " scales_b=", name_of(key.scales_b), " transpose_a=", key.transpose_a,
      " transpose_b=", key.transpose_b, " adds=", epilogue_code(key),
      " fast_accumulation=", key.fast_accumulation, " alignment=", key.alignment,
      " microseconds=", fixed_text(record.microseconds, 1), " algorithm=");
  for (const std::uint64_t word : record.algorithm) text += hexadecimal_digits(word, 16);
  return text;
}

/// Reads the `name=value` words of a line in order.
class RecordReader {
 public:
  RecordReader(std::string_view line, std::string_view file, std::size_t number)
      : rest_(line), file_(file), number_(number) {}

  [[noreturn]] void fail(const std::string& fault) const {
    throw IoError(message(file_, ":", number_, ": ", fault,
                          "; remove this line, or the file: missing algorithms are chosen again"));
  }

  /// Returns the value of the next word, which must have this name.
  std::string_view word(std::string_view name) {
    const std::string_view found = rest_.substr(0, rest_.find(' '));
    rest_.remove_prefix(std::min(rest_.size(), found.size() + 1));
    if (found.size() <= name.size() || found.substr(0, name.size()) != name ||
        found[name.size()] != '=') {
      fail(message("expected '", name, "=', but found '", found, "'"));
    }
    return found.substr(name.size() + 1);
  }

  /// Reads a number within bounds.
  template <class Number>
  Number number(std::string_view name, Number least, Number most, int base = 10) {
    return parse<Number>(name, word(name), least, most, base);
  }
  bool flag(std::string_view name) { return number(name, 0, 1) == 1; }
  double decimal(std::string_view name) {
    const std::string_view text = word(name);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
      fail(message(name, " is '", text, "', which is not a number"));
    }
    return value;
  }

  /// Reads one of the values from 0 to `last` that `name_of` names.
  template <class Choice>
  Choice choice(std::string_view name, Choice last) {
    const std::string_view text = word(name);
    for (std::size_t i = 0; i <= static_cast<std::size_t>(last); ++i) {
      if (text == name_of(static_cast<Choice>(i))) return static_cast<Choice>(i);
    }
    fail(message(name, " is '", text, "', which is unknown"));
  }

  /// Reads consecutive words of 16 hexadecimal digits.
  template <std::size_t Count>
  std::array<std::uint64_t, Count> hexadecimal(std::string_view name) {
    constexpr std::size_t digits = 16;
    const std::string_view text = word(name);
    if (text.size() != Count * digits) {
      fail(message(name, " has ", text.size(), " digits instead of ", Count * digits));
    }
    std::array<std::uint64_t, Count> words{};
    for (std::size_t i = 0; i < Count; ++i) {
      words[i] = parse<std::uint64_t>(name, text.substr(i * digits, digits), 0,
                                      std::numeric_limits<std::uint64_t>::max(), 16);
    }
    return words;
  }

  void end() const {
    if (!rest_.empty()) fail(message("'", rest_, "' must not follow the last value"));
  }

 private:
  template <class Number>
  Number parse(std::string_view name, std::string_view text, Number least, Number most, int base) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
      fail(message(name, " is '", text, "', but must be a number from ", least, " to ", most));
    }
    return value;
  }

  std::string_view rest_;
  std::string_view file_;
  std::size_t number_;
};

template <class Reader>
GemmPlanRecord read_record(Reader& line) {
  constexpr Index most = Index{1} << 48;
  GemmPlanRecord record;
  GemmKey& key = record.key;
  record.library.card = line.word("card");
  record.library.multiprocessors = line.number("multiprocessors", 1, 1 << 20);
  record.library.version =
      line.template number<std::uint64_t>("cublaslt", 1, std::uint64_t{1} << 48);
  key.m = line.template number<Index>("m", 1, most);
  key.n = line.template number<Index>("n", 1, most);
  key.k = line.template number<Index>("k", 1, most);
  key.a = line.choice("a", GemmFormat::e2m1);
  key.b = line.choice("b", GemmFormat::e2m1);
  key.result = line.choice("result", GemmFormat::e2m1);
  key.scales_a = line.choice("scales_a", GemmScales::squares_of_16);
  key.scales_b = line.choice("scales_b", GemmScales::squares_of_16);
  key.transpose_a = line.flag("transpose_a");
  key.transpose_b = line.flag("transpose_b");
  const int added = line.number("adds", 0, 3);
  key.adds = added % 2 == 1;
  key.bias = added >= 2;
  key.fast_accumulation = line.flag("fast_accumulation");
  key.alignment = line.template number<std::uint32_t>("alignment", 1, 256);
  record.microseconds = line.decimal("microseconds");
  record.algorithm = line.template hexadecimal<8>("algorithm");
  line.end();
  return record;
}

/// Reads a line of a file: the record, followed by the checksum of the preceding text.
template <class Reader>
GemmPlanRecord read_record_line(std::string_view line, std::string_view file, std::size_t number) {
  constexpr std::string_view mark = " checksum=";
  const std::size_t end = line.rfind(mark);
  Reader record(line.substr(0, end), file, number);
  if (end == std::string_view::npos) record.fail("the line must end with a checksum");
  Reader checksum(line.substr(end + 1), file, number);
  const auto found = checksum.template number<std::uint32_t>(
      "checksum", 0, std::numeric_limits<std::uint32_t>::max(), 16);
  checksum.end();
  if (found != text_checksum(line.substr(0, end))) {
    record.fail("the checksum does not match the line");
  }
  return read_record(record);
}

}  // namespace detail

/// Returns records as the text of a file: a title, then a line for each record.
template <class Record = GemmPlanRecord>
[[nodiscard]] std::string gemm_plans_text(std::span<const std::type_identity_t<Record>> records) {
  std::string text = message(detail::gemm_plans_title, '\n');
  for (const Record& record : records) {
    const std::string line = detail::record_text(record);
    text += message(line, " checksum=", detail::hexadecimal_digits(detail::text_checksum(line), 8),
                    '\n');
  }
  return text;
}

/// Parses the records of such a text; none for an empty text.
/// @param file  its name, for messages
/// @throws IoError  naming the file and the line that is damaged
template <class Reader = detail::RecordReader>
[[nodiscard]] std::vector<GemmPlanRecord> read_gemm_plans(std::string_view text,
                                                          std::string_view file) {
  std::vector<GemmPlanRecord> records;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (number > 1) {
      records.push_back(detail::read_record_line<Reader>(line, file, number));
    } else if (line != detail::gemm_plans_title) {
      throw IoError(message(file, ":1: the title '", detail::gemm_plans_title,
                            "' is missing; pass a file that this version of octavo wrote, or one "
                            "that does not exist yet"));
    }
  }
  return records;
}

/// Merges records: replaces those of `known` that `fresh` also has, adds its others, and sorts
/// them.
template <class Record = GemmPlanRecord>
[[nodiscard]] std::vector<Record> merged_gemm_plans(
    std::vector<Record> known, std::span<const std::type_identity_t<Record>> fresh) {
  for (const Record& record : fresh) {
    std::erase_if(known, [&](const Record& old) { return record.replaces(old); });
    known.push_back(record);
  }
  std::sort(known.begin(), known.end(), [](const Record& x, const Record& y) {
    return std::tie(x.library, x.key) < std::tie(y.library, y.key);
  });
  return known;
}

}  // namespace octavo

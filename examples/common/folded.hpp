// Folds lines about identical blocks of a model into one.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace programs {

namespace detail {

/// A line about "blocks.NUMBER.NAME", or any other line.
struct BlockLine {
  std::string before, behind;  ///< all except the number, with repeated spaces collapsed
  std::vector<int> numbers;    ///< empty if the line is not about a block
  [[nodiscard]] std::string key() const { return before + '\n' + behind; }
};

inline BlockLine block_line(const std::string& line) {
  BlockLine result;
  std::istringstream words(line);
  std::string text;
  for (std::string word; words >> word;) text += (text.empty() ? "" : " ") + word;
  const std::size_t place = text.find("blocks.");
  std::size_t end = place == std::string::npos ? text.size() : place + 7;
  const std::size_t begin = end;
  while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
  result.before = text.substr(0, begin);
  result.behind = text.substr(end);
  if (end > begin) result.numbers = {std::stoi(text.substr(begin, end - begin))};
  return result;
}

/// Returns a text such as "0-3,6".
inline std::string ranges_text(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(numbers[i]);
    if (last > i) text += '-' + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace detail

/// Aligns the columns of lines whose cells are separated by bars, such as a manifest's. Lines that
/// differ only in the number of a block become one, "blocks.0-31.qkv forward | ...".
inline std::string folded(const std::string& lines) {
  std::vector<detail::BlockLine> kept;
  std::map<std::string, std::size_t> places;
  std::istringstream all(lines);
  for (std::string line; std::getline(all, line);) {
    const detail::BlockLine one = detail::block_line(line);
    const auto [place, is_new] = places.emplace(one.key(), kept.size());
    if (is_new) {
      kept.push_back(one);
    } else {
      std::vector<int>& numbers = kept[place->second].numbers;
      numbers.insert(numbers.end(), one.numbers.begin(), one.numbers.end());
    }
  }
  // Lines with the same first cell share column widths.
  std::vector<std::vector<std::string>> rows;
  std::map<std::string, std::vector<std::size_t>> widths;
  for (const detail::BlockLine& line : kept) {
    std::vector<std::string>& cells = rows.emplace_back();
    std::string text = line.before + detail::ranges_text(line.numbers) + line.behind;
    for (std::size_t bar; (bar = text.find(" | ")) != std::string::npos;) {
      cells.push_back(text.substr(0, bar));
      text.erase(0, bar + 3);
    }
    cells.push_back(text);
    std::vector<std::size_t>& own = widths[cells.front()];
    own.resize(std::max(own.size(), cells.size()));
    for (std::size_t i = 0; i < cells.size(); ++i) own[i] = std::max(own[i], cells[i].size());
  }
  std::string result;
  for (const std::vector<std::string>& cells : rows) {
    for (std::size_t i = 0; i + 1 < cells.size(); ++i) {
      const std::size_t width = widths[cells.front()][i];
      result += cells[i] + std::string(width - cells[i].size(), ' ') + " | ";
    }
    result += cells.back() + '\n';
  }
  return result;
}

}  // namespace programs

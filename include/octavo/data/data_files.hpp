/// @file
/// Opening the data of a run, which files, folders and patterns name.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/data/seen_files.hpp>
#include <octavo/data/text.hpp>
#include <octavo/data/token_file.hpp>
#include <octavo/data/tokens.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <glob.h>

namespace octavo OCTAVO_ABI {

/// The data that a run will read.
struct DataRequest {
  /// Files, folders of text and patterns such as "data/*.bin". Either all have a weight after a
  /// colon, as in "code.bin:0.3", or none has. Each name with a weight is a separate share, in this
  /// order; names without weights form one share.
  std::vector<std::string> train{};
  /// The same for validation, without weights; may be empty.
  std::vector<std::string> validation{};
  Index vocabulary = 256;     ///< tokens of files must be below it
  Index least_tokens = 2;     ///< minimum number of tokens in a token file
  std::uint8_t between = 10;  ///< the byte between texts
  /// If not empty, text is an error with this message, before it is read.
  std::string text_refusal{};
};

/// The data of a run.
struct Data {
  std::vector<TokenShare> train;
  /// For each share of `train` that is text, the positions of its texts: one for each file, or for
  /// each line of JSON Lines.
  std::vector<std::vector<TextPlace>> texts;
  Tokens validation;           ///< empty if no files were named for it
  bool is_text = false;        ///< tokens are the bytes of texts
  std::vector<TextFile> read;  ///< in order
  std::vector<TextFile>
      skipped;  ///< other entries of folders and patterns; a folder is listed once
};

namespace detail {

struct WeightedName {
  std::string name;
  std::optional<double> weight;
};

/// Splits a weight off a name, unless a file has the whole name.
inline WeightedName weighted_name(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::error_code ignored;
  if (colon == std::string::npos || std::filesystem::exists(text, ignored)) return {text, {}};
  double weight = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, weight);
  if (parsed.ec != std::errc() || parsed.ptr != end) return {text, {}};
  return {text.substr(0, colon), weight};
}

/// Returns the paths that a pattern matches, sorted.
inline std::vector<std::filesystem::path> matches_of(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &found);
  std::vector<std::filesystem::path> paths;
  if (status == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  require<IoError>(status == 0 || status == GLOB_NOMATCH, pattern,
                   ": cannot list the folders of this pattern; check its path", start_of(pattern));
  require<IoError>(!paths.empty(), pattern, ": the pattern matches no file; check the path",
                   start_of(pattern));
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// Opens the data that a request names.
class DataLoader {
 public:
  explicit DataLoader(const DataRequest& request) : request_(request) {}

  Data load() {
    std::vector<std::string> names;
    for (const std::string& name : request_.train) {
      const WeightedName weighted = weighted_name(name);
      require<ConfigError>(
          weighted.weight.has_value() == weighted_name(request_.train.front()).weight.has_value(),
          "either all names must have a weight, or none, but only one of '", request_.train.front(),
          "' and '", name, "' has one; add or remove weights");
      if (weighted.weight.has_value()) {
        require<ConfigError>(*weighted.weight > 0 && std::isfinite(*weighted.weight), weighted.name,
                             ": its weight must be positive, but is ", *weighted.weight);
        add_share(weighted.name, {weighted.name}, *weighted.weight);
      } else {
        names.push_back(name);
      }
    }
    if (!names.empty()) add_share(title_of(names), names, 1.0);
    require<ConfigError>(!data_.train.empty(),
                         "no data is given; pass at least one file or folder");
    std::vector<TextPlace> of_validation;
    if (!request_.validation.empty()) {
      data_.validation = tokens_of(request_.validation, of_validation);
    }
    return std::move(data_);
  }

 private:
  static std::string title_of(const std::vector<std::string>& names) {
    return names.size() == 1 ? names.front()
                             : message(names.front(), " and ", names.size() - 1, " more");
  }

  void add_share(const std::string& title, const std::vector<std::string>& names, double weight) {
    std::vector<TextPlace> places;
    data_.train.push_back({title, tokens_of(names, places), weight});
    data_.texts.push_back(std::move(places));
  }

  /// Returns the tokens of all names, concatenated.
  /// @param places  receives the positions of texts
  Tokens tokens_of(const std::vector<std::string>& names, std::vector<TextPlace>& places) {
    TextReader texts(seen_, request_.between);
    std::vector<Tokens> files;
    for (const std::string& name : names) {
      seen_.begin_source();
      std::error_code ignored;
      if (std::filesystem::exists(name, ignored) ||
          name.find_first_of("*?[") == std::string::npos) {
        if (is_folder(name)) {
          texts.add_folder(name);
        } else {
          add_file(name, {}, texts, files);
        }
        continue;
      }
      for (const std::filesystem::path& path : matches_of(name)) {
        if (std::filesystem::is_directory(path, ignored)) {
          data_.skipped.push_back({path, 0, "a folder that a pattern matches"});
        } else {
          add_file(path, {name, true}, texts, files);
        }
      }
    }
    require_one_kind(texts.has_text(), !files.empty(), title_of(names));
    Text text = texts.read();
    places = std::move(text.texts);
    data_.read.insert(data_.read.end(), text.read.begin(), text.read.end());
    data_.skipped.insert(data_.skipped.end(), text.skipped.begin(), text.skipped.end());
    return files.empty() ? Tokens::owning(std::move(text.bytes)) : joined(std::move(files));
  }

  void add_file(const std::filesystem::path& path, const FileGroup& group, TextReader& texts,
                std::vector<Tokens>& files) {
    (void)is_folder(path);  // throws if it does not exist
    const auto layout = find_token_layout(path);
    if (!layout.has_value()) return texts.add_file(path, group);
    const auto file = std::make_shared<TokenFile>(*layout, request_.vocabulary);
    TextFile note{layout->path, file->bytes(), seen_.add(file->identity(), path, group)};
    const std::size_t width = width_of(layout->type);
    note.format =
        message(layout->program, ", ", width, width == 1 ? " byte" : " bytes", " per token");
    const bool is_new = note.remark.empty();
    (is_new ? data_.read : data_.skipped).push_back(std::move(note));
    if (!is_new) return;
    require<IoError>(file->size() >= request_.least_tokens, layout->path.string(),
                     ": must have at least ", request_.least_tokens,
                     " tokens for a batch, but has ", file->size(),
                     "; leave it out, or reduce the batch or the sequence length");
    files.emplace_back(file);
  }

  /// Throws if text and token files are mixed: tokens of text are bytes, whereas token files have a
  /// tokenizer's tokens.
  void require_one_kind(bool has_text, bool has_files, const std::string& title) {
    const bool is_first = !data_.is_text && !is_files_;
    require<ConfigError>(
        !(has_text && has_files) && (is_first || (has_text ? data_.is_text : is_files_)), title,
        ": text and token files cannot be mixed, because their tokens differ; "
        "name only one of the two");
    require<ConfigError>(!has_text || request_.text_refusal.empty(), request_.text_refusal);
    data_.is_text = has_text;
    is_files_ = has_files;
  }

  const DataRequest& request_;
  SeenFiles seen_;
  Data data_;
  bool is_files_ = false;
};

}  // namespace detail

/// Finds and opens the data of a run. Text is read completely, as by `load_text`. Token files (see
/// `find_token_layout`) are only opened, and read when batches are built.
/// @throws ConfigError  if nothing is named; if a file is named twice, also once for training and
/// once for validation; if text and token files are mixed; if only some names have weights; or if
/// text is named although `text_refusal` is set
/// @throws IoError      naming the file, if it cannot be read or violates its format; if a pattern
///                      matches no file
[[nodiscard]] inline Data load_data(const DataRequest& request) {
  return detail::DataLoader(request).load();
}

}  // namespace octavo

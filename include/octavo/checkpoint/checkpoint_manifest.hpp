/// @file
/// The manifest of a checkpoint.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/json_line.hpp>
#include <octavo/core/json_reader.hpp>
#include <octavo/data/open_file.hpp>
#include <octavo/io/crc32c.hpp>
#include <octavo/io/file_digest.hpp>

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo OCTAVO_ABI {

/// One of the files with a checkpoint's state.
struct CheckpointFile {
  std::string name;  ///< in the checkpoint's folder, such as "rank-00000.safetensors"
  FileDigest digest{};
};

/// Records that a run resumed with another recipe, or other formats of its optimizer's state.
struct StateConversion {
  Index step = 0;                      ///< of the checkpoint that it resumed from
  std::string recipe{}, optimizer{};   ///< of that checkpoint
  std::vector<std::string> changes{};  ///< changes to its state, by kind
};

/// The content of a checkpoint's `manifest.json`.
struct CheckpointManifest {
  Index step = 0;         ///< after which it was saved
  std::int64_t time = 0;  ///< when it was saved, in s since 1970
  std::string version{};  ///< of Octavo
  std::string model{}, recipe{}, optimizer{};
  int ranks = 1;                                  ///< world size
  int tensor_ranks = 1;                           ///< tensor-parallel degree
  int zero = 1;                                   ///< stage, 1 to 3
  std::optional<double> validation_loss{};        ///< of these weights, if they were evaluated
  std::string validation{};                       ///< identifies its data; empty: unknown
  std::map<std::string, std::int64_t> numbers{};  ///< of the host, such as "optimizer.steps"
  /// The algorithms of the run's GEMMs, in the form of `gemm_plans_text`; empty: heuristics.
  std::string gemm_plans{};
  /// The GPU and the libraries that the run used, see `libraries_text`; empty: `Cpu`, or unknown.
  std::string libraries{};
  Index run_length = 0;  ///< padded sequence length in tokens; 0: unknown
  std::vector<CheckpointFile> files{};
  std::vector<StateConversion> conversions{};  ///< of the run so far, in order

  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const CheckpointFile& file : files) sum += file.digest.bytes;
    return sum;
  }
};

namespace detail {

/// The version of the checkpoint format.
inline constexpr std::int64_t checkpoint_format = 1;
inline constexpr const char* manifest_name = "manifest.json";

inline std::string checksum_text(std::uint32_t checksum) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4) text += digits[checksum >> shift & 0xf];
  return text;
}

/// Throws unless a file has the bytes that were written to it.
/// @param advice  what to do
/// @throws IoError  naming the file and both digests
inline void verify_file(const std::filesystem::path& path, const FileDigest& written,
                        const Context<Cpu>& context, ReadFrom source, const std::string& advice) {
  const FileDigest found = digest_of_file(path, context, source);
  require<IoError>(found == written, path.string(), ": has ", found.bytes, " bytes with checksum ",
                   checksum_text(found.checksum), ", but was written with ", written.bytes,
                   " bytes with ", checksum_text(written.checksum), "; ", advice);
}

/// Returns the end of a manifest: the checksum of the text before it.
inline std::string manifest_end(std::string_view begin) {
  return ",\"crc32c\":\"" + checksum_text(crc32c(std::as_bytes(std::span(begin)))) + "\"}\n";
}

/// Returns a manifest's entry of a file.
inline JsonLine line_of(const CheckpointFile& file) {
  return JsonLine{}
      .add("name", file.name)
      .add("bytes", file.digest.bytes)
      .add("crc32c", checksum_text(file.digest.checksum));
}

inline JsonLine line_of(const StateConversion& conversion) {
  return JsonLine{}
      .add("step", conversion.step)
      .add("recipe", conversion.recipe)
      .add("optimizer", conversion.optimizer)
      .add("changes", std::span<const std::string>(conversion.changes));
}

inline std::string manifest_text(const CheckpointManifest& manifest) {
  JsonLine numbers;
  for (const auto& [name, number] : manifest.numbers) numbers.add(name, number);
  std::vector<JsonLine> files;
  files.reserve(manifest.files.size());
  for (const CheckpointFile& file : manifest.files) files.push_back(line_of(file));
  JsonLine line;
  line.add("format", checkpoint_format)
      .add("octavo", manifest.version)
      .add("step", manifest.step)
      .add("time", manifest.time)
      .add("model", manifest.model)
      .add("recipe", manifest.recipe)
      .add("optimizer", manifest.optimizer)
      .add("ranks", manifest.ranks)
      .add("tensor_parallel", manifest.tensor_ranks)
      .add("zero", manifest.zero);
  // A loss that is not finite has no number in JSON.
  if (manifest.validation_loss.has_value() && std::isfinite(*manifest.validation_loss)) {
    line.add("validation_loss", *manifest.validation_loss);
  }
  if (!manifest.validation.empty()) line.add("validation", manifest.validation);
  if (!manifest.gemm_plans.empty()) line.add("gemm_plans", manifest.gemm_plans);
  if (!manifest.libraries.empty()) line.add("libraries", manifest.libraries);
  if (manifest.run_length != 0) line.add("run_length", manifest.run_length);
  line.add("numbers", numbers).add("files", std::span<const JsonLine>(files));
  std::vector<JsonLine> conversions;
  conversions.reserve(manifest.conversions.size());
  for (const StateConversion& one : manifest.conversions) conversions.push_back(line_of(one));
  if (!conversions.empty()) line.add("conversions", std::span<const JsonLine>(conversions));
  std::string text = line.str();
  text.pop_back();
  return text + manifest_end(text);
}

inline CheckpointFile read_manifest_file(JsonReader& json) {
  CheckpointFile file;
  json.object([&](const std::string& key) {
    if (key == "name") {
      file.name = json.string();
    } else if (key == "bytes") {
      file.digest.bytes = static_cast<std::uint64_t>(json.natural());
    } else if (key == "crc32c") {
      const std::string digits = json.string();
      std::from_chars(digits.data(), digits.data() + digits.size(), file.digest.checksum, 16);
      if (checksum_text(file.digest.checksum) != digits)
        json.fail(message("'", digits, "' is not a checksum of eight hexadecimal digits"));
    } else {
      json.skip();
    }
  });
  const bool is_name = !file.name.empty() && file.name != "." && file.name != ".." &&
                       file.name.find('/') == std::string::npos &&
                       file.name.find('\0') == std::string::npos;
  if (!is_name) {
    json.fail("'" + file.name + "' is not the name of a file in this folder");
  }
  return file;
}

/// Returns the name of a recipe in a checkpoint as sessions have it: Octavo 0.1.0 wrote "fp8
/// delayed" instead of "fp8-delayed".
inline std::string current_recipe(std::string recipe) {
  for (const std::string scaling : {"delayed", "tensorwise", "rowwise", "blockwise"}) {
    const std::string earlier = "fp8 " + scaling;
    for (auto at = recipe.find(earlier); at != std::string::npos; at = recipe.find(earlier, at)) {
      recipe[at + 3] = '-';
    }
  }
  return recipe;
}

inline StateConversion read_conversion(JsonReader& json) {
  StateConversion conversion;
  json.object([&](const std::string& key) {
    if (key == "step") {
      conversion.step = json.natural();
    } else if (key == "recipe") {
      conversion.recipe = current_recipe(json.string());
    } else if (key == "optimizer") {
      conversion.optimizer = json.string();
    } else if (key == "changes") {
      json.array([&] { conversion.changes.push_back(json.string()); });
    } else {
      json.skip();
    }
  });
  return conversion;
}

/// @throws IoError  naming the file, if it is missing, damaged, or of a later format
inline CheckpointManifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / manifest_name;
  const std::string text = read_text_file(path);
  const std::string_view all = text;
  const std::size_t end = manifest_end("").size();
  require<IoError>(all.size() >= end && all.substr(all.size() - end) ==
                                            manifest_end(all.substr(0, all.size() - end)),
                   path.string(),
                   ": its checksum does not match: it is damaged; use another checkpoint");
  CheckpointManifest manifest;
  JsonReader json(all, path.string(), 0, "use another checkpoint");
  const std::map<std::string_view, std::string*> texts{
      {"octavo", &manifest.version},        {"model", &manifest.model},
      {"recipe", &manifest.recipe},         {"optimizer", &manifest.optimizer},
      {"gemm_plans", &manifest.gemm_plans}, {"validation", &manifest.validation},
      {"libraries", &manifest.libraries}};
  const std::map<std::string_view, int*> counts{{"ranks", &manifest.ranks},
                                                {"tensor_parallel", &manifest.tensor_ranks},
                                                {"zero", &manifest.zero}};
  std::int64_t format = 0;
  json.object([&](const std::string& key) {
    if (const auto text_field = texts.find(key); text_field != texts.end()) {
      *text_field->second = json.string();
    } else if (const auto count = counts.find(key); count != counts.end()) {
      *count->second = static_cast<int>(json.natural(std::numeric_limits<int>::max()));
    } else if (key == "format") {
      format = json.natural();
    } else if (key == "step") {
      manifest.step = json.natural();
    } else if (key == "run_length") {
      manifest.run_length = json.natural();
    } else if (key == "time") {
      manifest.time = json.natural();
    } else if (key == "validation_loss") {
      manifest.validation_loss = json.number();
    } else if (key == "files") {
      std::set<std::string> names;
      json.array([&] {
        manifest.files.push_back(read_manifest_file(json));
        const std::string& name = manifest.files.back().name;
        if (!names.insert(name).second) json.fail("the file '" + name + "' is listed twice");
      });
    } else if (key == "conversions") {
      json.array([&] { manifest.conversions.push_back(read_conversion(json)); });
    } else {
      json.skip();
    }
  });
  json.end();
  manifest.recipe = current_recipe(std::move(manifest.recipe));
  require<IoError>(format == checkpoint_format, path.string(), ": has format ", format,
                   " instead of ", checkpoint_format, "; use the version of Octavo that wrote it, ",
                   manifest.version);
  return manifest;
}

}  // namespace detail
}  // namespace octavo

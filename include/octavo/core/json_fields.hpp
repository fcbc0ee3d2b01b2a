/// @file
/// The keys and values of a JSON object.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/json_reader.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The keys and values of a JSON object; those of nested objects are called "outer.inner".
class JsonFields {
 public:
  JsonFields(std::string_view text, std::string place) : place_(std::move(place)) {
    JsonReader json(text, place_);
    read_object(json, "");
    json.end();
  }

  /// Returns whether the key exists and is not null.
  [[nodiscard]] bool has(const std::string& key) const { return find(key) != nullptr; }
  /// Returns whether the key exists and is null.
  [[nodiscard]] bool is_null(const std::string& key) const {
    return fields_.contains(key) && !has(key);
  }

  /// Returns a whole number. `otherwise` is the value of a missing key; without it, the key must
  /// exist.
  [[nodiscard]] Index natural(const std::string& key, std::optional<Index> otherwise = {}) const {
    const Field* field = found(key, otherwise.has_value());
    return field == nullptr ? *otherwise : natural_of(key, *field);
  }
  [[nodiscard]] float positive(const std::string& key, std::optional<float> otherwise = {}) const {
    const Field* field = found(key, otherwise.has_value());
    if (field == nullptr) return *otherwise;
    const auto value = static_cast<float>(field->number);
    require_value(key, *field,
                  field->kind == JsonReader::Kind::number && value > 0 && std::isfinite(value),
                  "a positive number in the range of FP32");
    return value;
  }
  /// Returns a number from `least` to `most`; none if the key is missing.
  [[nodiscard]] std::optional<double> number(const std::string& key, double least,
                                             double most) const {
    const Field* field = find(key);
    if (field == nullptr) return std::nullopt;
    const double value = field->number;
    require_value(key, *field,
                  field->kind == JsonReader::Kind::number && value >= least && value <= most,
                  message("a number from ", least, " to ", most));
    return value;
  }
  [[nodiscard]] std::string word(const std::string& key,
                                 std::optional<std::string> otherwise = {}) const {
    const Field* field = found(key, otherwise.has_value());
    if (field == nullptr) return *otherwise;
    require_value(key, *field, field->kind == JsonReader::Kind::string, "a string");
    return field->text;
  }
  [[nodiscard]] bool flag(const std::string& key, bool otherwise) const {
    const Field* field = find(key);
    if (field == nullptr) return otherwise;
    require_value(key, *field, field->kind == JsonReader::Kind::boolean, "true or false");
    return field->number != 0;
  }
  /// Returns whole numbers: those of an array, a single one, or none.
  [[nodiscard]] std::vector<Index> naturals(const std::string& key) const {
    std::vector<Index> all;
    const Field* field = find(key);
    if (field == nullptr) return all;
    if (field->kind != JsonReader::Kind::array) return {natural_of(key, *field)};
    for (const Field& element : field->elements) all.push_back(natural_of(key, element));
    return all;
  }

  /// @throws ConfigError  if the key has a value other than the only supported one
  void require_flag(const std::string& key, bool wanted) const {
    require<ConfigError>(flag(key, wanted) == wanted, place_, ": ", key, " is ",
                         wanted ? "false" : "true", ", which Octavo's models do not support");
  }
  void require_word(const std::string& key, const std::vector<std::string>& served) const {
    const std::string value = word(key, served.front());
    for (const std::string& each : served) {
      if (value == each) return;
    }
    throw ConfigError(message(place_, ": ", key, " is ", value, ", which Octavo's ",
                              "models do not support; they support ", served.front()));
  }
  /// Returns the strings of an array; none if the key is missing.
  [[nodiscard]] std::vector<std::string> words(const std::string& key) const {
    std::vector<std::string> all;
    const Field* field = find(key);
    if (field == nullptr) return all;
    require_value(key, *field, field->kind == JsonReader::Kind::array, "an array");
    for (const Field& element : field->elements) all.push_back(element.text);
    return all;
  }

  [[nodiscard]] const std::string& place() const { return place_; }

 private:
  static constexpr std::size_t longest_key = 256;

  struct Field {
    JsonReader::Kind kind = JsonReader::Kind::null;
    std::string text{};
    double number = 0;  ///< or 1 for true
    std::vector<Field> elements{};

    [[nodiscard]] std::string shown() const {
      switch (kind) {
        case JsonReader::Kind::object:
          return "an object";
        case JsonReader::Kind::array:
          return "an array";
        case JsonReader::Kind::string:
          return "the string " + JsonReader::excerpt(text);
        case JsonReader::Kind::number:
          return shortest_text(number);
        case JsonReader::Kind::boolean:
          return number != 0 ? "true" : "false";
        case JsonReader::Kind::null:
          break;
      }
      return "null";
    }
  };

  [[nodiscard]] const Field* find(const std::string& key) const {
    const auto found = fields_.find(key);
    if (found == fields_.end() || found->second.kind == JsonReader::Kind::null) return nullptr;
    return &found->second;
  }
  [[nodiscard]] const Field* found(const std::string& key, bool may_be_missing) const {
    const Field* field = find(key);
    require<ConfigError>(field != nullptr || may_be_missing, place_, ": ", key,
                         " is missing; add it, or use the folder of another model");
    return field;
  }
  void require_value(const std::string& key, const Field& field, bool is_right,
                     std::string_view wanted) const {
    require<ConfigError>(is_right, place_, ": ", key, " must be ", wanted, ", but is ",
                         field.shown(), "; correct it, or use the folder of another model");
  }
  [[nodiscard]] Index natural_of(const std::string& key, const Field& field) const {
    require_value(key, field,
                  field.kind == JsonReader::Kind::number && field.number >= 0 &&
                      field.number < 0x1p53 && field.number == std::floor(field.number),
                  "a whole number of at least 0");
    return static_cast<Index>(field.number);
  }

  void read_object(JsonReader& json, const std::string& prefix) {
    json.object([&](const std::string& key) {
      // Keys of inner objects may repeat those of outer objects.
      if (prefix.size() + key.size() > longest_key)
        json.fail(message("a key has more than ", longest_key, " bytes, including its outer keys"));
      Field field = read(json, prefix + key);
      fields_[prefix + key] = std::move(field);
    });
  }
  Field read(JsonReader& json, const std::string& key) {
    Field field{.kind = json.peek()};
    switch (field.kind) {
      case JsonReader::Kind::object:
        read_object(json, key + ".");
        break;
      case JsonReader::Kind::array:
        json.array([&] { field.elements.push_back(read(json, key)); });
        break;
      case JsonReader::Kind::string:
        field.text = json.string();
        break;
      case JsonReader::Kind::number:
        field.number = json.number();
        break;
      case JsonReader::Kind::boolean:
        field.number = json.boolean() ? 1 : 0;
        break;
      case JsonReader::Kind::null:
        json.skip();
        break;
    }
    return field;
  }

  std::string place_;
  std::map<std::string, Field> fields_;
};

}  // namespace octavo

// Calls Octavo's functions for the checks in this folder, with files or streams as arguments.
//
//   against_peers_probe encode FORMAT < FP32 values > codes
//   against_peers_probe decode FORMAT < codes > FP32 values
//   against_peers_probe tokens TOKENIZER text|special < texts > tokens and decoded texts
//   against_peers_probe safetensors < file names > the tensors, or "refuse" and why, per file
//   against_peers_probe configs < file names > the shape and tensors, or "refuse" and why, per file
//   against_peers_probe token-file FILE VOCABULARY > tokens of 32 bits
//
// FORMAT is bf16, E4M3, E5M2, E2M1 or E8M0. Texts have their length, of 32 bits, before them;
// tokens and decoded texts too. Numbers are little-endian.
#include <octavo/data/token_file.hpp>
#include <octavo/data/tokenizer_json.hpp>
#include <octavo/data/utf8proc.hpp>
#include <octavo/formats/formats.hpp>
#include <octavo/io/hugging_face_config.hpp>
#include <octavo/io/safetensors.hpp>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace {

template <class T>
std::vector<T> input() {
  const std::string bytes{std::istreambuf_iterator<char>(std::cin), {}};
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

template <class T>
void print(std::span<const T> values) {
  std::cout.write(reinterpret_cast<const char*>(values.data()),
                  static_cast<std::streamsize>(values.size_bytes()));
}

template <class Format>
void convert(bool encodes) {
  using Code = decltype(Format::bits);
  if (encodes) {
    std::vector<Code> codes;
    for (const float value : input<float>()) codes.push_back(Format(value).bits);
    print<Code>(codes);
  } else {
    std::vector<float> values;
    for (const Code code : input<Code>())
      values.push_back(static_cast<float>(Format::from_bits(code)));
    print<float>(values);
  }
}

void convert(const std::string& format, bool encodes) {
  if (format == "bf16") return convert<octavo::Bf16>(encodes);
  if (format == "E4M3") return convert<octavo::E4M3>(encodes);
  if (format == "E5M2") return convert<octavo::E5M2>(encodes);
  if (format == "E2M1") return convert<octavo::E2M1>(encodes);
  if (format == "E8M0") return convert<octavo::E8M0>(encodes);
  throw octavo::ConfigError("there is no format " + format);
}

void tokens(const std::string& path, bool special) {
  const octavo::BytePairTokenizer tokenizer =
      octavo::load_tokenizer(path, octavo::normalize_by_utf8proc);
  std::vector<std::string> allowed;
  for (const auto& [name, token] : tokenizer.special_tokens()) {
    if (special) allowed.push_back(name);
  }
  std::uint32_t length = 0;
  while (std::cin.read(reinterpret_cast<char*>(&length), sizeof length)) {
    std::string text(length, '\0');
    std::cin.read(text.data(), static_cast<std::streamsize>(length));
    const std::vector<std::int32_t> encoded = tokenizer.encode(text, allowed);
    const std::string decoded = tokenizer.decode(encoded);
    const auto count = static_cast<std::uint32_t>(encoded.size());
    const auto bytes = static_cast<std::uint32_t>(decoded.size());
    print(std::span(&count, 1));
    print<std::int32_t>(encoded);
    print(std::span(&bytes, 1));
    print<char>(decoded);
  }
}

/// Calls a function for each line of the input, and prints its result, or why it threw.
template <class Function>
void for_each_line(const Function& function) {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      std::cout << function(line) << "\n";
    } catch (const octavo::Error& error) {
      std::string why = error.what();
      std::replace(why.begin(), why.end(), '\n', ' ');
      std::cout << "refuse " << why << "\n";
    }
  }
}

std::string read_config(const std::string& path) {
  const octavo::ModelDescription model = octavo::read_hugging_face_config(path);
  std::string tensors;
  for (const octavo::HuggingFaceTensor& tensor : model.family->tensors(model)) {
    tensors += tensors.empty() ? "" : " ";
    tensors += tensor.name;
    for (const octavo::Index extent : tensor.shape()) tensors += octavo::message(",", extent);
  }
  octavo::JsonLine line;
  line.add("window", model.window)
      .add("first_windowed_layer", model.first_windowed_layer)
      .add("norm_epsilon", model.norm_epsilon)
      .add("rope_theta", model.rope_theta)
      .add("positions", model.positions)
      .add("rope_kind", octavo::rope_kind_name(model.rope_scaling.kind))
      .add("rope_factor", model.rope_scaling.factor)
      .add("tied", model.tied_embeddings)
      .add("heads", model.heads)
      .add("kv_heads", model.kv_heads)
      .add("tensors", tensors)
      .add("written", octavo::hugging_face_config(model, "float32"));
  return line.str();
}

void token_file(const std::string& path, octavo::Index vocabulary) {
  const octavo::Tokens file = octavo::open_token_file(path, vocabulary);
  std::vector<std::int32_t> all(static_cast<std::size_t>(file.size()));
  file.read(0, all);
  print<std::int32_t>(all);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string command = words.empty() ? "" : words[0];
  try {
    if ((command == "encode" || command == "decode") && words.size() == 2) {
      convert(words[1], command == "encode");
    } else if (command == "tokens" && words.size() == 3) {
      tokens(words[1], words[2] == "special");
    } else if (command == "safetensors" && words.size() == 1) {
      for_each_line([](const std::string& path) {
        const octavo::SafetensorsFile file(path);
        octavo::JsonLine tensors;
        for (const octavo::SafetensorsEntry& entry : file.tensors()) {
          std::string text = octavo::message(entry.dtype, " ", entry.begin, " ", entry.end);
          for (const octavo::Index extent : entry.shape) text += octavo::message(" ", extent);
          tensors.add(entry.name, text);
        }
        return tensors.str();
      });
    } else if (command == "configs" && words.size() == 1) {
      for_each_line(read_config);
    } else if (command == "token-file" && words.size() == 3) {
      token_file(words[1], std::stoll(words[2]));
    } else {
      std::fprintf(stderr, "usage: see the top of benchmarks/against_peers/probe.cpp\n");
      return 2;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "against_peers_probe: %s\n", error.what());
    return 1;
  }
  return 0;
}

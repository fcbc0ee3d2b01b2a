// The computations of random_models for one compiled model.
#pragma once

#include <octavo/checkpoint/hugging_face.hpp>
#include <octavo/models/models.hpp>
#include <octavo/session/session.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace random_models {

/// A compiled model, which computes the files of a folder: see main.cpp.
struct Model {
  std::string_view name;
  void (*compute)(const std::filesystem::path& folder);
};

/// All compiled models; the translation unit of each adds it.
inline std::vector<Model>& models() {
  static std::vector<Model> all;
  return all;
}

struct Registration {
  explicit Registration(Model model) { models().push_back(model); }
};

template <class T>
std::vector<T> read(const std::filesystem::path& path) {
  std::vector<T> values(std::filesystem::file_size(path) / sizeof(T));
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
  octavo::require<octavo::IoError>(file.good(), "cannot read ", path.string());
  return values;
}

inline void append(std::ofstream& file, std::span<const float> values) {
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size_bytes()));
}

template <auto Config>
void compute(const std::filesystem::path& folder) {
  using namespace octavo;
  Context<Cpu> context{1};
  const ModelDescription described = read_hugging_face_config(folder / "config.json");
  const auto shape = read<std::int32_t>(folder / "shape.i32");  // sequences, tokens of each
  const auto tokens = read<std::int32_t>(folder / "tokens.i32");
  const auto targets = read<std::int32_t>(folder / "targets.i32");
  SessionOptions options;
  options.batch = {shape.at(0), shape.at(1)};
  ModelSession<PresetModel<Config, Fp32, Cpu>> session(options, context);
  load_hugging_face(session, described, folder);

  const auto length = static_cast<std::size_t>(shape[1]);
  std::ofstream logits(folder / "logits.f32", std::ios::binary);
  std::vector<float> row(static_cast<std::size_t>(Config.vocabulary));
  session.begin_evaluation();
  for (std::size_t begin = 0; begin < tokens.size(); begin += length) {
    for (std::size_t count = 1; count <= length; ++count) {
      session.next_token_logits(std::span(tokens).subspan(begin, count), row);
      append(logits, row);
    }
  }
  save_hugging_face(session, described, folder / "written");

  const StepResult result = session.step({tokens, targets}, 0.0);
  const float loss = static_cast<float>(result.loss);
  std::ofstream losses(folder / "loss.f32", std::ios::binary);
  append(losses, {&loss, 1});
  std::map<std::string, std::span<const float>> parameters;
  session.model().visit([&](const auto& parameter) {
    parameters[parameter.name] = {parameter.gradient.data(),
                                  static_cast<std::size_t>(parameter.gradient.size())};
  });
  std::ofstream gradients(folder / "gradients.f32", std::ios::binary);
  std::ofstream names(folder / "gradients.txt");
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(described)) {
    const auto count = static_cast<std::size_t>(tensor.rows * tensor.columns);
    append(gradients,
           parameters.at(tensor.parameter).subspan(static_cast<std::size_t>(tensor.first), count));
    names << tensor.name << ' ' << tensor.rows << ' ' << tensor.columns << ' '
          << tensor.is_transposed << '\n';
  }
  logits.close();
  losses.close();
  gradients.close();
  names.close();
  require<IoError>(logits && losses && gradients && names, "cannot write to ", folder.string());
}

}  // namespace random_models

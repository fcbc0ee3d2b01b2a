// What a model that was compiled in computes with the weights of a Hugging Face folder, as files
// that other programs compare; and the folder's weights, written again.
//
//   model_probe compute FOLDER PRECISION TOKENS PROMPT GENERATE OUT
//   model_probe copy FOLDER PRECISION SHARD_BYTES OUT
//
// TOKENS is a token file, of which the first PROMPT are seen. OUT/logits.f32 gets their logits,
// [PROMPT, vocabulary]; GENERATE tokens that follow greedily are printed.
#include <octavo/checkpoint/hugging_face.hpp>
#include <octavo/data/token_file.hpp>
#include <octavo/inference/generate.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/registry.hpp>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace {

using octavo::Index;

struct Loaded {
  octavo::ModelDescription model;
  std::shared_ptr<octavo::TrainingSession> session;
};

/// @throws ConfigError  if no model of this shape and precision was compiled in
Loaded load(const std::filesystem::path& folder, const std::string& precision, Index tokens) {
  Loaded loaded{octavo::read_hugging_face_config(folder / "config.json"), nullptr};
  for (const trainer::Instance& instance : trainer::instances()) {
    if (instance.precision != precision || !differences(loaded.model, instance.shape).empty())
      continue;
    trainer::SessionRequest request;
    request.formats = {"bf16", "8bit"};
    request.options.batch = {1, tokens};
    request.options.model.recompute = octavo::Recompute::block;
    loaded.session = instance.make(request);
    octavo::load_hugging_face(*loaded.session, instance.shape, folder);
    return loaded;
  }
  throw octavo::ConfigError("no model of the folder's shape and this precision is compiled in");
}

void compute(const std::vector<std::string>& words) {
  const Index prompt = std::stoll(words[4]);
  const Index generated = std::stoll(words[5]);
  const Loaded loaded = load(words[1], words[2], octavo::round_up(prompt + generated, 16));
  octavo::TrainingSession& session = *loaded.session;
  const Index vocabulary = session.facts().vocabulary;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(prompt));
  octavo::open_token_file(words[3], vocabulary).read(0, tokens);
  session.begin_evaluation();
  std::vector<float> logits(static_cast<std::size_t>(vocabulary));
  std::filesystem::create_directories(words[6]);
  std::ofstream file(std::filesystem::path(words[6]) / "logits.f32", std::ios::binary);
  for (std::size_t count = 1; count <= tokens.size(); ++count) {
    session.next_token_logits(std::span(tokens).first(count), logits);
    const auto bytes = std::as_bytes(std::span(logits));
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  const auto text = octavo::generate(session, tokens, prompt + generated,
                                     {.tokens = generated, .sampling = {.temperature = 0}});
  for (const std::int32_t token : text) std::printf("%d ", token);
  std::printf("\n");
}

void copy(const std::vector<std::string>& words) {
  const Loaded loaded = load(words[1], words[2], 16);
  octavo::save_hugging_face(*loaded.session, loaded.model, words[4],
                            {.shard_bytes = std::stoull(words[3])});
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 7 && words[0] == "compute") {
      compute(words);
    } else if (words.size() == 5 && words[0] == "copy") {
      copy(words);
    } else {
      std::fprintf(stderr, "usage: see the top of benchmarks/smollm2/model_probe.cpp\n");
      return 2;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_probe: %s\n", error.what());
    return 1;
  }
  return 0;
}

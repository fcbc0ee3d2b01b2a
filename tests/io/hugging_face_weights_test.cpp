// The weights of a folder come from where the family's names say, a wrong folder is refused as a
// whole, and what is written holds the bytes that were read.
#include <octavo/io/hugging_face_weights.hpp>
#include <octavo/io/hugging_face_writer.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "support/safetensors_bytes.hpp"
#include "support/temporary_folder.hpp"

namespace hugging_face_weights_test {

namespace fs = std::filesystem;
using namespace octavo;
using support::RawTensor;

constexpr ModelDescription llama{.family = &llama_in_hugging_face,
                                 .layers = 2,
                                 .hidden = 6,
                                 .ffn = 5,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_dim = 4,
                                 .vocabulary = 7,
                                 .norm_epsilon = 1e-5f,
                                 .rope_theta = 1e4f};

ModelDescription qwen3() {
  ModelDescription model = llama;
  model.family = &qwen3_in_hugging_face;
  model.qk_norm = true;
  model.layers = 1;
  model.tied_embeddings = true;
  return model;
}

ModelDescription gpt2() {
  return {.family = &gpt2_in_hugging_face,
          .layers = 1,
          .hidden = 6,
          .ffn = 24,
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 3,
          .vocabulary = 7,
          .norm_epsilon = 1e-5f,
          .tied_embeddings = true,
          .positions = 5,
          .layer_norm = true,
          .linear_bias = true,
          .gated_mlp = false};
}

/// The name, shape and first value of each tensor that transformers has of such a model; values go
/// up by one, and are numbers of BF16.
struct Theirs {
  std::string name;
  std::vector<Index> shape;
  int first = 0;
};

std::vector<Theirs> theirs(const ModelDescription& model) {
  std::vector<Theirs> all;
  const auto add = [&](const std::string& name, std::vector<Index> shape) {
    all.push_back({name, std::move(shape), static_cast<int>(all.size()) * 3});
  };
  if (model.layer_norm) {
    add("transformer.wte.weight", {7, 6});
    add("transformer.wpe.weight", {5, 6});
    const std::string layer = "transformer.h.0.";
    for (const char* norm : {"ln_1", "ln_2"}) {
      add(layer + norm + ".weight", {6});
      add(layer + norm + ".bias", {6});
    }
    add(layer + "attn.c_attn.weight", {6, 18});
    add(layer + "attn.c_attn.bias", {18});
    add(layer + "attn.c_proj.weight", {6, 6});
    add(layer + "attn.c_proj.bias", {6});
    add(layer + "mlp.c_fc.weight", {6, 24});
    add(layer + "mlp.c_fc.bias", {24});
    add(layer + "mlp.c_proj.weight", {24, 6});
    add(layer + "mlp.c_proj.bias", {6});
    add("transformer.ln_f.weight", {6});
    add("transformer.ln_f.bias", {6});
    return all;
  }
  add("model.embed_tokens.weight", {7, 6});
  for (Index i = 0; i < model.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {6});
    add(layer + "post_attention_layernorm.weight", {6});
    add(layer + "self_attn.q_proj.weight", {8, 6});
    add(layer + "self_attn.k_proj.weight", {4, 6});
    add(layer + "self_attn.v_proj.weight", {4, 6});
    add(layer + "self_attn.o_proj.weight", {6, 8});
    add(layer + "mlp.gate_proj.weight", {5, 6});
    add(layer + "mlp.up_proj.weight", {5, 6});
    add(layer + "mlp.down_proj.weight", {6, 5});
    if (model.qk_norm) {
      add(layer + "self_attn.q_norm.weight", {4});
      add(layer + "self_attn.k_norm.weight", {4});
    }
  }
  add("model.norm.weight", {6});
  if (!model.tied_embeddings) add("lm_head.weight", {7, 6});
  return all;
}

/// The bytes of small whole numbers, which are exact in every format here.
std::string element(const std::string& dtype, int value) {
  std::string bytes(4, '\0');
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  std::memcpy(bytes.data(), &bits, 4);
  if (dtype == "F32") return bytes;
  if (dtype == "BF16") return bytes.substr(2);  // the upper half
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // F16 of numbers below 2048
  const auto half = static_cast<std::uint16_t>(
      value == 0 ? 0 : (exponent + 14) << 10 | (static_cast<int>(fraction * 2048) & 0x3ff));
  return {static_cast<char>(half & 0xff), static_cast<char>(half >> 8)};
}

RawTensor hand_tensor(const Theirs& tensor, const std::string& dtype) {
  RawTensor result{tensor.name, dtype, tensor.shape, ""};
  Index count = 1;
  for (const Index extent : tensor.shape) count *= extent;
  for (int i = 0; i < count; ++i) result.bytes += element(dtype, (tensor.first + i) % 256);
  return result;
}

std::vector<RawTensor> hand_tensors(const ModelDescription& model, const std::string& dtype) {
  std::vector<RawTensor> all;
  for (const Theirs& tensor : theirs(model)) all.push_back(hand_tensor(tensor, dtype));
  return all;
}

class HuggingFaceFolder : public support::TemporaryFolder {
 protected:
  void write_single(const std::vector<RawTensor>& tensors) {
    support::write_bytes(folder_ / "model.safetensors", support::safetensors_bytes(tensors));
  }
  /// Two files and their index, which says of each tensor what `file_of` says.
  void write_sharded(
      const std::vector<RawTensor>& tensors,
      const std::function<std::string(const std::string&, const std::string&)>& file_of =
          [](const std::string&, const std::string& file) { return file; }) {
    std::vector<RawTensor> parts[2];
    nlohmann::json map = nlohmann::json::object();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      parts[i % 2].push_back(tensors[i]);
      map[tensors[i].name] =
          file_of(tensors[i].name, i % 2 == 0 ? "a.safetensors" : "b.safetensors");
    }
    support::write_bytes(folder_ / "a.safetensors", support::safetensors_bytes(parts[0]));
    support::write_bytes(folder_ / "b.safetensors", support::safetensors_bytes(parts[1]));
    support::write_bytes(
        folder_ / "model.safetensors.index.json",
        nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  }
  template <class E>
  void expect_refused(const ModelDescription& model, std::string_view why) {
    try {
      const HuggingFaceWeights weights(folder_, model);
      ADD_FAILURE() << "taken, though: " << why;
    } catch (const E& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  }

  /// What a parameter has, read in pieces of this size.
  static std::vector<float> parameter(const HuggingFaceWeights& weights, const std::string& name,
                                      std::size_t count, std::size_t piece) {
    std::vector<float> values(count, -1.0f);
    for (std::size_t begin = 0; begin < count; begin += piece) {
      weights.read(name, static_cast<Index>(begin),
                   std::span(values).subspan(begin, std::min(piece, count - begin)));
    }
    return values;
  }
};

/// The rows of tensors, below each other; those of a transposed one are its columns.
std::vector<float> rows_of(const ModelDescription& model, const std::vector<std::string>& names,
                           bool transposed = false) {
  std::vector<float> values;
  for (const std::string& name : names) {
    for (const Theirs& tensor : theirs(model)) {
      if (tensor.name != name) continue;
      const auto value = [&](Index i) {
        return static_cast<float>((tensor.first + static_cast<int>(i)) % 256);
      };
      const Index rows = tensor.shape.size() == 1 ? 1 : tensor.shape[0];
      const Index columns = tensor.shape.back();
      if (transposed) {
        for (Index c = 0; c < columns; ++c) {
          for (Index r = 0; r < rows; ++r) values.push_back(value(r * columns + c));
        }
      } else {
        for (Index i = 0; i < rows * columns; ++i) values.push_back(value(i));
      }
    }
  }
  return values;
}

TEST_F(HuggingFaceFolder, ReadsParametersInPiecesOfAnySize) {
  for (const char* dtype : {"F32", "BF16", "F16"}) {
    write_single(hand_tensors(llama, dtype));
    const HuggingFaceWeights weights(folder_, llama);
    const std::string layer = "model.layers.1.";
    const std::map<std::string, std::vector<std::string>> parameters{
        {"embedding.weight", {"model.embed_tokens.weight"}},
        {"blocks.1.attention_norm.weight", {layer + "input_layernorm.weight"}},
        {"blocks.1.qkv.weight",
         {layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight",
          layer + "self_attn.v_proj.weight"}},
        {"blocks.1.output.weight", {layer + "self_attn.o_proj.weight"}},
        {"blocks.1.mlp_norm.weight", {layer + "post_attention_layernorm.weight"}},
        {"blocks.1.gate_up.weight", {layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight"}},
        {"blocks.1.down.weight", {layer + "mlp.down_proj.weight"}},
        {"final_norm.weight", {"model.norm.weight"}},
        {"head.weight", {"lm_head.weight"}}};
    for (const auto& [name, tensors] : parameters) {
      const std::vector<float> expected = rows_of(llama, tensors);
      for (const std::size_t piece : {1u, 7u, 13u, 1000u}) {
        EXPECT_EQ(parameter(weights, name, expected.size(), piece), expected) << name << dtype;
      }
    }
    EXPECT_THROW((void)parameter(weights, "blocks.2.down.weight", 1, 1), ConfigError);
  }
}

TEST_F(HuggingFaceFolder, TransposesGpt2LinearLayers) {
  write_single(hand_tensors(gpt2(), "BF16"));
  const HuggingFaceWeights weights(folder_, gpt2());
  const std::string layer = "transformer.h.0.";
  const std::map<std::string, std::string> linear{{"qkv", "attn.c_attn"},
                                                  {"output", "attn.c_proj"},
                                                  {"up", "mlp.c_fc"},
                                                  {"down", "mlp.c_proj"}};
  for (const auto& [ours, other] : linear) {
    for (const bool is_weight : {true, false}) {
      const std::string kind = is_weight ? ".weight" : ".bias";
      const std::vector<float> expected = rows_of(gpt2(), {message(layer, other, kind)}, is_weight);
      for (const std::size_t piece : {1u, 5u, 6u, 16u, 1000u}) {
        EXPECT_EQ(parameter(weights, message("blocks.0.", ours, kind), expected.size(), piece),
                  expected)
            << ours << kind << piece;
      }
    }
  }
  const std::vector<float> positions = rows_of(gpt2(), {"transformer.wpe.weight"});
  EXPECT_EQ(parameter(weights, "positions.weight", positions.size(), 4), positions);
  const std::vector<float> bias = rows_of(gpt2(), {layer + "ln_2.bias"});
  EXPECT_EQ(parameter(weights, "blocks.0.mlp_norm.bias", bias.size(), 4), bias);
}

TEST_F(HuggingFaceFolder, ReadsGpt2AsPublished) {
  std::vector<RawTensor> tensors = hand_tensors(gpt2(), "F32");
  for (RawTensor& tensor : tensors) tensor.name = tensor.name.substr(12);  // "transformer."
  tensors.push_back({"h.0.attn.bias", "F32", {1, 1, 1, 1}, std::string(4, '\0')});
  write_single(tensors);
  const HuggingFaceWeights weights(folder_, gpt2());
  const std::vector<float> expected = rows_of(gpt2(), {"transformer.wte.weight"});
  EXPECT_EQ(parameter(weights, "embedding.weight", expected.size(), 9), expected);
}

TEST_F(HuggingFaceFolder, ReadsShardedModel) {
  write_sharded(hand_tensors(qwen3(), "BF16"));
  const HuggingFaceWeights weights(folder_, qwen3());
  const std::string attention = "model.layers.0.self_attn.";
  const std::vector<float> expected = rows_of(
      qwen3(),
      {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"});
  EXPECT_EQ(parameter(weights, "blocks.0.qkv.weight", expected.size(), 11), expected);
  const std::vector<float> norm = rows_of(qwen3(), {attention + "k_norm.weight"});
  EXPECT_EQ(parameter(weights, "blocks.0.key_norm.weight", norm.size(), 11), norm);
}

TEST_F(HuggingFaceFolder, RejectsIndexWithFilesOutsideFolder) {
  fs::create_directory(folder_ / "sub");
  for (const char* file : {"../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".", ""}) {
    write_sharded(hand_tensors(llama, "BF16"),
                  [&](const std::string& name, const std::string& usual) {
                    return name == "lm_head.weight" ? std::string(file) : usual;
                  });
    expect_refused<IoError>(llama, "which is not a file in its folder");
  }
}

TEST_F(HuggingFaceFolder, RejectsInconsistentIndex) {
  const auto tensors = hand_tensors(llama, "BF16");
  write_sharded(tensors, [](const std::string& name, const std::string& usual) {
    return name == "lm_head.weight" ? std::string("c.safetensors") : usual;
  });
  expect_refused<IoError>(llama, "c.safetensors: cannot be read: No such file");
  write_sharded(tensors, [](const std::string& name, const std::string& usual) {
    if (name != "lm_head.weight") return usual;
    return std::string(usual == "a.safetensors" ? "b.safetensors" : "a.safetensors");
  });
  expect_refused<IoError>(llama, "lists lm_head.weight in");
  write_sharded(tensors);
  nlohmann::json index = nlohmann::json::parse(content(folder_ / "model.safetensors.index.json"));
  index["weight_map"].erase("lm_head.weight");
  support::write_bytes(folder_ / "model.safetensors.index.json", index.dump());
  expect_refused<IoError>(llama, "has lm_head.weight, which the index does not list");
  support::write_bytes(folder_ / "b.safetensors", content(folder_ / "a.safetensors"));
  expect_refused<IoError>(llama, "which another file of the folder also contains");
  support::write_bytes(folder_ / "model.safetensors.index.json", "{\"weight_map\":{\"a\":1}}");
  expect_refused<IoError>(llama, "expected a string");
}

TEST_F(HuggingFaceFolder, RejectsMissingTensors) {
  std::vector<RawTensor> tensors = hand_tensors(llama, "BF16");
  std::erase_if(tensors, [](const auto& tensor) { return tensor.name == "model.norm.weight"; });
  write_single(tensors);
  expect_refused<ConfigError>(llama, "has no tensor model.norm.weight");
  std::erase_if(tensors,
                [](const auto& tensor) { return tensor.name.starts_with("model.layers.1"); });
  write_single(tensors);
  expect_refused<ConfigError>(llama, ", model.layers.1.self_attn.q_proj.weight and 8 more");
  fs::remove(folder_ / "model.safetensors");
  expect_refused<IoError>(llama, "has neither model.safetensors nor");
}

TEST_F(HuggingFaceFolder, RejectsUnknownTensors) {
  std::vector<RawTensor> tensors = hand_tensors(llama, "BF16");
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}, "12345678"});
  write_single(tensors);
  EXPECT_NO_THROW(const HuggingFaceWeights weights(folder_, llama));
  tensors.push_back({"model.layers.0.self_attn.q_proj.bias", "BF16", {1}, "12"});
  write_single(tensors);
  expect_refused<ConfigError>(llama, "has the tensor model.layers.0.self_attn.q_proj.bias");
}

TEST_F(HuggingFaceFolder, RejectsTiedHeadThatDiffersFromEmbedding) {
  std::vector<RawTensor> tensors = hand_tensors(qwen3(), "BF16");
  tensors.push_back(tensors.front());
  tensors.back().name = "lm_head.weight";
  write_single(tensors);
  EXPECT_NO_THROW(const HuggingFaceWeights weights(folder_, qwen3()));
  tensors.back().bytes.back() = static_cast<char>(tensors.back().bytes.back() + 1);
  write_single(tensors);
  expect_refused<ConfigError>(qwen3(), "has the tensor lm_head.weight");
}

TEST_F(HuggingFaceFolder, RejectsTensorsOfOtherShapeOrFormat) {
  for (RawTensor& changed : std::vector{RawTensor{"lm_head.weight", "BF16", {6, 7}, ""},
                                        RawTensor{"lm_head.weight", "BF16", {42}, ""}}) {
    std::vector<RawTensor> tensors = hand_tensors(llama, "BF16");
    tensors.back().shape = changed.shape;
    write_single(tensors);
    expect_refused<ConfigError>(llama, "tensor lm_head.weight is [");
  }
  std::vector<RawTensor> tensors = hand_tensors(llama, "BF16");
  tensors.back().dtype = "I16";
  write_single(tensors);
  expect_refused<ConfigError>(llama, "tensor lm_head.weight is in I16");
}

TEST_F(HuggingFaceFolder, RejectsEveryRenamedOrMisshapenTensor) {
  for (const ModelDescription& model : {llama, qwen3(), gpt2()}) {
    const std::vector<RawTensor> right = hand_tensors(model, "BF16");
    for (std::size_t i = 0; i < right.size(); ++i) {
      std::vector<RawTensor> wrong = right;
      wrong[i].name += "x";
      write_single(wrong);
      EXPECT_THROW(const HuggingFaceWeights weights(folder_, model), ConfigError) << right[i].name;
      wrong = right;
      wrong[i].shape.insert(wrong[i].shape.begin(), 1);
      write_single(wrong);
      EXPECT_THROW(const HuggingFaceWeights weights(folder_, model), ConfigError) << right[i].name;
    }
  }
}

/// Writes a folder with what another one has, a piece of a parameter at a time.
void copy_weights(const fs::path& from, const fs::path& to, const ModelDescription& model,
                  const std::string& dtype, std::size_t piece, const HuggingFaceOptions& options) {
  const HuggingFaceWeights weights(from, model);
  HuggingFaceWriter writer(to, model, dtype, options);
  std::map<std::string, std::size_t> parameters;
  for (const HuggingFaceTensor& tensor : hugging_face_tensors(model)) {
    parameters[tensor.parameter] += static_cast<std::size_t>(tensor.rows * tensor.columns);
  }
  std::vector<float> values(piece);
  for (const auto& [name, count] : parameters) {
    for (std::size_t begin = 0; begin < count; begin += piece) {
      const std::span<float> some(values.data(), std::min(piece, count - begin));
      weights.read(name, static_cast<Index>(begin), some);
      writer.write(name, static_cast<Index>(begin), some);
    }
  }
  EXPECT_FALSE(fs::exists(to));
  writer.commit();
}

TEST_F(HuggingFaceFolder, WritesSameBytesAsRead) {
  const fs::path copy = folder_ / "copy";
  for (const ModelDescription& model : {llama, qwen3(), gpt2()}) {
    for (const char* dtype : {"BF16", "F32"}) {
      for (const std::size_t piece : {10u}) {
        const std::vector<RawTensor> tensors = hand_tensors(model, dtype);
        write_single(tensors);
        copy_weights(folder_, copy, model, dtype, piece, {});
        std::map<std::string, RawTensor> written;
        for (RawTensor& tensor : support::parse_raw_tensors(content(copy / "model.safetensors"))) {
          written[tensor.name] = tensor;
        }
        EXPECT_EQ(written.size(), tensors.size());
        for (const RawTensor& tensor : tensors) {
          EXPECT_EQ(written[tensor.name].shape, tensor.shape) << tensor.name;
          EXPECT_EQ(written[tensor.name].dtype, dtype) << tensor.name;
          EXPECT_EQ(written[tensor.name].bytes, tensor.bytes) << tensor.name;
        }
        EXPECT_EQ(differences(read_hugging_face_config(copy / "config.json"), model),
                  std::vector<std::string>{});
        EXPECT_EQ(nlohmann::json::parse(content(copy / "config.json")).at("torch_dtype"),
                  dtype == std::string("F32") ? "float32" : "bfloat16");
        EXPECT_EQ(entries(), 2) << "the folder, and what it was copied from";
        fs::remove_all(copy);
      }
    }
  }
}

TEST_F(HuggingFaceFolder, SplitsFilesBySize) {
  const fs::path copy = folder_ / "copy";
  for (const ModelDescription& model : {llama, qwen3(), gpt2()}) {
    const std::vector<RawTensor> tensors = hand_tensors(model, "BF16");
    SCOPED_TRACE(tensors.front().name);
    write_single(tensors);
    copy_weights(folder_, copy, model, "BF16", 1000, {.shard_bytes = 300});
    const auto index = nlohmann::json::parse(content(copy / "model.safetensors.index.json"));
    std::map<std::string, std::string> files, bytes;
    std::set<std::string> names;
    std::size_t total = 0;
    for (const auto& entry : fs::directory_iterator(copy)) {
      if (entry.path().extension() != ".safetensors") continue;
      names.insert(entry.path().filename());
      std::size_t size = 0;
      for (RawTensor& tensor : support::parse_raw_tensors(content(entry.path()))) {
        files[tensor.name] = entry.path().filename();
        size += tensor.bytes.size();
        bytes[tensor.name] = std::move(tensor.bytes);
      }
      EXPECT_LE(size, 300u) << entry.path();
      total += size;
    }
    EXPECT_EQ(index.at("weight_map").get<decltype(files)>(), files);
    EXPECT_EQ(index.at("metadata").at("total_size"), total);
    EXPECT_GT(names.size(), 1u);
    std::set<std::string> numbered;
    for (std::size_t i = 1; i <= names.size(); ++i) {
      numbered.insert(message("model-0000", i, "-of-0000", names.size(), ".safetensors"));
    }
    EXPECT_EQ(names, numbered);
    EXPECT_EQ(files.at(tensors.front().name), *names.begin());
    EXPECT_EQ(bytes.size(), tensors.size());
    for (const RawTensor& tensor : tensors)
      EXPECT_EQ(bytes[tensor.name], tensor.bytes) << tensor.name;
    // And what is read from it is what was read from the one file.
    const fs::path again = folder_ / "again";
    copy_weights(copy, again, model, "BF16", 10, {});
    for (const RawTensor& tensor :
         support::parse_raw_tensors(content(again / "model.safetensors"))) {
      EXPECT_EQ(tensor.bytes, bytes.at(tensor.name)) << tensor.name;
      bytes.erase(tensor.name);
    }
    EXPECT_TRUE(bytes.empty()) << bytes.begin()->first << " was not read";
    fs::remove_all(copy);
    fs::remove_all(again);
  }
}

TEST_F(HuggingFaceFolder, WritesAllOrNothing) {
  {
    HuggingFaceWriter writer(folder_ / "new", llama, "BF16");
    writer.write("final_norm.weight", 0, std::vector<float>(6));
    EXPECT_THROW(writer.write("blocks.9.down.weight", 0, std::vector<float>(6)), ConfigError);
    EXPECT_THROW(writer.commit(), UsageError);
  }
  EXPECT_EQ(entries(), 0);
  fs::create_directory(folder_ / "full");
  support::write_bytes(folder_ / "full" / "file", "text");
  EXPECT_THROW(HuggingFaceWriter(folder_ / "full", llama, "BF16"), IoError);
  EXPECT_THROW(HuggingFaceWriter::require_free(folder_ / "full" / "file"), IoError);
  EXPECT_EQ(content(folder_ / "full" / "file"), "text");
  EXPECT_EQ(entries(), 1);
}

TEST_F(HuggingFaceFolder, ReportsUnwritablePathsEarly) {
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THROW(HuggingFaceWriter::require_free(folder_ / "file" / "a" / "b"), IoError);
  EXPECT_THROW(HuggingFaceWriter::require_free("/proc/octavo/a"), IoError);
  const auto said_of = [](const fs::path& path) -> std::string {
    try {
      HuggingFaceWriter::require_free(path);
    } catch (const IoError& error) {
      return error.what();
    }
    return "nothing";
  };
  for (const fs::path& path : {folder_ / "file" / "a", fs::path("/proc/octavo/a")}) {
    const bool is_file_above = path != "/proc/octavo/a";
    EXPECT_EQ(said_of(path), path.string() + ": cannot be written: " +
                                 (is_file_above ? "Not a directory" : "No such file or directory") +
                                 "; check the path, its permissions and the free disk space");
  }
  EXPECT_NO_THROW(HuggingFaceWriter::require_free(folder_ / "a" / "b"));
  EXPECT_EQ(entries(), 1) << "a trial was left";
  std::filesystem::remove(folder_ / "file");
  EXPECT_NO_THROW(HuggingFaceWriter::require_free(folder_));
  if (!mount_small_disk()) GTEST_SKIP() << "this user may not mount a small disk";
  EXPECT_THROW(HuggingFaceWriter::require_free(folder_), IoError);
  EXPECT_NO_THROW(HuggingFaceWriter::require_free(folder_ / "a"));
}

TEST_F(HuggingFaceFolder, LeavesNoFilesOnFullDisk) {
  if (!mount_small_disk()) GTEST_SKIP() << "this user may not mount a small disk";
  ModelDescription large = llama;
  large.vocabulary = 100'000;
  const auto write = [&] {
    HuggingFaceWriter writer(folder_ / "new", large, "F32");
    writer.write("embedding.weight", 0, std::vector<float>(600'000, 1.0f));
  };
  EXPECT_THROW(write(), IoError);
  EXPECT_EQ(entries(), 0);
}

TEST(HalfPrecision, DecodingMatchesDefinition) {
  EXPECT_EQ(half_value(0x3c00), 1.0f);
  EXPECT_EQ(half_value(0xc000), -2.0f);
  EXPECT_EQ(half_value(0x7bff), 65504.0f);
  EXPECT_EQ(half_value(0x0400), 0x1p-14f);
  EXPECT_EQ(half_value(0x0001), 0x1p-24f);
  EXPECT_EQ(half_value(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(half_value(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(half_value(0x7e00)));
  EXPECT_TRUE(std::signbit(half_value(0x8000)));
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {  // by the format's definition
    const int exponent = static_cast<int>(bits >> 10);
    const double mantissa = bits & 0x3ff;
    const double expected =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(static_cast<double>(half_value(static_cast<std::uint16_t>(bits))), expected) << bits;
  }
}

}  // namespace hugging_face_weights_test

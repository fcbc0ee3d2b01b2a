// Adapters are those of PEFT: its folders are read and written, a model with them computes what it
// computes with PEFT, and weights into which they are merged are those of the formula.
#include <octavo/checkpoint/adapters.hpp>
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/session.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/adapters.hpp"
#include "support/golden.hpp"
#include "support/golden_agreement.hpp"
#include "support/hugging_face_folder.hpp"
#include "support/small_model.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_ranks.hpp"

namespace adapters_test {

using namespace octavo;
using support::RawTensor;

/// That of peft_small.golden.
constexpr LlamaConfig config{.name = "peft_small",
                             .layers = 2,
                             .hidden = 16,
                             .ffn = 24,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 4,
                             .vocabulary = 40,
                             .norm_epsilon = 1e-5f,
                             .rope_theta = 500.0f};

template <class Precision>
using Session = ModelSession<Llama<config, Precision, Cpu>, AdamW<>, DataParallel<>>;
using Adapted = Session<Lora<Fp32>>;

SessionOptions options_of() {
  SessionOptions options;
  options.batch = {2, 40};
  options.model.lora = {.rank = 4, .alpha = 6};
  set_lora_targets(options.model.lora, {"q_proj", "v_proj", "o_proj", "up_proj", "down_proj"});
  return options;
}

std::string tensor_name(const support::AdapterPlace& place, const char* matrix) {
  return "base_model.model." + place.module + matrix + ".weight";
}

class Adapters : public support::TemporaryFolder {
 protected:
  void SetUp() override {
    support::TemporaryFolder::SetUp();
    there_ = folder_ / "there";
    golden_ = reference::read_golden(reference::golden_path("peft_small.golden"));
    settings_ = nlohmann::json::parse(content(reference::golden_path("peft/adapter_config.json")));
    for (const support::AdapterPlace& place : support::adapter_places(config, lora())) {
      const auto add = [&](const char* matrix, Index rows, Index columns) {
        const std::string name = tensor_name(place, matrix);
        const std::vector<double>& exact = golden_.weights.at(name);
        const std::vector<float> values(exact.begin(), exact.end());
        tensors_.push_back({name, "F32", {rows, columns}, support::elements("F32", values)});
      };
      add(".lora_A", lora().rank, place.in);
      add(".lora_B", place.out, lora().rank);
    }
  }

  static LoraOptions lora() { return options_of().model.lora; }

  /// Writes the folder "there" as PEFT has.
  void write_folder() {
    std::filesystem::create_directories(there_);
    support::write_bytes(there_ / "adapter_config.json", settings_.dump());
    support::write_bytes(there_ / "adapter_model.safetensors",
                         support::safetensors_bytes(tensors_));
  }

  /// Sets the model's weights, without the adapters.
  template <class AnySession>
  void set_base(AnySession& session) const {
    for (const WeightInfo& weight : session.weights().list()) {
      if (weight.is_adapter) continue;
      std::vector<float> values;
      for (const support::Slice& slice : support::slices(weight.name, config)) {
        const std::vector<double>& exact = golden_.weights.at(slice.name);
        values.insert(values.end(), exact.begin(), exact.end());
      }
      session.weights().set(weight.name, values);
    }
  }

  void expect_refused(const std::string& why) {
    write_folder();
    Context<Cpu> context{1};
    Adapted session(options_of(), context);
    const std::vector<std::byte> before = support::weights(session);
    try {
      load_adapters(session, description_of(config), there_);
      ADD_FAILURE() << "taken, though: " << why;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
    EXPECT_TRUE(support::weights(session) == before) << why;
  }

  std::filesystem::path there_ = {};
  reference::Golden golden_ = {};
  nlohmann::json settings_ = {};
  std::vector<RawTensor> tensors_ = {};
};

reference::Weights adapters_of(Adapted& session) {
  return support::adapters_by_module(
      support::values_by_parameter(session, [](auto& parameter) { return parameter.weight; }),
      config, options_of().model.lora);
}

TEST_F(Adapters, LogitsAndGradientsMatchPeft) {
  write_folder();
  Context<Cpu> context{1};
  Adapted session(options_of(), context);
  support::expect_same_shape(support::reference_config(config), golden_.config);
  set_base(session);
  load_adapters(session, description_of(config), there_);
  const std::vector<std::int32_t> tokens(golden_.tokens.begin(), golden_.tokens.end());
  const std::vector<std::int32_t> targets(golden_.targets.begin(), golden_.targets.end());
  for (const std::size_t count : {std::size_t{1}, std::size_t{17}, std::size_t{40}}) {
    std::vector<float> logits(config.vocabulary);
    session.next_token_logits(std::span(tokens).first(count), logits);
    const auto* row = golden_.logits.data() + (count - 1) * logits.size();
    EXPECT_LT(support::relative_error({logits.begin(), logits.end()}, {row, row + logits.size()}),
              1e-5);
  }
  EXPECT_NEAR(session.step({tokens, targets}, 0.0).loss, golden_.loss, 1e-5);
  const reference::Weights gradients = support::adapters_by_module(
      support::values_by_parameter(session, [](auto& parameter) { return parameter.gradient; }),
      config, lora());
  ASSERT_EQ(gradients.size(), golden_.gradients.size());
  for (const support::AdapterPlace& place : support::adapter_places(config, lora())) {
    for (const char* matrix : {".lora_A", ".lora_B"}) {
      EXPECT_LT(support::relative_error(gradients.at(place.module + matrix),
                                        golden_.gradients.at(tensor_name(place, matrix))),
                2e-5)
          << place.module << matrix;
    }
  }
}

TEST_F(Adapters, SavedFilesMatchPeft) {
  write_folder();
  Context<Cpu> context{1};
  Adapted session(options_of(), context);
  load_adapters(session, description_of(config), there_);
  const std::filesystem::path here = folder_ / "here";
  save_adapters(session, description_of(config), here, "some/model");
  EXPECT_TRUE(support::tensor_bytes(content(here / "adapter_model.safetensors")) ==
              support::tensor_bytes(content(there_ / "adapter_model.safetensors")));
  const auto saved = nlohmann::json::parse(content(here / "adapter_config.json"));
  for (const char* key : {"peft_type", "r", "lora_alpha", "bias", "use_dora", "use_rslora",
                          "fan_in_fan_out", "task_type"}) {
    EXPECT_EQ(saved.at(key), settings_.at(key)) << key;
  }
  auto targets = saved.at("target_modules").get<std::vector<std::string>>();
  std::ranges::sort(targets);
  EXPECT_EQ(targets, settings_.at("target_modules").get<std::vector<std::string>>());
  EXPECT_EQ(saved.at("base_model_name_or_path"), "some/model");
  EXPECT_THROW(save_adapters(session, description_of(config), here), IoError);
  EXPECT_EQ(entries(), 2);  // nothing is left beside them
}

TEST_F(Adapters, RanksLoadAndSaveOneFolder) {
  write_folder();
  const std::filesystem::path here = folder_ / "here";
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    SessionOptions options = options_of();
    options.sharding.zero = Zero::weights;
    Context<Cpu> context{1};
    Session<Lora<Bf16>> session(options, context, communicator);
    load_adapters(session, description_of(config), there_);
    save_adapters(session, description_of(config), here, "", communicator.rank() == 0);
  });
  auto expected = support::tensor_bytes(content(there_ / "adapter_model.safetensors"));
  const auto written = support::parse_raw_tensors(content(here / "adapter_model.safetensors"));
  EXPECT_EQ(written.size(), expected.size());
  for (const RawTensor& tensor : written) {
    EXPECT_EQ(tensor.dtype, "BF16");
    const std::string& exact = expected.at(tensor.name);
    std::vector<float> values(exact.size() / sizeof(float));
    std::memcpy(values.data(), exact.data(), exact.size());
    for (float& value : values) value = static_cast<float>(Bf16(value));
    EXPECT_TRUE(tensor.bytes == support::elements("BF16", values)) << tensor.name;
  }
}

TEST_F(Adapters, AreMergedIntoExportedWeights) {
  write_folder();
  Context<Cpu> context{1};
  Adapted session(options_of(), context);
  set_base(session);
  load_adapters(session, description_of(config), there_);
  const std::filesystem::path here = folder_ / "here";
  save_hugging_face(session, description_of(config), here);
  Session<Fp32> plain(options_of(), context);
  load_hugging_face(plain, description_of(config), here);
  const reference::Weights expected =
      support::merged(support::base_weights(session, config), adapters_of(session), config, lora());
  const reference::Weights found = support::base_weights(plain, config);
  for (const auto& [name, values] : expected) {
    EXPECT_LT(support::relative_error(found.at(name), values), 1e-6) << name;
  }
  // A folder's weights are those of the model itself: adapters stay beside them.
  Adapted other(options_of(), context);
  load_hugging_face(other, description_of(config), here);
  EXPECT_TRUE(support::base_weights(other, config) == found);
  EXPECT_FALSE(adapters_of(other) == adapters_of(session));
}

TEST_F(Adapters, RejectsUnsupportedSettingsByName) {
  const std::map<std::string, nlohmann::json> settings{{"peft_type", "LOHA"},
                                                       {"bias", "all"},
                                                       {"use_dora", true},
                                                       {"use_rslora", true},
                                                       {"fan_in_fan_out", true},
                                                       {"lora_bias", true},
                                                       {"rank_pattern", {{"q_proj", 8}}},
                                                       {"alpha_pattern", {{"q_proj", 8}}},
                                                       {"modules_to_save", {"lm_head"}},
                                                       {"layers_to_transform", {0}},
                                                       {"exclude_modules", "v_proj"},
                                                       {"trainable_token_indices", {1}},
                                                       {"init_lora_weights", "pissa"},
                                                       {"a_later_kind", 3},
                                                       {"target_modules", {"q_proj", "lm_head"}},
                                                       {"r", 0},
                                                       {"lora_alpha", -1}};
  const nlohmann::json served = settings_;
  for (const auto& [key, value] : settings) {
    settings_ = served;
    settings_[key] = value;
    expect_refused(key == "r"            ? "LoRA rank must be from 1 to 4096, but is 0"
                   : key == "lora_alpha" ? "alpha must be positive, but is -1"
                   : key == "target_modules"
                       ? "adapter_config.json: 'lm_head' is not a linear layer"
                       : key + " is ");
  }
  for (const char* key : {"peft_type", "r", "lora_alpha", "target_modules"}) {
    settings_ = served;
    settings_.erase(key);
    expect_refused(std::string(key) + " is missing");
  }
  settings_ = served;
  settings_["lora_alpha"] = 12;
  expect_refused("its adapters have rank 4, alpha 12");
  settings_ = served;
  settings_["init_lora_weights"] = "gaussian";
  settings_["lora_dropout"] = 0.05;
  write_folder();
  EXPECT_EQ(read_peft_config(there_ / "adapter_config.json").lora, lora());
}

TEST_F(Adapters, RejectsMismatchedTensorsByName) {
  const std::vector<RawTensor> right = tensors_;
  const auto expect = [&](const std::string& why, const std::function<void()>& change) {
    tensors_ = right;
    change();
    expect_refused(why);
  };
  const std::string name = right.front().name;
  expect("has no tensor " + name, [&] { tensors_.erase(tensors_.begin()); });
  expect("has the tensor " + name + ".more", [&] {
    tensors_.push_back(right.front());
    tensors_.back().name += ".more";
  });
  expect(name + " is [16, 4]", [&] { tensors_.front().shape = {16, 4}; });
  expect("is in I32", [&] { tensors_.front().dtype = "I32"; });
  tensors_ = right;
  settings_["r"] = 2;
  expect_refused("but an adapter of rank 2");
}

TEST_F(Adapters, RejectsSessionsWithoutAdapters) {
  write_folder();
  Context<Cpu> context{1};
  Session<Fp32> session(options_of(), context);
  EXPECT_THROW(load_adapters(session, description_of(config), there_), UsageError);
  EXPECT_THROW(save_adapters(session, description_of(config), folder_ / "here"), UsageError);
}

}  // namespace adapters_test

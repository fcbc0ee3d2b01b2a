// Weights of a Hugging Face folder are those of the session, on however many ranks, and come back
// with the bytes that they had.
#include <octavo/checkpoint/checkpoint_export.hpp>
#include <octavo/checkpoint/checkpoint_weights.hpp>
#include <octavo/checkpoint/checkpoints.hpp>
#include <octavo/checkpoint/hugging_face.hpp>
#include <octavo/parallel/data_parallel.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "support/hugging_face_folder.hpp"
#include "support/small_model.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_ranks.hpp"

namespace hugging_face_test {

using namespace octavo;
using support::RawTensor;

/// Its table has more elements than are on their way at once.
constexpr LlamaConfig config{.name = "wide",
                             .layers = 1,
                             .hidden = 128,
                             .ffn = 128,
                             .heads = 2,
                             .kv_heads = 1,
                             .head_dim = 64,
                             .vocabulary = 16500,
                             .rope_theta = 10000.0f,
                             .tied_embeddings = true};
static_assert(config.vocabulary * config.hidden > octavo::detail::weights_at_once);

using Model = Llama<config, Bf16, Cpu>;
using Session = ModelSession<Model, AdamW<>, DataParallel<>>;

SessionOptions options_of(Zero zero = Zero::optimizer) {
  SessionOptions options;
  options.batch = {1, 16};
  options.sharding.zero = zero;
  return options;
}

/// A value of a tensor's element that nearly no other has, finite in FP32 and in BF16.
float value_of(const std::string& name, Index i) {
  std::uint64_t hash = std::hash<std::string>{}(name) + static_cast<std::uint64_t>(i);
  hash = (hash ^ hash >> 31) * 0x9E3779B97F4A7C15u;
  return static_cast<float>(static_cast<double>(hash >> 40) * 0x1p-24 - 0.5) * 0.125f;
}

/// Numbers of BF16 for a file in it, others for one in FP32.
std::vector<float> values_of(const std::string& name, Index count, const std::string& dtype) {
  std::vector<float> values;
  for (Index i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(value_of(name, i));
    values.push_back(std::bit_cast<float>(dtype == "F32" ? bits : bits & 0xffff0000u));
  }
  return values;
}

class HuggingFace : public support::TemporaryFolder {
 protected:
  /// Writes the folder "there".
  std::vector<RawTensor> write_folder(const std::string& dtype) {
    Context<Cpu> context{1};
    Session session(options_of(), context);
    auto tensors = support::hugging_face_tensors(
        session.model(), dtype,
        [&](const std::string& name, Index count) { return values_of(name, count, dtype); });
    support::write_hugging_face_folder(there_, description_of(config), tensors);
    return tensors;
  }
  template <class E>
  void expect_refused(std::string_view why) {
    Context<Cpu> context{1};
    Session session(options_of(), context);
    const std::vector<std::byte> before = support::weights(session);
    try {
      load_hugging_face(session, description_of(config), there_);
      ADD_FAILURE() << "taken, though: " << why;
    } catch (const E& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
    EXPECT_TRUE(support::weights(session) == before);
  }

  std::filesystem::path there_ = {};
  std::filesystem::path here_ = {};

  void SetUp() override {
    support::TemporaryFolder::SetUp();
    there_ = folder_ / "there";
    here_ = folder_ / "here";
  }
};

double loss(TrainingSession& session) {
  const support::TokenBatch batch = support::make_batch(16, config.vocabulary, 3);
  return session.evaluate({batch.tokens, batch.targets}).mean();
}

TEST_F(HuggingFace, LoadsWeightsAndMasters) {
  write_folder("F32");
  Context<Cpu> context{2};
  Session session(options_of(), context);
  load_hugging_face(session, description_of(config), there_);
  const auto check = [&](const std::string& parameter, const std::vector<std::string>& tensors) {
    const auto weight = support::weight(session, parameter);
    std::vector<float> expected;
    for (const std::string& tensor : tensors) {
      for (const support::Slice& slice : support::slices(parameter, config)) {
        if (slice.name != tensor) continue;
        const auto some = values_of(tensor, slice.rows * weight.extent(1), "F32");
        expected.insert(expected.end(), some.begin(), some.end());
      }
    }
    expected.resize(static_cast<std::size_t>(weight.size()));  // rows that pad it are 0
    const SavedState state = save_state_sync(session.state().entries());
    std::vector<float> master(expected.size());
    const SavedEntry& saved = state.at("optimizer.master." + parameter);
    ASSERT_EQ(saved.bytes.size(), master.size() * sizeof(float));
    std::memcpy(master.data(), saved.bytes.data(), saved.bytes.size());
    EXPECT_EQ(master, expected) << parameter;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(weight.data()[i].bits, Bf16(expected[i]).bits) << parameter << i;
    }
  };
  const std::string attention = "model.layers.0.self_attn.";
  check("embedding.weight", {"model.embed_tokens.weight"});
  check("blocks.0.qkv.weight",
        {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"});
  check("blocks.0.gate_up.weight",
        {"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"});
  check("final_norm.weight", {"model.norm.weight"});
}

TEST_F(HuggingFace, WeightsRoundTripBitwise) {
  const std::vector<RawTensor> tensors = write_folder("BF16");
  Context<Cpu> context{1};
  Session session(options_of(), context);
  load_hugging_face(session, description_of(config), there_);
  save_hugging_face(session, description_of(config), here_);
  const auto written = support::tensor_bytes(content(here_ / "model.safetensors"));
  EXPECT_TRUE(written == support::tensor_bytes(content(there_ / "model.safetensors")));
  EXPECT_EQ(written.size(), tensors.size());
  save_hugging_face(session, description_of(config), folder_ / "shards", {.shard_bytes = 1 << 20});
  EXPECT_TRUE(std::filesystem::exists(folder_ / "shards" / "model.safetensors.index.json"));
  Session other(options_of(), context);
  load_hugging_face(other, description_of(config), folder_ / "shards");
  EXPECT_TRUE(support::weights(other) == support::weights(session));
}

class HuggingFaceOfRanks : public HuggingFace, public testing::WithParamInterface<Zero> {};
INSTANTIATE_TEST_SUITE_P(Stages, HuggingFaceOfRanks,
                         testing::Values(Zero::optimizer, Zero::weights));

TEST_P(HuggingFaceOfRanks, RanksLoadTheirShardsAndOneRankSaves) {
  write_folder("BF16");
  const auto expected = support::tensor_bytes(content(there_ / "model.safetensors"));
  double alone = 0;
  {
    Context<Cpu> context{1};
    Session session(options_of(), context);
    load_hugging_face(session, description_of(config), there_);
    alone = loss(session);
  }
  std::vector<std::vector<double>> losses(2);
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    const bool writes = communicator.rank() == 1;
    Context<Cpu> context{1};
    for (const bool saves : {true, false}) {
      Session session(options_of(GetParam()), context, communicator);
      load_hugging_face(session, description_of(config), there_);
      EXPECT_EQ(loss(session), alone);
      std::vector<double> of_run;
      for (unsigned step = 0; step < 3; ++step) {
        // Nothing may change by it, whatever came before. The first step moves no weight from its
        // master, the others do.
        if (saves)
          save_hugging_face(session, description_of(config), here_ / std::to_string(step), {},
                            writes);
        const support::TokenBatch batch = support::make_batch(16, config.vocabulary, step);
        of_run.push_back(session.step({batch.tokens, batch.targets}, step == 0 ? 0 : 1e-2).loss);
        if (step == 0) of_run.push_back(loss(session));
      }
      if (!writes) losses[saves ? 0 : 1] = of_run;
      // What one rank cannot write is an error of all of them.
      if (saves) {
        EXPECT_THROW(save_hugging_face(session, description_of(config), here_ / "0", {}, writes),
                     Error);
      }
    }
  });
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_TRUE(support::tensor_bytes(content(here_ / "0" / "model.safetensors")) == expected);
  EXPECT_TRUE(support::tensor_bytes(content(here_ / "1" / "model.safetensors")) == expected);
  EXPECT_FALSE(support::tensor_bytes(content(here_ / "2" / "model.safetensors")) == expected);
}

TEST_P(HuggingFaceOfRanks, CheckpointExportMatchesSessionExport) {
  const auto path = folder_ / "checkpoints" / "step-00000002";
  support::on_ranks(2, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Session session(options_of(GetParam()), context, communicator);
    for (unsigned step = 0; step < 2; ++step) {
      const support::TokenBatch batch = support::make_batch(16, config.vocabulary, step);
      (void)session.step({batch.tokens, batch.targets}, 1e-2);
    }
    Checkpoints checkpoints({.folder = path.parent_path()}, session, [](const auto&) {});
    checkpoints.save(2);
    checkpoints.finish();
    save_hugging_face(session, description_of(config), here_, {}, communicator.rank() == 0);
  });
  export_checkpoint(path, description_of(config), folder_ / "exported");
  for (const char* name : {"model.safetensors", "config.json"}) {
    EXPECT_TRUE(content(folder_ / "exported" / name) == content(here_ / name)) << name;
  }
  const auto refused = [&](const ModelDescription& model) -> std::string {
    try {
      export_checkpoint(path, model, folder_ / "refused");
    } catch (const Error& error) {
      EXPECT_FALSE(std::filesystem::exists(folder_ / "refused"));
      return error.what();
    }
    return "it was exported";
  };
  ModelDescription other = description_of(config);
  other.vocabulary = 17000;
  EXPECT_NE(refused(other).find("embedding.weight has "), std::string::npos) << refused(other);
  other = description_of(config);
  other.tied_embeddings = false;
  EXPECT_NE(refused(other).find("has no head.weight"), std::string::npos) << refused(other);
  const auto file = path / "rank-00001.safetensors";
  std::string damaged = content(file);
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  std::ofstream(file, std::ios::binary) << damaged;
  EXPECT_NE(refused(description_of(config)).find("rank-00001"), std::string::npos);
}

// Weights of more than one piece are asked for by several threads.
TEST_F(HuggingFace, LoadsCheckpointWeightsWithSeveralThreads) {
  Context<Cpu> context{4};
  Session session(options_of(), context);
  Checkpoints checkpoints({.folder = folder_}, session, [](const CheckpointRecord&) {});
  checkpoints.save(0);
  checkpoints.finish();
  SessionOptions options = options_of();
  options.seed += 1;
  Session other(options, context);
  EXPECT_FALSE(support::weights(other) == support::weights(session));
  for (int i = 0; i < 5; ++i) {
    (void)load_checkpoint_weights(folder_ / "step-00000000", other);
    ASSERT_TRUE(support::weights(other) == support::weights(session)) << i;
  }
}

TEST_F(HuggingFace, RejectsDifferentModelListingDifferences) {
  const std::vector<RawTensor> tensors = write_folder("BF16");
  ModelDescription other = description_of(config);
  other.ffn = 256;
  other.rope_theta = 500000.0f;
  support::write_hugging_face_folder(there_, other, tensors);
  expect_refused<ConfigError>(
      "is of a different model than wide: ffn is 256, not 128; rope_theta is 500000, not 10000");
}

TEST_F(HuggingFace, IncompleteFolderChangesNothing) {
  std::vector<RawTensor> tensors = write_folder("BF16");
  std::filesystem::resize_file(there_ / "model.safetensors",
                               std::filesystem::file_size(there_ / "model.safetensors") - 1);
  expect_refused<IoError>("is not a complete safetensors file");
  tensors.pop_back();
  support::write_hugging_face_folder(there_, description_of(config), tensors);
  expect_refused<ConfigError>("has no tensor");
  std::filesystem::remove(there_ / "config.json");
  expect_refused<IoError>("config.json: cannot be read");
}

TEST_F(HuggingFace, RejectsDescriptionOfOtherModelThanSession) {
  Context<Cpu> context{1};
  Session session(options_of(), context);
  ModelDescription smaller = description_of(config);
  smaller.vocabulary = 8499;
  ModelDescription longer = description_of(config);
  longer.layers = 2;
  ModelDescription untied = description_of(config);
  untied.tied_embeddings = false;
  for (const ModelDescription& other : {smaller, longer, untied}) {
    EXPECT_THROW(load_hugging_face(session, other, there_), UsageError);
    EXPECT_THROW(save_hugging_face(session, other, here_), UsageError);
  }
  EXPECT_EQ(entries(), 0);
}

// Its last piece is refused: with one thread the first has been copied by then if nobody looked
// ahead.
TEST_F(HuggingFace, RejectedWeightChangesNothing) {
  Context<Cpu> context{1};
  Session session(options_of(), context);
  const std::vector<std::byte> before = support::weights(session);
  std::vector<float> table(static_cast<std::size_t>(config.vocabulary * config.hidden), 0.5f);
  table.back() = std::numeric_limits<float>::infinity();
  EXPECT_THROW(session.weights().set("embedding.weight", table), ConfigError);
  EXPECT_TRUE(support::weights(session) == before);
}

TEST_F(HuggingFace, ReportsNonFiniteWeight) {
  std::vector<RawTensor> tensors = write_folder("BF16");
  tensors.front().bytes.replace(2 * 7, 2, "\x80\x7f");  // Inf
  support::write_hugging_face_folder(there_, description_of(config), tensors);
  expect_refused<ConfigError>("embedding.weight: element 7 must be finite");
}

}  // namespace hugging_face_test

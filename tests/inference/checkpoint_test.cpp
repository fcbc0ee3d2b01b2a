// Weights of a checkpoint for an inference: whole, however many ranks wrote them, or not at all.
#include <gtest/gtest.h>
#include <octavo/checkpoint/checkpoints.hpp>
#include <octavo/inference/checkpoint.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "support/state_stub.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_ranks.hpp"

namespace inference_checkpoint_test {

namespace fs = std::filesystem;
using namespace octavo;
using support::StateStub;

/// An inference that is nothing but the weight of a StateStub, which it asks for in pieces.
class OneWeight final : public Inferring {
 public:
  explicit OneWeight(const std::string& model, const std::string& weight = "weight")
      : weight_(weight) {
    facts_.name = model;
  }

  const ModelFacts& facts() const override { return facts_; }
  Index length() const override { return 0; }
  Index longest() const override { return 1; }
  void truncate(Index) override {}
  void append(std::span<const std::int32_t>, std::span<float>) override {}
  std::vector<WeightInfo> weights() const override {
    return {{weight_, "fp32", 32, StateStub::elements / 32}};
  }
  void load_sync(const ModelWeights& source) override {
    values.resize(StateStub::elements);
    const auto all = std::span(values);
    for (std::size_t begin = 0; begin < all.size(); begin += 400) {
      source(weights().front(), static_cast<Index>(begin),
             all.subspan(begin, std::min<std::size_t>(400, all.size() - begin)));
    }
  }
  void initialize_sync(std::uint64_t) override {}
  std::string precision() const override { return "none"; }
  const MemoryPlan& memory() const override { return memory_; }
  std::size_t bytes_of_step(Index) const override { return 0; }
  const ReplayCounts& replays() const override { return replays_; }

  std::vector<float> values;  ///< none until it is loaded

 private:
  std::string weight_;
  ModelFacts facts_;
  MemoryPlan memory_;
  ReplayCounts replays_;
};

template <class E>
void expect_refused(const fs::path& path, const std::string& why, OneWeight&& session) {
  try {
    load_checkpoint_weights(path, session);
    ADD_FAILURE() << "it was loaded: " << why;
  } catch (const E& error) {
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
  }
  EXPECT_TRUE(session.values.empty()) << "something was set";
}

class InferenceCheckpoint : public support::TemporaryFolder {
 protected:
  /// A checkpoint that so many ranks have written.
  fs::path saved(int ranks) {
    const fs::path folder = folder_ / std::to_string(ranks);
    support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
      StateStub session(&communicator);
      Checkpoints checkpoints({.folder = folder}, session, [](const CheckpointRecord&) {});
      session.set(3);
      checkpoints.save(3);
      checkpoints.finish();
    });
    return folder / "step-00000003";
  }
};

TEST_F(InferenceCheckpoint, WeightsMatchRun) {
  StateStub state;
  state.set(3);
  std::vector<float> expected(StateStub::elements);
  state.state().entries().front().read_sync(reinterpret_cast<std::byte*>(expected.data()));
  for (const int ranks : {1, 2}) {
    OneWeight session("stub");
    load_checkpoint_weights(saved(ranks), session);
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(session.values)),
                                   std::as_bytes(std::span(expected))))
        << ranks;
  }
}

TEST_F(InferenceCheckpoint, RejectsUnsuitableCheckpoints) {
  const fs::path path = saved(2);
  expect_refused<IoError>(folder_ / "none", "is not a complete checkpoint", OneWeight("stub"));
  expect_refused<ConfigError>(path, "its model is stub, but that of the session is other",
                              OneWeight("other"));
  expect_refused<ConfigError>(path, "the checkpoint has no bias", OneWeight("stub", "bias"));
  const fs::path file = path / "rank-00001.safetensors";
  std::string damaged = content(file);
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  std::ofstream(file, std::ios::binary) << damaged;
  expect_refused<IoError>(path, "rank-00001.safetensors", OneWeight("stub"));
}

}  // namespace inference_checkpoint_test

// The weights of a checkpoint serve an evaluation: in the run's recipe to the bit, and in others.
#include <octavo/checkpoint/checkpoint_weights.hpp>
#include <octavo/checkpoint/checkpoints.hpp>
#include <octavo/parallel/data_parallel.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/small_model.hpp"
#include "support/state_stub.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_ranks.hpp"

namespace checkpoint_weights_test {

using namespace octavo;
using support::TokenBatch;

template <class Precision>
using Session = ModelSession<support::SmallModel<Precision>, AdamW<>, DataParallel<>>;

SessionOptions options_of(Zero zero, std::uint64_t seed) {
  SessionOptions options = support::small_options();
  options.seed = seed;
  options.sharding.zero = zero;
  return options;
}

/// All weights, as numbers.
std::vector<float> weights_of(TrainingSession& session) {
  std::vector<float> all;
  session.weights().read_sync([&](const WeightInfo&, Index, std::span<const float> values) {
    all.insert(all.end(), values.begin(), values.end());
  });
  return all;
}

class CheckpointWeights : public support::TemporaryFolder {
 protected:
  /// Two ranks take two steps and save.
  void train(Zero zero) {
    support::on_ranks(2, [&](support::ThreadComm& communicator) {
      const SessionOptions options = options_of(zero, 7);
      Context<Cpu> context(1);
      Session<Fp8Recipe<Delayed>> session(options, context, communicator);
      for (unsigned step = 0; step < 2; ++step) {
        const TokenBatch batch =
            support::step_batch(options, 2 * step + static_cast<unsigned>(communicator.rank()));
        EXPECT_FALSE(session.step({batch.tokens, batch.targets}, 1e-2).skipped);
      }
      Checkpoints checkpoints({.folder = folder_}, session,
                              [](const CheckpointRecord& record) { EXPECT_EQ(record.error, ""); });
      checkpoints.save(2, {});
      checkpoints.finish();
      const double loss = session.evaluate({batch_.tokens, batch_.targets}).sum;
      const std::vector<float> weights = weights_of(session);
      if (communicator.rank() != 0) return;
      loss_ = loss;
      weights_ = weights;
    });
  }

  const TokenBatch batch_ = support::step_batch(support::small_options(), 99);
  double loss_ = 0;
  std::vector<float> weights_;
};

TEST_F(CheckpointWeights, ReproduceLossWithSameRecipe) {
  for (const Zero zero : {Zero::optimizer, Zero::weights}) {
    std::filesystem::remove_all(folder_ / "step-00000002");
    train(zero);
    Context<Cpu> context(1);
    Session<Fp8Recipe<Delayed>> session(options_of(Zero::optimizer, 8), context);
    EXPECT_NE(session.evaluate({batch_.tokens, batch_.targets}).sum, loss_);
    EXPECT_EQ(load_checkpoint_weights(folder_ / "step-00000002", session).step, 2);
    EXPECT_FALSE(session.must_calibrate());
    EXPECT_TRUE(weights_of(session) == weights_);
    EXPECT_EQ(session.evaluate({batch_.tokens, batch_.targets}).sum, loss_);
  }
}

TEST_F(CheckpointWeights, AreConvertedFromMastersForOtherRecipe) {
  train(Zero::optimizer);
  Context<Cpu> context(1);
  Session<Bf16> narrow(options_of(Zero::optimizer, 8), context);
  (void)load_checkpoint_weights(folder_ / "step-00000002", narrow);
  EXPECT_TRUE(weights_of(narrow) == weights_);
  Session<Fp32> wide(options_of(Zero::optimizer, 8), context);
  (void)load_checkpoint_weights(folder_ / "step-00000002", wide);
  const std::vector<float> masters = weights_of(wide);
  ASSERT_EQ(masters.size(), weights_.size());
  std::size_t finer = 0;
  for (std::size_t i = 0; i < masters.size(); ++i) {
    ASSERT_EQ(static_cast<float>(Bf16(masters[i])), weights_[i]) << i;
    finer += masters[i] != weights_[i];
  }
  EXPECT_GT(finer, masters.size() / 2);
  Session<Fp8Recipe<DelayedScaling<4>>> other(options_of(Zero::optimizer, 8), context);
  (void)load_checkpoint_weights(folder_ / "step-00000002", other);
  EXPECT_TRUE(other.must_calibrate()) << "histories of another length";
}

TEST_F(CheckpointWeights, ChangeNothingIfDamagedOrMissing) {
  train(Zero::optimizer);
  const std::filesystem::path path = folder_ / "step-00000002";
  Context<Cpu> context(1);
  Session<Bf16> session(options_of(Zero::optimizer, 8), context);
  const std::vector<float> before = weights_of(session);
  EXPECT_THROW((void)load_checkpoint_weights(folder_ / "none", session), IoError);
  const std::filesystem::path file = path / "rank-00001.safetensors";
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(static_cast<std::streamoff>(std::filesystem::file_size(file)) - 1);
  const auto last = static_cast<char>(bytes.peek() ^ 1);
  bytes.seekp(static_cast<std::streamoff>(std::filesystem::file_size(file)) - 1);
  bytes.put(last);
  bytes.close();
  try {
    (void)load_checkpoint_weights(path, session);
    ADD_FAILURE() << "a bit is another";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("rank-00001.safetensors"), std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(weights_of(session) == before);
}

TEST_F(CheckpointWeights, AreRejectedForOtherModel) {
  support::StateStub session;
  Checkpoints checkpoints({.folder = folder_}, session, [](const CheckpointRecord&) {});
  checkpoints.save(1);
  checkpoints.finish();
  session.set_model("other");
  try {
    (void)load_checkpoint_weights(folder_ / "step-00000001", session);
    ADD_FAILURE() << "they were loaded";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("its model is stub, but that of the session is other"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace checkpoint_weights_test

// Checkpoints of ranks that share a model's layers.
#include <octavo/checkpoint/checkpoint_export.hpp>
#include <octavo/checkpoint/checkpoint_weights.hpp>
#include <octavo/checkpoint/checkpoints.hpp>
#include <octavo/checkpoint/hugging_face.hpp>
#include <octavo/optim/muon.hpp>
#include <octavo/session/state.hpp>

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include "parallel/tensor_parallel.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_ranks.hpp"

namespace tensor_parallel_test {

class TensorParallelCheckpoint : public support::TemporaryFolder {
 protected:
  /// The folder that ranks save is that of their checkpoint, after a step and again after others.
  template <class Precision, class Ranks>
  void save_as_exported(const std::filesystem::path& folder, const Setting& setting) {
    const bool is_fp32 = std::is_same_v<Precision, Fp32>;
    const ModelDescription model = is_fp32 ? description_of(config) : description_of(tied);
    support::on_ranks(2 * setting.groups, [&](support::ThreadComm& communicator) {
      const int rank = communicator.rank();
      Context<Cpu> context{1};
      ModelSession<Model<Precision, 2>, AdamW<>, Ranks> session(options_of(setting), context,
                                                                communicator);
      Checkpoints checkpoints({.folder = folder}, session, [](const CheckpointRecord&) {});
      for (unsigned step = 1; step < 4; ++step) {
        const TokenBatch batch = part_of_step(setting, rank / 2, step);
        (void)session.step({batch.tokens, batch.targets}, 1e-2);
        if (step == 2) continue;
        save_hugging_face(session, model, folder / ("saved-" + std::to_string(step)), {},
                          rank == 1);
        checkpoints.save(step);
      }
      checkpoints.finish();
    });
    for (const std::string& step : {std::string("1"), std::string("3")}) {
      const auto exported = folder / ("exported-" + step);
      export_checkpoint(folder / ("step-0000000" + step), model, exported);
      for (const char* name : {"model.safetensors", "config.json"}) {
        EXPECT_TRUE(content(folder / ("saved-" + step) / name) == content(exported / name))
            << name << " after step " << step << ", ZeRO-" << static_cast<int>(setting.zero);
      }
    }
  }
};

TEST_F(TensorParallelCheckpoint, ExportsUnshardedWeights) {
  const ModelDescription model = description_of(config);
  support::on_ranks(1, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Session<Fp32, 1> session(options_of({}), context, communicator);
    save_hugging_face(session, model, folder_ / "whole");
  });
  for (const Setting& setting :
       {Setting{}, Setting{.groups = 2, .zero = Zero::weights, .micro_batches = 2}}) {
    const auto folder = folder_ / std::to_string(setting.groups);
    support::on_ranks(2 * setting.groups, [&](support::ThreadComm& communicator) {
      Context<Cpu> context{1};
      Session<Fp32, 2> session(options_of(setting), context, communicator);
      Checkpoints checkpoints({.folder = folder}, session, [](const CheckpointRecord&) {});
      checkpoints.save(0);
      checkpoints.finish();
    });
    export_checkpoint(folder / "step-00000000", model, folder / "exported");
    for (const char* name : {"model.safetensors", "config.json"}) {
      EXPECT_TRUE(content(folder / "exported" / name) == content(folder_ / "whole" / name));
    }
    support::on_ranks(1, [&](support::ThreadComm& communicator) {
      Context<Cpu> context{1};
      SessionOptions options = options_of({});
      Session<Fp32, 1> of_run(options, context, communicator);
      options.seed += 1;
      Session<Fp32, 1> other(options, context, communicator);
      EXPECT_FALSE(support::weights(other) == support::weights(of_run));
      (void)load_checkpoint_weights(folder / "step-00000000", other);
      EXPECT_TRUE(support::weights(other) == support::weights(of_run));
    });
  }
}

TEST_F(TensorParallelCheckpoint, CheckpointExportMatchesSessionExport) {
  for (const Zero zero : {Zero::optimizer, Zero::weights}) {
    const auto folder = folder_ / std::to_string(static_cast<int>(zero));
    const Setting setting{.groups = 2, .zero = zero, .micro_batches = 2};
    save_as_exported<Fp32, DataParallel<>>(folder / "fp32", setting);
    // Gradients in E4M3 leave memory for a part of what is gathered at a time.
    using InFp8 = DataParallel<ReduceIn<E4M3>, GatherIn<E4M3>>;
    save_as_exported<Fp8Recipe<Delayed>, InFp8>(folder / "fp8", setting);
  }
}

/// Whose columns are groups of 128 elements in halves, too, and whose vocabulary is padded
/// otherwise: to 384 rows in one part, to 512 in two.
constexpr LlamaConfig wide{.name = "wide",
                           .layers = 1,
                           .hidden = 128,
                           .ffn = 256,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 64,
                           .vocabulary = 300,
                           .rope_theta = config.rope_theta};
template <int Degree, const LlamaConfig& Of = wide, template <class...> class Optimizer = AdamW>
using InEightBits = ModelSession<Llama<Of, Fp32, Cpu, Fp32, TensorParallel<Degree>>,
                                 Optimizer<MasterWeights<Fp32>, Moments<EightBit>>, DataParallel<>>;

/// What some steps of a run leave.
struct Part {
  std::vector<double> losses;
  std::vector<SavedState> states;  ///< of all ranks, before the first step
};

/// Goes on from a checkpoint, unless there is none yet, and leaves one of step `first` + `steps`.
template <class Session, int Degree>
Part steps_from(const std::filesystem::path& from, const Setting& setting, unsigned first,
                unsigned steps, const std::filesystem::path& to) {
  Part result;
  const int ranks = setting.groups * Degree;
  result.states.resize(static_cast<std::size_t>(ranks));
  support::on_ranks(ranks, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Session session(options_of(setting), context, communicator);
    if (!from.empty()) (void)load_checkpoint(from, session);
    const int rank = communicator.rank();
    result.states[static_cast<std::size_t>(rank)] = save_state_sync(session.state().entries());
    for (unsigned step = first; step < first + steps; ++step) {
      const TokenBatch batch = part_of_step(setting, rank / Degree, step);
      const StepResult done = session.step({batch.tokens, batch.targets}, 1e-3);
      if (rank == 0) result.losses.push_back(done.loss);
    }
    Checkpoints checkpoints({.folder = to}, session,
                            [](const CheckpointRecord& record) { EXPECT_EQ(record.error, ""); });
    checkpoints.save(first + steps);
    checkpoints.finish();
  });
  return result;
}

/// Two ranks that share the layers leave a checkpoint; ranks that each have all of them go on from
/// it, and two that share them again from theirs, before their first step and behind the last.
template <class Shared, class Whole>
void change_ranks(const std::filesystem::path& folder, const Setting& whole, double bound) {
  const Setting shared{.micro_batches = 2};
  const auto at = [&](const char* name, const char* step) { return folder / name / step; };
  steps_from<Shared, 2>({}, shared, 0, 3, folder / "begun");
  const Part expected =
      steps_from<Shared, 2>(at("begun", "step-00000003"), shared, 3, 3, folder / "shared");
  steps_from<Whole, 1>(at("begun", "step-00000003"), whole, 3, 0, folder / "whole");
  const Part back =
      steps_from<Shared, 2>(at("whole", "step-00000003"), shared, 3, 0, folder / "back");
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(back.states[rank] == expected.states[rank]) << "rank " << rank;
  }
  const Part others =
      steps_from<Whole, 1>(at("begun", "step-00000003"), whole, 3, 3, folder / "trained");
  ASSERT_EQ(others.losses.size(), 3);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(others.losses[i], expected.losses[i], bound * expected.losses[i]) << i;
  }
  const Part last =
      steps_from<Shared, 2>(at("trained", "step-00000006"), shared, 6, 1, folder / "last");
  const Part same =
      steps_from<Shared, 2>(at("shared", "step-00000006"), shared, 6, 1, folder / "same");
  EXPECT_NEAR(last.losses[0], same.losses[0], bound * same.losses[0]);
}

TEST_F(TensorParallelCheckpoint, ResumesWithoutTensorParallelism) {
  change_ranks<Session<Fp32, 2>, Session<Fp32, 1>>(folder_, {.micro_batches = 2}, 1e-6);
}

TEST_F(TensorParallelCheckpoint, ResumesWithOtherOptimizerShards) {
  const Setting parts{.groups = 2, .zero = Zero::weights, .micro_batches = 2};
  change_ranks<Session<Fp32, 2>, Session<Fp32, 1>>(folder_, parts, 1e-6);
}

TEST_F(TensorParallelCheckpoint, PreservesScalesOfRecipe) {
  using Recipe = Fp8Recipe<Delayed>;
  change_ranks<Session<Recipe, 2>, Session<Recipe, 1>>(folder_, {.micro_batches = 2}, 2e-3);
}

TEST_F(TensorParallelCheckpoint, PreservesEightBitMoments) {
  change_ranks<InEightBits<2>, InEightBits<1>>(folder_, {.micro_batches = 2}, 1e-4);
}

TEST_F(TensorParallelCheckpoint, PreservesMuonMomentum) {
  change_ranks<InEightBits<2, wide, Muon>, InEightBits<1, wide, Muon>>(folder_,
                                                                       {.micro_batches = 2}, 1e-3);
}

TEST_F(TensorParallelCheckpoint, RejectsSplittingGroupsOfMoments) {
  using Shared = InEightBits<2, config>;
  using Whole = InEightBits<1, config>;
  steps_from<Shared, 2>({}, {}, 0, 1, folder_);
  support::on_ranks(1, [&](support::ThreadComm& communicator) {
    Context<Cpu> context{1};
    Whole session(options_of({}), context, communicator);
    const SavedState before = save_state_sync(session.state().entries());
    try {
      (void)load_checkpoint(folder_ / "step-00000001", session);
      ADD_FAILURE() << "it was loaded";
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("the run's number of ranks that share each layer"), std::string::npos)
          << text;
    }
    EXPECT_TRUE(save_state_sync(session.state().entries()) == before);
  });
}

}  // namespace tensor_parallel_test

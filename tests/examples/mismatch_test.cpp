// The trainer names the flags with which a run fits what it is to go on with.
#include <octavo/precision/named_precisions.hpp>
#include <train_llama/mismatch.hpp>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temporary_folder.hpp"

namespace mismatch_test {

using namespace octavo;
namespace fs = std::filesystem;

/// What the flags are of a run with these adapters, for a state that has `saved`.
std::string flags_for(const LoraOptions& adapters, const std::string& subject,
                      const std::string& saved, const fs::path& config = {}) {
  return trainer::fitting_flags({"another", subject, saved}, adapters, config);
}

TEST(FittingFlags, ListAdapterFlagsThatDiffer) {
  LoraOptions saved{.rank = 4, .alpha = 0.5f};
  const auto flags = [&](const LoraOptions& here) {
    return flags_for(here, "session.lora", saved.text());
  };
  EXPECT_EQ(flags({.rank = 8, .alpha = 0.5f}), " --lora 4");
  EXPECT_EQ(flags({.rank = 4, .alpha = 16}), " --lora-alpha 0.5");
  saved.alpha = 22.627417f;  // sqrt(512): six digits would be another
  EXPECT_EQ(flags({.rank = 4, .alpha = 22.6274f}), " --lora-alpha 22.627417");
  saved.alpha = 0.5f;
  LoraOptions few = saved;
  set_lora_targets(few, {"q_proj", "down_proj"});
  EXPECT_EQ(flags(few), " --lora-targets q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj");
  saved = few;
  EXPECT_EQ(flags({}), " --lora 4 --lora-alpha 0.5 --lora-targets q_proj,down_proj");
  EXPECT_EQ(flags_for({}, "session.lora", ""), "");
}

TEST(FlagsOfAllRanks, LeaveOutTheGpu) {
  const auto flags = trainer::flags_of_all_ranks("gpu=1\nseed=7\ndata=[\"a.txt\", \"b.txt\"]\n");
  ASSERT_EQ(flags.size(), 2u);
  EXPECT_EQ(flags[0].name + " " + flags[0].value, "--data a.txt b.txt");
  EXPECT_EQ(flags[1].name + " " + flags[1].value, "--seed 7");
}

TEST(FittingFlags, MatchCheckpoint) {
  const auto flags = [](const char* subject, const std::string& saved) {
    return flags_for({}, subject, saved);
  };
  EXPECT_EQ(flags("recipe", "bf16"), " --precision bf16");
  EXPECT_EQ(flags("recipe", precision_name<PrecisionNamed<"fp8-delayed-bf16-edges">>()),
            " --precision fp8-delayed-bf16-edges");
  EXPECT_EQ(flags("recipe", precision_name<Lora<Fp8Recipe<Delayed>>>()),
            " --precision fp8-delayed");
  EXPECT_EQ(flags("recipe", "a program's own"), "");
  EXPECT_EQ(flags("optimizer", "AdamW with bf16 master weights and 8-bit moments"),
            " --optimizer adamw --master-weights bf16 --moments 8bit");
  EXPECT_EQ(flags("optimizer", "AdamW with fp32 master weights and bf16 moments"),
            " --optimizer adamw --master-weights fp32 --moments bf16");
  EXPECT_EQ(flags("optimizer", "Muon with fp32 master weights and bf16 moments"),
            " --optimizer muon --master-weights fp32 --moments bf16");
  EXPECT_EQ(flags("optimizer", "AdamW with fp32 weights and fp32 moments"),
            " --optimizer adamw --moments fp32");
  EXPECT_EQ(flags("tensor_parallel", "2"), " --tensor-parallel 2");
  EXPECT_EQ(flags("model", "llama3_small"), " --model llama3_small");
  EXPECT_EQ(flags("model.embedding.weight", "bf16 [2, 2]"), "");
}

class FittingModelFlags : public support::TemporaryFolder {};

TEST_F(FittingModelFlags, NameSourceFolder) {
  const fs::path checkpoint = folder_ / "checkpoints" / "step-00000006";
  const fs::path config = trainer::detail::config_of(checkpoint / "");
  EXPECT_EQ(config, folder_ / "config.toml");
  for (const char* copy : {"step-00000006", "kept/step-00000006", "/step-00000006"}) {
    EXPECT_EQ(trainer::detail::config_of(copy), fs::path()) << "another's may lie there";
  }
  std::ofstream(config) << "model=\"hf:downloads/mine\"\n";
  EXPECT_EQ(flags_for({}, "model", "my_model", config), " --model hf:downloads/mine");
}

class DifferingDataFlags : public support::TemporaryFolder {
 protected:
  /// What is said of a run with this configuration that is to go on from one with that.
  [[nodiscard]] std::string others(const std::string& saved, const std::string& here) const {
    const fs::path config = folder_ / "config.toml";
    std::ofstream(config) << saved;
    return trainer::other_flags_of_data(config, here);
  }
};

TEST_F(DifferingDataFlags, ListFlagsThatAffectBatches) {
  const std::string run = "data = [\"a.txt\", \"b.txt\"]\nseq-len = 64\nseed = 1\nbatch = 8\n";
  EXPECT_EQ(others(run, run), "");
  EXPECT_EQ(others(run, "data = [\"a.txt\"]\nseq-len = 32\nseed = 1\nbatch = 4\nsteps = 9\n"),
            "--data is a.txt, the run had a.txt b.txt, and --seq-len is 32, the run had 64");
  EXPECT_EQ(others(run, run + "document-end = 0\n"), "--document-end is 0, the run had none");
  EXPECT_EQ(others(run + "document-end = 0\n", run), "--document-end is not set, the run had 0");
}

TEST_F(DifferingDataFlags, IncludeValidationFlagsThatAffectTrainingData) {
  for (const std::string name : {"validation-data", "validation-chats"}) {
    const std::string apart = name + " = [\"v\"]\n";
    const std::string other = name + " = [\"w\"]\nvalidation-fraction = 0.3\n";
    EXPECT_EQ(others(apart + "validation-fraction = 0.1\n", other), "");
    EXPECT_EQ(others("validation-fraction = 0.1\n", other),
              "--" + name + " is w, the run had none");
    EXPECT_EQ(others(apart, ""), "--" + name + " is not set, the run had v");
  }
  EXPECT_EQ(others("validation-fraction = 0.1\n", "validation-fraction = 0.3\n"),
            "--validation-fraction is 0.3, the run had 0.1");
}

}  // namespace mismatch_test

// How a run has ended: what is said of it, and what its files tell.
#include <train_llama/ending.hpp>
#include <train_llama/run_folder.hpp>

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "support/temporary_folder.hpp"

namespace ending_test {

using namespace octavo;

TEST(Ending, ReportsStepWithTooManyDocuments) {
  trainer::Options options;
  options.most_documents = 4;
  RunSummary summary;
  summary.steps = 6;
  summary.documents = 9;
  const std::string batch =
      "a batch of step 7 has 9 documents, including those that begin with a sequence, and "
      "--most-documents is 4";
  EXPECT_EQ(
      trainer::document_limit_message(summary, "", options),
      batch +
          "; the run keeps no checkpoints: start it again with --most-documents 9 or more, and "
          "with --checkpoint-every");
  EXPECT_EQ(
      trainer::document_limit_message(summary, "run", options),
      batch + "; resume with --config run/config.toml --resume run --most-documents 9 or more");
  EXPECT_EQ(trainer::resume_command_text("my runs/"),
            "resume with --config 'my runs/config.toml' --resume 'my runs'");
  summary.is_saved = false;  // which is said where it fails
  EXPECT_EQ(trainer::document_limit_message(summary, "run", options), batch);
}

TEST(RunFolder, HasAPlainName) {
  EXPECT_EQ(trainer::detail::folder_word("fp8-delayed"), "fp8-delayed");
  EXPECT_EQ(trainer::detail::folder_word(
                "Layerwise<First<2, Bf16>, Fp8Recipe<DelayedScaling<16, AmaxReduction::max>>>"),
            "Layerwise-First-2-Bf16-Fp8Recipe-DelayedScaling-16-AmaxReduction-max");
  EXPECT_EQ(trainer::detail::folder_word(std::string(300, 'a')).size(), 100U);
}

class EndOfMetrics : public ::support::TemporaryFolder {};

// One that went on may have been killed before it wrote its own.
TEST_F(EndOfMetrics, RequiresSummaryOfLastProcess) {
  const auto has_ended = [&](const std::string& lines) {
    std::ofstream(folder_ / "metrics.jsonl") << lines;
    return trainer::detail::has_ended(folder_ / "metrics.jsonl");
  };
  const std::string step = "{\"event\":\"step\",\"step\":1}\n";
  const std::string summary = "{\"event\":\"summary\",\"steps\":1}\n";
  EXPECT_FALSE(has_ended(step));
  EXPECT_TRUE(has_ended(step + summary));
  EXPECT_FALSE(has_ended(step + summary + "{\"event\":\"run\"}\n" + step));
  EXPECT_FALSE(trainer::detail::has_ended(folder_ / "absent"));
}

}  // namespace ending_test

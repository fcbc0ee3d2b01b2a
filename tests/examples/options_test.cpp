// What the trainer's flags ask of a session, where only a GPU could show it in a run.
#include <common/presets.hpp>
#include <octavo/precision/named_precisions.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/data.hpp>
#include <train_llama/declare.hpp>
#include <train_llama/gemm_plans.hpp>
#include <train_llama/needs.hpp>
#include <train_llama/options.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "support/state_stub.hpp"
#include "support/temporary_folder.hpp"

namespace options_test {

using namespace octavo;

/// What these flags ask for.
trainer::SessionRequest request(const std::vector<std::string>& flags,
                                const std::string& device = "cuda") {
  CLI::App app;
  trainer::Options options;
  trainer::declare(app, options, trainer::declare_text);
  std::vector<std::string> words(flags.rbegin(), flags.rend());  // CLI11 begins at the back
  words.insert(words.end(), {"--device=" + device, "--data=text.txt"});
  app.parse(words);
  trainer::require_effects(app, options);
  trainer::require_consistent(app, options);
  return trainer::session_request(options);
}

TEST(TrainerFlags, GpuDefaultsToFirst) {
  EXPECT_EQ(request({}).gpu, 0);
  EXPECT_EQ(request({"--gpu=3"}).gpu, 3);
}

TEST(TrainerFlags, RejectsFlagsOfOtherDevice) {
  EXPECT_EQ(request({"--threads=3"}, "cpu").threads, 3);
  EXPECT_THROW(request({"--threads=3"}), ConfigError);
  EXPECT_THROW(request({"--gpu=0"}, "cpu"), ConfigError);
  EXPECT_THROW(request({"--gemm-plans=plans"}, "cpu"), ConfigError);
}

// Bytes are tokens of models that have no others.
TEST(TrainerData, RestrictsRawBytesToByteVocabularies) {
  const Index bytes = ByteTokenizer::vocabulary;
  EXPECT_EQ(trainer::note_of_bytes(bytes), "");
  EXPECT_NE(trainer::note_of_bytes(bytes + 1).find("256 of the 257 that the model has"),
            std::string::npos);
  EXPECT_EQ(trainer::refusal_of_text("", bytes + 1), "") << "a model that is new";
  EXPECT_EQ(trainer::refusal_of_text("weights", bytes), "");
  EXPECT_NE(trainer::refusal_of_text("weights", bytes + 1), "");
}

TEST(TrainerData, RejectsDocumentEndOutsideTextBytes) {
  const BatchShape shape{2, 64, 16};
  for (const bool is_text : {true, false}) {
    Data data;
    data.is_text = is_text;
    EXPECT_NO_THROW(trainer::require_documents_of(data, 255, shape, 256));
    if (is_text) {
      EXPECT_THROW(trainer::require_documents_of(data, 256, shape, 256), ConfigError);
    } else {
      EXPECT_NO_THROW(trainer::require_documents_of(data, 256, shape, 256));
    }
  }
}

class TextVocabulary : public ::support::TemporaryFolder {};

// The advice names a file that is there, or none.
TEST_F(TextVocabulary, RejectionNamesTokenizerInFolder) {
  const auto why = [&](Index vocabulary) { return trainer::refusal_of_text(folder_, vocabulary); };
  const auto has = [&](const std::string& part) {
    return why(128'256).find(part) != std::string::npos;
  };
  const auto path_of = [&](const char* name) {
    return "prepare_data --tokenizer " + (folder_ / name).string() + ",";
  };
  std::ofstream(folder_ / "vocab.json") << "{}";
  EXPECT_TRUE(has(
      "has a tokenizer with 128256 tokens, and the folder contains neither tokenizer.json nor "))
      << why(300);
  EXPECT_TRUE(has("get one of them for this model, pass it to prepare_data as --tokenizer"));
  EXPECT_FALSE(has((folder_ / "").string())) << why(300);
  EXPECT_EQ(why(256), "");
  std::ofstream(folder_ / "tokenizer.model") << "";
  EXPECT_TRUE(has(path_of("tokenizer.model"))) << why(300);
  EXPECT_NE(why(256), "");
  std::ofstream(folder_ / "tokenizer.json") << "";
  EXPECT_TRUE(has(path_of("tokenizer.json"))) << why(300);
}

TEST(TrainerFlags, DeterministicReachesTheContext) {
  EXPECT_FALSE(request({}).deterministic);
  EXPECT_TRUE(request({"--deterministic"}).deterministic);
}

TEST(TrainerFlags, DeterministicReachesTheRanks) {
  EXPECT_FALSE(request({}).options.sharding.reduce_each_micro_batch);
  EXPECT_TRUE(request({"--deterministic"}).options.sharding.reduce_each_micro_batch);
}

TEST(TrainerFlags, ReduceReachesTheRanks) {
  EXPECT_EQ(request({}).reduce, "stored");
  trainer::Options options;  // what this test was not built with is refused as a flag
  options.reduce = "e4m3";
  EXPECT_EQ(trainer::session_request(options).reduce, "e4m3");
}

TEST(TrainerFlags, ExchangeReachesTheRanks) {
  EXPECT_FALSE(request({}).only_nccl);
  EXPECT_FALSE(request({"--exchange=copies"}).only_nccl);
  EXPECT_TRUE(request({"--exchange=nccl"}).only_nccl);
  EXPECT_THROW(request({"--exchange=nccl"}, "cpu"), ConfigError);
}

class TrainerFlagsWithFile : public ::support::TemporaryFolder {
 protected:
  /// A product of so many rows, and an algorithm.
  static GemmPlanRecord plan(Index m, std::uint64_t algorithm) {
    GemmPlanRecord record;
    record.library = {"NVIDIA_H200", 132, 130100};
    record.key.m = m;
    record.key.n = record.key.k = 128;
    record.algorithm.fill(algorithm);
    return record;
  }
  /// A manifest with these alone.
  [[nodiscard]] CheckpointManifest manifest(const std::vector<GemmPlanRecord>& plans) const {
    CheckpointManifest made{.gemm_plans = gemm_plans_text(plans)};
    write_file_atomically(folder_ / octavo::detail::manifest_name,
                          octavo::detail::manifest_text(made));
    return made;
  }
};

// Whatever has become of the file that the run has had them from.
TEST_F(TrainerFlagsWithFile, ResumesWithGemmPlansOfCheckpoint) {
  trainer::Options options;
  (void)manifest({plan(128, 1), plan(256, 1)});
  const std::vector<GemmPlanRecord> saved{plan(128, 1), plan(256, 1)};
  EXPECT_EQ(trainer::session_request(options, folder_).gemm_plans, saved);
  EXPECT_EQ(trainer::session_request(options, folder_).options.gemm_choice, GemmChoice::heuristic);
  options.gemm_plans = (folder_ / "plans").string();
  EXPECT_EQ(trainer::session_request(options, folder_).gemm_plans, saved);
  store_gemm_plans(options.gemm_plans, std::vector{plan(256, 2), plan(512, 2)});
  EXPECT_EQ(trainer::session_request(options, folder_).gemm_plans,
            (std::vector{plan(128, 1), plan(256, 1), plan(512, 2)}));
}

// Whether or not other records serve, such as those of a file.
TEST_F(TrainerFlagsWithFile, ReportsUnusableGemmPlansOfCheckpoint) {
  const CheckpointManifest saved = manifest({plan(128, 1), plan(256, 1)});
  const auto note = [&](const std::vector<GemmPlanRecord>& here) {
    return trainer::note_of_gemm_plans(saved, here);
  };
  const std::string rest =
      " of the checkpoint's 2 GEMM plans are used here; the checkpoint's are for NVIDIA_H200 with "
      "cuBLASLt 130100";
  EXPECT_EQ(note({}), "0" + rest);
  EXPECT_EQ(note({plan(512, 1)}), "0" + rest) << "another product";
  EXPECT_EQ(note({plan(128, 2), plan(256, 1)}), "1" + rest) << "another algorithm of one";
  GemmPlanRecord elsewhere = plan(128, 1);
  elsewhere.library.card = "NVIDIA_H100";
  EXPECT_EQ(note({elsewhere, plan(256, 1)}), "1" + rest) << "that of another card";
  EXPECT_EQ(note({plan(128, 1), plan(256, 1)}), "");
  EXPECT_EQ(trainer::note_of_gemm_plans({}, {}), "");
}

TEST_F(TrainerFlagsWithFile, IgnoresRoundingOfGemmPlanTimes) {
  GemmPlanRecord slow = plan(128, 1);
  slow.microseconds = 12345.678;
  EXPECT_EQ(trainer::note_of_gemm_plans(manifest({slow}), {slow}), "");
}

// The run that saved it had the heuristics' first.
TEST_F(TrainerFlagsWithFile, ReportsGemmPlansMissingFromCheckpoint) {
  const std::vector<GemmPlanRecord> here{plan(128, 1), plan(256, 1)};
  EXPECT_EQ(trainer::note_of_gemm_plans({}, here),
            "2 of the 2 GEMM plans that are used here differ from the 0 of the checkpoint; "
            "to use the checkpoint's, resume without --gemm-plans");
  const std::string note = trainer::note_of_gemm_plans(manifest({plan(256, 1)}), here);
  EXPECT_TRUE(note.starts_with("1 of the 2 GEMM plans that are used here differ ")) << note;
}

TEST_F(TrainerFlagsWithFile, ReportsEveryDifferenceFromCheckpoint) {
  ::support::StateStub session;
  session.plans = {plan(128, 1)};
  session.own_facts().libraries = "a GPU";
  CheckpointManifest saved = manifest(session.plans);
  saved.libraries = "a GPU";
  saved.version = version_string;
  saved.run_length = session.facts().run_shape.tokens;
  EXPECT_TRUE(trainer::notes_of(saved, session).empty());
  session.own_facts().libraries = "another GPU";
  EXPECT_EQ(trainer::notes_of(saved, session),
            (std::vector{trainer::note_of_libraries(saved, "another GPU")}));
  session.plans = {plan(128, 2)};
  EXPECT_EQ(trainer::notes_of(saved, session).size(), 2u);
  saved.run_length = 0;
  EXPECT_EQ(trainer::notes_of(saved, session).size(), 3u);
}

TEST(TrainerResumes, ReportsOtherVersionAndPaddedLength) {
  const auto note = [](const std::string& version, Index run_length) {
    return trainer::note_of_octavo({.version = version, .run_length = run_length}, 128);
  };
  const std::string here = version_string;
  EXPECT_EQ(note(here, 128), "");
  EXPECT_EQ(note("0.0.9", 128), "the checkpoint was saved by Octavo 0.0.9, and this is " + here);
  EXPECT_EQ(note(here, 96),
            "the checkpoint has sequences padded to 96 tokens, but here they are padded to 128");
  EXPECT_EQ(note(here, 0), "the checkpoint does not record the padded length of its sequences");
  EXPECT_EQ(note("0.0.9", 96), note("0.0.9", 128) +
                                   ", and it has sequences padded to 96 tokens, but here they "
                                   "are padded to 128");
}

// Those that share the layers have one batch together.
TEST(TrainerResumes, ReportsStepSizeChangedByRankCount) {
  trainer::Options options;
  options.batch = 2;
  options.sequence_length = 10;
  options.micro_batches = 3;
  const auto note = [&](int ranks, int tensor_ranks, int now) {
    return trainer::note_of_ranks({.ranks = ranks, .tensor_ranks = tensor_ranks}, {.ranks = now},
                                  options);
  };
  EXPECT_EQ(note(4, 1, 4), "");
  EXPECT_EQ(note(4, 2, 2), "");
  EXPECT_EQ(note(8, 2, 2),
            "with these flags, a step has 120 tokens, but 240 on the checkpoint's number of ranks "
            "(4); pass --micro-batches 6 for the same number");
  EXPECT_EQ(
      note(1, 1, 2),
      "with these flags, a step has 120 tokens, but 60 on the checkpoint's number of ranks (1)");
}

TEST(TrainerResumes, ReportsOtherLibraries) {
  const auto note = [](const std::string& saved, const std::string& here) {
    return trainer::note_of_libraries({.libraries = saved}, here);
  };
  EXPECT_EQ(note("a GPU, cuBLASLt 13.0.0", "a GPU, cuBLASLt 13.0.0"), "");
  EXPECT_EQ(note("", ""), "");
  EXPECT_EQ(
      note("a GPU, cuBLASLt 13.0.0", "a GPU, cuBLASLt 13.1.0"),
      "the checkpoint was saved with a GPU, cuBLASLt 13.0.0; this machine has a GPU, cuBLASLt "
      "13.1.0");
  EXPECT_EQ(note("a GPU", ""), "the checkpoint was saved with a GPU; this machine has no GPU");
  EXPECT_EQ(note("", "a GPU"),
            "the checkpoint was saved with no GPU, or an unnamed one; this machine has a GPU");
}

TEST_F(TrainerFlagsWithFile, GemmPlansAreRead) {
  const std::filesystem::path plans = folder_ / "plans";
  const GemmPlanRecord record = plan(128, 1);
  store_gemm_plans(plans, std::vector{record});
  EXPECT_TRUE(request({}).gemm_plans.empty());
  EXPECT_EQ(request({}).options.gemm_choice, GemmChoice::heuristic);
  EXPECT_EQ(request({"--gemm-plans=" + plans.string()}).options.gemm_choice, GemmChoice::rehearsed);
  EXPECT_EQ(request({"--gemm-plans=" + plans.string()}).gemm_plans, std::vector{record});
  EXPECT_TRUE(request({"--gemm-plans=" + (folder_ / "absent").string()}).gemm_plans.empty());
  EXPECT_THROW(request({"--gemm-plans=" + folder_.string()}), IoError);
}

// Such as a full disk, or one that others have the lock of.
TEST_F(TrainerFlagsWithFile, WarnsWhenGemmPlansCannotBeStored) {
  const auto said = [](const std::filesystem::path& file,
                       const std::vector<GemmPlanRecord>& plans) {
    testing::internal::CaptureStderr();
    constexpr int comm_timeout = 3;  // in seconds, of which half is waited
    trainer::keep_gemm_plans(file.string(), plans, "train_llama", comm_timeout);
    return testing::internal::GetCapturedStderr();
  };
  const std::filesystem::path plans = folder_ / "plans";
  EXPECT_EQ(said(plans, {plan(128, 1)}), "");
  EXPECT_EQ(load_gemm_plans(plans), std::vector{plan(128, 1)});
  const std::string end =
      ". The run continues with its GEMM plans, and its checkpoints contain them, but the next run "
      "must "
      "choose its own\n";
  const auto is_warned_of = [&](const std::string& text, const std::string& reason) {
    return text.starts_with("train_llama: warning: " + reason) && text.ends_with(end) &&
           std::ranges::count(text, '\n') == 1;
  };
  const std::filesystem::path absent = folder_ / "absent" / "plans";
  EXPECT_PRED2(is_warned_of, said(absent, {plan(128, 1)}), absent.string() + ": cannot be written");
  const int other = ::open((folder_ / ".plans.lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  EXPECT_PRED2(
      is_warned_of, said(plans, {plan(256, 1)}),
      (folder_ / ".plans.lock").string() + ": another program has had this lock for 1 seconds");
  ::close(other);
}

// Each experiment there is, by what it is about.
struct Experiment {
  std::string file, model, precision;
  std::string gather = "stored";
  std::string program = "train_llama";
};
const std::vector<Experiment> experiments{
    {"llama3_8b_bf16", "llama3_8b", "bf16"},
    {"llama3_8b_fp8_delayed", "llama3_8b", "fp8-delayed", "fp8"},
    {"llama3_8b_fp8_delayed_bf16_edges", "llama3_8b", "fp8-delayed-bf16-edges"},
    {"llama3_8b_fp8_tensorwise", "llama3_8b", "fp8-tensorwise"},
    {"llama3_8b_fp8_tensorwise_bf16_edges", "llama3_8b", "fp8-tensorwise-bf16-edges"},
    {"llama3_8b_fp8_blockwise", "llama3_8b", "fp8-blockwise"},
    {"llama3_8b_fp8_rowwise", "llama3_8b", "fp8-rowwise"},
    {"llama3_70b_fp8_delayed", "llama3_70b", "fp8-delayed", "fp8"},
    {"llama3_small_fp8_delayed", "llama3_small", "fp8-delayed"},
    {"llama3_small_bf16", "llama3_small", "bf16"},
    {"gpt2_124m_bf16", "gpt2_124m", "bf16"},
    {"gpt2_124m_fp8_delayed", "gpt2_124m", "fp8-delayed"},
    {"gpt_768_fp8_delayed", "gpt_768", "fp8-delayed"},
    {"llama3_8b_ultrachat_bf16", "hf:Llama-3.1-8B", "bf16", "stored", "finetune_llama"},
    {"llama3_8b_ultrachat_fp8_delayed", "hf:Llama-3.1-8B", "fp8-delayed", "fp8", "finetune_llama"},
    {"smollm2_chats", "hf:SmolLM2-135M-Instruct", "bf16", "stored", "finetune_llama"},
    {"smollm2_chats_lora", "hf:SmolLM2-135M-Instruct", "fp8-delayed", "stored", "finetune_llama"}};

// What "fp8-delayed" is in them.
static_assert(Delayed::history_length == 1024 && Delayed::reduction == AmaxReduction::max);

TEST(Experiments, MatchListedFiles) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("examples/experiments")) {
    found.insert(entry.path().filename().string());
  }
  std::set<std::string> known{"gpt_768.json"};
  for (const Experiment& experiment : experiments) known.insert(experiment.file + ".toml");
  EXPECT_EQ(found, known);
}

// Every key of an experiment is a flag, every value one that it takes.
TEST(Experiments, AreAcceptedByTrainer) {
  const std::vector<std::string> presets = programs::preset_names();
  for (const Experiment& experiment : experiments) {
    const std::string path = "examples/experiments/" + experiment.file + ".toml";
    SCOPED_TRACE(path);
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_NE(text.find(' ' + experiment.program + " --config " + path + ' '), std::string::npos)
        << "its command is another";
    EXPECT_NE(text.find("S=" + experiment.precision), std::string::npos)
        << "it does not say how to compile " << experiment.precision;
    if (experiment.program != "train_llama") continue;  // finetune_llama_test.sh runs them
    CLI::App app;
    trainer::Options options;
    trainer::declare(app, options, trainer::declare_text);
    std::vector<std::string> words{"--data=text.bin", "--config=" + path};
    app.parse(words);
    trainer::require_effects(app, options);
    trainer::require_consistent(app, options);
    EXPECT_EQ(options.device, "cuda");
    EXPECT_EQ(options.model, experiment.model);
    EXPECT_EQ(options.precision, experiment.precision);
    EXPECT_EQ(options.gather, experiment.gather);
    const bool is_added = text.find("-DOCTAVO_MODELS=" + options.model + ':') != std::string::npos;
    EXPECT_EQ(std::count(presets.begin(), presets.end(), options.model), is_added ? 0 : 1)
        << options.model;
    EXPECT_NE(text.find("S=" + options.model), std::string::npos)
        << "it does not say how to compile " << options.model;
  }
}

// And every precision has a name that programs know.
TEST(Experiments, UseNamedPrecisions) {
  std::set<std::string> names;
  named_precisions.for_each([&](auto named) { names.insert(named.name); });
  for (const Experiment& experiment : experiments) {
    EXPECT_EQ(names.count(experiment.precision), 1u) << experiment.precision;
  }
}

}  // namespace options_test

// The flags of evaluate.
#pragma once

#include <common/flags.hpp>
#include <common/needs.hpp>
#include <common/paths.hpp>
#include <octavo/data/data_files.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/chats.hpp>
#include <train_llama/checkpoints.hpp>
#include <train_llama/ranks.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace evaluate {

using octavo::Index;

struct Options : trainer::ModelChoice {
  std::string checkpoint;
  std::vector<std::string> data;
  trainer::ChatOptions chats;
  std::string hellaswag;
  std::string tokenizer;
  std::int32_t document_end = -1;
  Index most_documents = 0;
  Index batch = 1;
  Index sequence_length = 1024;
  Index batches = 0;
  std::string json;
};

inline void declare(CLI::App& app, Options& options) {
  using namespace programs;
  options.precision = "bf16";
  trainer::declare_model(app, options);
  trainer::declare_checkpoint(app, options.checkpoint);
  trainer::declare_ranks(app, options);
  const FlagGroup group(app, "Evaluation");
  group.add_without_default(
      "--data", options.data,
      "text, JSON Lines or token file, folder of text files, or pattern, whose loss is measured; "
      "repeatable");
  group.add_without_default("--chats", options.chats.files,
                            "file of chats, whose loss is measured on the assistant's messages; "
                            "repeatable");
  trainer::declare_chat_form(group, options.chats);
  group.add_without_default(
      "--hellaswag", options.hellaswag,
      "questions: llm.c's file, or JSON Lines (.jsonl) with ctx, endings and label");
  group.add_without_default(
      "--tokenizer", options.tokenizer,
      "bytes, tokenizer.json or tokenizer.model; by default, tokenizer.json in the hf: folder, "
      "otherwise bytes if the model has at most 256 tokens");
  group
      .add_without_default("--document-end", options.document_end,
                           "token ID that ends a document of --data; tokens then attend only "
                           "within their own document")
      ->check(non_negative_integer());
  group
      .add_without_default(
          "--most-documents", options.most_documents,
          "maximum number of documents in a batch of --data; used with --document-end")
      ->check(non_negative_integer());
  group.add("--batch", options.batch, "sequences per batch and rank")->check(at_least_one());
  group.add("--seq-len", options.sequence_length, "tokens per sequence")->check(at_least_one());
  group
      .add(
          "--batches", options.batches,
          "maximum number of batches; 0 uses all. --data is sampled at equal distances; --chats is "
          "used from its beginning")
      ->check(non_negative_integer());
  group.add_without_default("--json", options.json, "JSON file for the results");
}

/// @throws ConfigError  if flags contradict each other or have no effect, or if --json cannot be
///                      written or names a file that evaluate did not write
/// @throws IoError      if a file of a flag does not exist
inline void require_consistent(CLI::App& app, const Options& options) {
  octavo::require<octavo::ConfigError>(
      !options.data.empty() || !options.hellaswag.empty() || !options.chats.files.empty(),
      "nothing to evaluate; pass --data, --chats or --hellaswag");
  const bool has_data = !options.data.empty();
  const bool has_chats = !options.chats.files.empty();
  programs::require_effects(
      app, {{{"--chat-template", "--long-chats", "--last-turn-only", "--most-chats"},
             has_chats,
             "--chats",
             "FILE"},
            {{"--document-end", "--most-documents"}, has_data, "--data", "FILE"},
            {{"--batches"}, has_data || has_chats, "--data", "FILE"}});
  if (!options.chats.files.empty()) trainer::require_chat_files(options.chats);
  octavo::require<octavo::ConfigError>(
      (options.document_end >= 0) == (options.most_documents > 0), "--document-end and ",
      "--most-documents must be set together: the token that ends a document, and the maximum "
      "number of documents in a batch; pass both");
  octavo::require<octavo::ConfigError>(
      options.json.empty() || !std::filesystem::is_directory(options.json), "--json ", options.json,
      " is a folder; pass a file");
  const std::filesystem::path folder = std::filesystem::path(options.json).parent_path();
  octavo::require<octavo::ConfigError>(folder.empty() || std::filesystem::is_directory(folder),
                                       "--json ", options.json, ": the folder ", folder.string(),
                                       " does not exist; create it, or pass another file");
  programs::require_own_output("--json " + options.json, options.json, "{\"octavo\":");
  for (const std::string& name : options.data) {
    octavo::require<octavo::ConfigError>(
        !octavo::detail::weighted_name(name).weight.has_value(), "--data ", name,
        ": every token of every file is evaluated, so a weight has no effect; leave it out");
  }
}

}  // namespace evaluate

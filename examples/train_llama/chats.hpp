// The flags that determine how chats become sequences, and their effect.
#pragma once

#include <common/flags.hpp>
#include <common/paths.hpp>
#include <octavo/data/chat_template.hpp>
#include <octavo/data/chats.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace trainer {

inline const std::vector<std::string> too_long_names{"cut", "drop"};

/// Declares --chat-template, --long-chats, --last-turn-only and --most-chats.
inline void declare_chat_form(const programs::FlagGroup& group, ChatOptions& chats) {
  group.add_without_default("--chat-template", chats.chat_template,
                            "chat template: " +
                                programs::joined({octavo::chat_template_names.begin(),
                                                  octavo::chat_template_names.end()}) +
                                ", or a JSON file; required with --chats");
  group
      .add("--long-chats", chats.too_long,
           "action for chats longer than --seq-len tokens: " + programs::joined(too_long_names))
      ->check(programs::one_of(too_long_names));
  group.add_switch("--last-turn-only", chats.last_turn_only,
                   "use only the assistant's last message of each chat, not all of its messages");
  group.add("--most-chats", chats.max_per_sequence, "maximum number of chats in a sequence")
      ->check(programs::at_least_one());
}

/// Throws if the template is missing, or a file of a flag does not exist.
inline void require_chat_files(const ChatOptions& chats) {
  octavo::require<octavo::ConfigError>(
      !chats.chat_template.empty(),
      "--chat-template is required: pass the one that the model was trained with, such as llama3");
  programs::require_chat_template("--chat-template", chats.chat_template);
  const char* const advice = "pass a file with one chat per line, or a JSON array of chats";
  for (const std::string& file : chats.files) {
    programs::require_file("--chats " + file, file, advice);
  }
  for (const std::string& file : chats.validation_files) {
    programs::require_file("--validation-chats " + file, file, advice);
  }
}

/// Returns a request for chats of at most `longest` tokens, without files.
inline octavo::ChatRequest chat_request(const ChatOptions& chats, octavo::Index longest,
                                        octavo::Index vocabulary) {
  octavo::ChatRequest request;
  request.longest = longest;
  request.long_chats = chats.too_long == "drop" ? octavo::LongChats::drop : octavo::LongChats::cut;
  request.last_turn_only = chats.last_turn_only;
  request.vocabulary = vocabulary;
  return request;
}

/// Returns the shape of a batch with room for --most-chats in each sequence.
inline octavo::BatchShape chat_shape(const ChatOptions& chats, octavo::Index batch,
                                     octavo::Index sequence_length) {
  return {batch, sequence_length, batch * std::min(chats.max_per_sequence, sequence_length)};
}

/// Prints how many chats were longer than a sequence.
inline void print_long_chats(octavo::Index cut, octavo::Index dropped) {
  if (cut > 0) fmt::print("chats | {} longer than --seq-len, CUT\n", cut);
  if (dropped > 0) fmt::print("chats | {} longer than --seq-len, DROPPED\n", dropped);
}

}  // namespace trainer

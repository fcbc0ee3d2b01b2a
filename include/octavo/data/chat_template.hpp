/// @file
/// Chat templates: the text around the messages of a chat.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/json_reader.hpp>
#include <octavo/data/open_file.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// A message of a chat.
struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
  /// The tokens of the content, such as those that a model has generated. If they are missing, the
  /// content is encoded.
  std::optional<std::vector<std::int32_t>> tokens{};
  bool is_trained_on = true;  ///< its tokens are targets if the role is "assistant"
  /// Reasoning before the content of an answer; templates without reasoning refuse it. If it is
  /// missing, the content may begin with reasoning.
  std::optional<std::string> reasoning{};
};

/// The text around a message of one role.
struct ChatTurn {
  std::string before;
  std::string end;  ///< for the assistant, the token that ends its turn
  /// Precedes the content. The assistant generates it, so a prompt does not contain it.
  std::string prefix{};
  bool trims_content = false;  ///< removes white space around the content
};

/// A chat template. The text of a chat is `begin`, then for each message `before` of its role,
/// `prefix`, its content, `end`, and `behind`.
struct ChatTemplate {
  std::string name;
  std::string begin{};
  std::map<std::string, ChatTurn, std::less<>> turns{};  ///< by role; the assistant's is required
  std::string behind{};                                  ///< follows each turn
  /// The system message of a chat that does not begin with one.
  std::optional<std::string> default_system{};
  /// Text between an initial system message and the first user message, if the system message is
  /// part of the first user message. If missing, a system message is a separate turn.
  std::optional<std::string> system_separator{};
  /// Answers begin with reasoning between `<think>` and `</think>`, which is omitted from all
  /// answers before the last question.
  bool has_reasoning = false;
  bool alternates = false;     ///< user and assistant must alternate, beginning with the user
  bool trims_content = false;  ///< removes white space around all contents
  /// Names of special tokens of the tokenizer. In the strings of the template, these names are
  /// encoded as special tokens; in contents, as text.
  std::vector<std::string> special_tokens{};
};

namespace detail {

inline constexpr std::array chat_roles{"system", "user", "assistant"};

/// Source: https://github.com/openai/openai-python/blob/release-v0.28.0/chatml.md
inline ChatTemplate chatml(std::string name, std::optional<std::string> default_system) {
  ChatTemplate result{.name = std::move(name),
                      .behind = "\n",
                      .default_system = std::move(default_system),
                      .special_tokens = {"<|im_start|>", "<|im_end|>"}};
  for (const std::string role : chat_roles)
    result.turns[role] = {"<|im_start|>" + role + "\n", "<|im_end|>"};
  return result;
}

/// Source: the chat_template in tokenizer_config.json of Qwen3-8B.
inline ChatTemplate qwen3_chat() {
  ChatTemplate result = chatml("qwen3", {});
  result.has_reasoning = true;
  return result;
}

/// Source: the chat_template in tokenizer_config.json of Meta-Llama-3-8B-Instruct.
inline ChatTemplate llama3_chat() {
  ChatTemplate result{.name = "llama3",
                      .begin = "<|begin_of_text|>",
                      .trims_content = true,
                      .special_tokens = {"<|begin_of_text|>", "<|start_header_id|>",
                                         "<|end_header_id|>", "<|eot_id|>"}};
  for (const std::string role : chat_roles)
    result.turns[role] = {"<|start_header_id|>" + role + "<|end_header_id|>\n\n", "<|eot_id|>"};
  return result;
}

/// Source: the chat_template in tokenizer_config.json of Mistral-7B-Instruct-v0.2.
inline ChatTemplate mistral_chat() {
  return {.name = "mistral",
          .begin = "<s>",
          .turns = {{"user", {" [INST] ", " [/INST]"}}, {"assistant", {"", "</s>", " "}}},
          .system_separator = "\n\n",
          .alternates = true,
          .special_tokens = {"<s>", "</s>"}};
}

/// Source: the chat_template in tokenizer_config.json of Mistral-7B-Instruct-v0.3.
inline ChatTemplate mistral_v3_chat() {
  return {.name = "mistral-v0.3",
          .begin = "<s>",
          .turns = {{"user", {"[INST] ", "[/INST]"}}, {"assistant", {"", "</s>", " ", true}}},
          .alternates = true,
          .special_tokens = {"<s>", "</s>", "[INST]", "[/INST]"}};
}

/// Source: the chat_template in tokenizer_config.json of gemma-2-2b-it and gemma-3-1b-it.
inline ChatTemplate gemma_chat(std::string name, std::optional<std::string> system_separator) {
  return {.name = std::move(name),
          .begin = "<bos>",
          .turns = {{"user", {"<start_of_turn>user\n", "<end_of_turn>"}},
                    {"assistant", {"<start_of_turn>model\n", "<end_of_turn>"}}},
          .behind = "\n",
          .system_separator = std::move(system_separator),
          .alternates = true,
          .trims_content = true,
          .special_tokens = {"<bos>", "<start_of_turn>", "<end_of_turn>"}};
}

/// Reads a template from JSON.
class ChatTemplateReader {
 public:
  ChatTemplateReader(const std::filesystem::path& path, std::string_view text)
      : json_(text, path.string()) {
    template_.name = path.string();
  }

  ChatTemplate read() {
    json_.object([this](const std::string& key) {
      if (key == "begin") {
        template_.begin = json_.string();
      } else if (key == "behind") {
        template_.behind = json_.string();
      } else if (key == "default_system") {
        template_.default_system = json_.string();
      } else if (key == "trims_content") {
        template_.trims_content = json_.boolean();
      } else if (key == "system_separator") {
        template_.system_separator = json_.string();
      } else if (key == "has_reasoning") {
        template_.has_reasoning = json_.boolean();
      } else if (key == "alternates") {
        template_.alternates = json_.boolean();
      } else if (key == "special_tokens") {
        json_.array([this] { special_token(); });
      } else if (std::find(chat_roles.begin(), chat_roles.end(), key) != chat_roles.end()) {
        turn(template_.turns[key]);
      } else {
        unknown(key);
      }
    });
    json_.end();
    if (!template_.turns.contains("assistant"))
      json_.fail("the template has no member 'assistant'");
    if (template_.default_system.has_value() && !template_.turns.contains("system"))
      json_.fail("the template has a default_system, but no member 'system'");
    if (template_.system_separator.has_value() &&
        (template_.turns.contains("system") || !template_.turns.contains("user")))
      json_.fail(
          "a template with a system_separator needs a member 'user', and no member 'system'");
    return std::move(template_);
  }

 private:
  [[noreturn]] void unknown(const std::string& key) const {
    json_.fail(message("'", key, "' is not a member of a chat template"));
  }

  void special_token() {
    template_.special_tokens.push_back(json_.string());
    if (template_.special_tokens.back().empty()) json_.fail("a special token has no name");
  }

  void turn(ChatTurn& turn) {
    json_.object([&](const std::string& key) {
      if (key == "trims_content") {
        turn.trims_content = json_.boolean();
      } else if (key == "before" || key == "end" || key == "prefix") {
        (key == "end" ? turn.end : key == "prefix" ? turn.prefix : turn.before) = json_.string();
      } else {
        unknown(key);
      }
    });
  }

  JsonReader json_;
  ChatTemplate template_;
};

/// Returns a text without white space around it. Source: Python's str.strip().
inline std::string_view stripped(std::string_view text) {
  constexpr std::array<std::string_view, 29> spaces{
      "\t",     "\n",     "\v",     "\f",     "\r",     "\x1c",   "\x1d",   "\x1e",
      "\x1f",   " ",      "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002",
      "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
      "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  const auto space_at = [&](const auto& matches) {
    const auto* found = std::find_if(spaces.begin(), spaces.end(), matches);
    return found == spaces.end() ? std::size_t{0} : found->size();
  };
  while (const std::size_t length = space_at([&](auto space) { return text.starts_with(space); }))
    text.remove_prefix(length);
  while (const std::size_t length = space_at([&](auto space) { return text.ends_with(space); }))
    text.remove_suffix(length);
  return text;
}

}  // namespace detail

/// The names of the templates that `chat_template` returns.
inline constexpr std::array chat_template_names{"chatml",       "smollm2", "qwen2.5",
                                                "qwen3",        "llama3",  "mistral",
                                                "mistral-v0.3", "gemma",   "gemma3"};

/// Returns the chat template of a name, or reads one from a JSON file:
/// - `chatml`: no default system message, as Qwen3 without tools and without thinking
/// - `smollm2`, `qwen2.5`: ChatML with the default system messages of those models
/// - `qwen3`: Qwen3 with thinking, without tools; an answer may begin with reasoning between
///   `<think>` and `</think>`
/// - `llama3`: Llama 3; later versions (from 3.1) differ, because they put dates into the system
///   message
/// - `mistral`: Mistral-7B-Instruct v0.1 and v0.2; the first user message begins with the system
///   message
/// - `mistral-v0.3`: Mistral-7B-Instruct v0.3 without tools and system messages
/// - `gemma`: Gemma 1 and 2, without system messages
/// - `gemma3`: Gemma 3, text only; the first user message begins with the system message
/// - a name that ends in .json: a file with an object whose members are those of `ChatTemplate`,
///   with `system`, `user` and `assistant` instead of `turns`, each an object with the members of
///   `ChatTurn`
/// @throws ConfigError  if no template has this name
/// @throws IoError      naming file and byte, if the file cannot be read or has other members
[[nodiscard]] inline ChatTemplate chat_template(const std::string& name) {
  if (name == "chatml") return detail::chatml(name, {});
  if (name == "qwen3") return detail::qwen3_chat();
  if (name == "llama3") return detail::llama3_chat();
  if (name == "mistral") return detail::mistral_chat();
  if (name == "mistral-v0.3") return detail::mistral_v3_chat();
  if (name == "gemma") return detail::gemma_chat(name, {});
  if (name == "gemma3") return detail::gemma_chat(name, "\n\n");
  if (name == "smollm2") {
    return detail::chatml(name,
                          "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
  }
  if (name == "qwen2.5") {
    return detail::chatml(name,
                          "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
  }
  std::string known;
  for (const char* one : chat_template_names) known += message(one, ", ");
  require<ConfigError>(name.ends_with(".json"), "there is no chat template '", name, "'; use ",
                       known, "or a file whose name ends in .json");
  constexpr std::uint64_t most = 1 << 20;
  return detail::ChatTemplateReader(name, read_text_file(name, most)).read();
}

}  // namespace octavo

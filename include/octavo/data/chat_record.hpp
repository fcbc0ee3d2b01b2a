/// @file
/// Reading a chat from a JSON object, in each form in which data sets are published.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/core/json_reader.hpp>
#include <octavo/data/chat_template.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Reads a chat from a JSON object. Its keys determine its form:
/// - `messages` or `conversations`: a list of messages, each with `role` and `content`, or with
///   `from` and `value`;
/// - `prompt` and `completion`: two strings, or two lists of messages; only the completion is
///   trained on;
/// - `instruction`, `output` and perhaps `input`: the user's message is the instruction, and the
///   input on the next line. `history` may contain earlier pairs of messages.
///
/// A string `system` is the system message. A message with `"weight": 0` or `"train": false` is not
/// trained on. Other members are skipped; members that may change the text or the targets are
/// errors.
class ChatRecordReader {
 public:
  /// @param json  at the object
  explicit ChatRecordReader(JsonReader& json) : json_(json) {}

  /// @throws IoError  naming the place and the byte, if the object is not a chat
  std::vector<ChatMessage> read() {
    json_.object([this](const std::string& key) {
      keys_.push_back(key);
      member(key);
    });
    std::vector<ChatMessage> chat = build_chat();
    if (system_.has_value() && !system_->empty()) {
      if (!chat.empty() && chat.front().role == "system")
        json_.fail("the object has both \"system\" and a system message");
      chat.insert(chat.begin(), {"system", std::move(*system_)});
    }
    return chat;
  }

 private:
  using Messages = std::vector<ChatMessage>;

  void member(const std::string& key) {
    const JsonReader::Kind kind = json_.peek();
    const bool is_text = kind == JsonReader::Kind::string;
    const bool is_list = kind == JsonReader::Kind::array;
    if (key == "messages") {
      messages_ = list();
    } else if (key == "conversations") {
      conversations_ = list();
    } else if ((key == "prompt" || key == "completion") && (is_text || is_list)) {
      auto& side = key == "prompt" ? prompt_ : completion_;
      side = is_list ? list() : Messages{{key == "prompt" ? "user" : "assistant", json_.string()}};
    } else if (key == "instruction" && is_text) {
      instruction_ = json_.string();
    } else if (key == "input" && is_text) {
      input_ = json_.string();
    } else if (key == "output" && is_text) {
      output_ = json_.string();
    } else if (key == "history" && is_list) {
      history();
    } else if (key == "system" && is_text) {
      system_ = json_.string();
    } else {
      skip(key);
    }
  }

  /// Returns the messages of the only form that the object has.
  Messages build_chat() {
    std::vector<Messages> forms;
    if (messages_.has_value()) forms.push_back(std::move(*messages_));
    if (conversations_.has_value()) forms.push_back(std::move(*conversations_));
    if (prompt_.has_value() && completion_.has_value()) {
      for (ChatMessage& message : *prompt_) message.is_trained_on = false;
      std::move(completion_->begin(), completion_->end(), std::back_inserter(*prompt_));
      forms.push_back(std::move(*prompt_));
    }
    if (instruction_.has_value() && output_.has_value()) {
      Messages& chat = history_;
      const bool has_input = input_.has_value() && !input_->empty();
      if (has_input && !instruction_->empty()) *instruction_ += '\n';
      chat.push_back({"user", std::move(*instruction_) + (has_input ? *input_ : "")});
      chat.push_back({"assistant", std::move(*output_)});
      forms.push_back(std::move(chat));
    }
    if (forms.size() == 1) return std::move(forms.front());
    const bool is_text = std::find(keys_.begin(), keys_.end(), "text") != keys_.end();
    json_.fail(
        "the object must have one of: messages; conversations; prompt and completion; "
        "instruction and output; but it has " +
            (forms.empty() ? JsonReader::listed(keys_) : "several"),
        !forms.empty() ? ""
        : is_text      ? "train on texts with train_llama --data"
                       : "rename its keys, or leave it out");
  }

  /// Skips a member that changes neither the text nor the targets, or is null or an empty list.
  void skip(const std::string& key) {
    static constexpr std::array changing{
        "weight",        "train",          "weights",      "loss",          "loss_weight",
        "loss_mask",     "mask",           "masked",       "labels",        "trainable",
        "train_on_turn", "train_on_input", "train_detail", "learning_mask", "tool_calls",
        "function_call", "tools",          "system",       "history",       "reasoning_content"};
    if (json_.null()) return;
    if (std::find(changing.begin(), changing.end(), key) == changing.end()) return json_.skip();
    if (json_.peek() == JsonReader::Kind::array) {
      json_.array([&] { refuse(key); });
    } else if (json_.peek() != JsonReader::Kind::string || !json_.string().empty()) {
      refuse(key);
    }
  }

  [[noreturn]] void refuse(const std::string& key) {
    json_.fail("'" + key +
               "' may change the text or the targets, but only \"weight\" (0 or 1) and "
               "\"train\" (true or false) of a message are supported");
  }

  /// Sets whether a message is trained on.
  void choose(ChatMessage& message, std::optional<bool>& chosen, bool is_trained_on) {
    if (chosen.value_or(is_trained_on) != is_trained_on) json_.fail("weight and train disagree");
    chosen = is_trained_on;
    message.is_trained_on = is_trained_on;
  }

  Messages list() {
    Messages messages;
    json_.array([&] { messages.push_back(message()); });
    return messages;
  }

  ChatMessage message() {
    ChatMessage message;
    std::optional<std::string> role;
    std::optional<std::string> content;
    std::optional<bool> is_trained_on;
    json_.object([&](const std::string& key) {
      if (key == "role" || key == "from") {
        if (role.has_value()) json_.fail("a message has both role and from");
        role = json_.string();
      } else if (key == "content" || key == "value") {
        if (content.has_value()) json_.fail("a message has both content and value");
        content = this->content();
      } else if (key == "weight" && json_.peek() == JsonReader::Kind::number) {
        const double weight = json_.number();
        if (weight != 0 && weight != 1)
          json_.fail(octavo::message("weight must be 0 or 1, but is ", weight));
        choose(message, is_trained_on, weight != 0);
      } else if (key == "train" && json_.peek() == JsonReader::Kind::boolean) {
        choose(message, is_trained_on, json_.boolean());
      } else if (key == "reasoning_content" && json_.peek() == JsonReader::Kind::string) {
        message.reasoning = json_.string();
      } else {
        skip(key);
      }
    });
    if (!role.has_value()) json_.fail("a message has no role");
    if (!content.has_value()) json_.fail("a message has no content");
    message.role = *role == "human" ? "user" : *role == "gpt" ? "assistant" : std::move(*role);
    message.content = std::move(*content);
    if (is_trained_on.value_or(false) && message.role != "assistant") {
      json_.fail(
          octavo::message("a message of the role '", message.role,
                          "' cannot be trained on, only the assistant's messages can; set its "
                          "weight to 0"));
    }
    return message;
  }

  /// Returns a string, or the concatenated text of a list of parts.
  std::string content() {
    if (json_.peek() != JsonReader::Kind::array) return json_.string();
    std::string text;
    json_.array([&] {
      std::string type = "text";
      std::optional<std::string> part;
      json_.object([&](const std::string& key) {
        if (key == "type") {
          type = json_.string();
        } else if (key == "text" && json_.peek() == JsonReader::Kind::string) {
          part = json_.string();
        } else {
          json_.skip();
        }
      });
      if (type != "text")
        json_.fail("a part of the type '" + type + "' is not supported: only text is");
      if (!part.has_value()) json_.fail("a part of the type 'text' has no text");
      text += *part;
    });
    return text;
  }

  void history() {
    json_.array([this] {
      std::size_t strings = 0;
      json_.array(
          [&] { history_.push_back({strings++ == 0 ? "user" : "assistant", json_.string()}); });
      if (strings != 2) json_.fail("history must consist of pairs of a question and an answer");
    });
  }

  JsonReader& json_;
  std::vector<std::string> keys_;  ///< of the object
  std::optional<Messages> messages_;
  std::optional<Messages> conversations_;
  std::optional<Messages> prompt_;
  std::optional<Messages> completion_;
  std::optional<std::string> instruction_;
  std::optional<std::string> input_;
  std::optional<std::string> output_;
  std::optional<std::string> system_;
  Messages history_;  ///< of an instruction
};

}  // namespace octavo OCTAVO_ABI::detail

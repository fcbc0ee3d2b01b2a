/// @file
/// Encoding chats as tokens, and choosing the targets.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/data/chat_reasoning.hpp>
#include <octavo/data/chat_template.hpp>
#include <octavo/data/tokenizer.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The tokens of a chat.
struct ChatTokens {
  std::vector<std::int32_t> tokens{};
  /// For each token, the next token if that belongs to a message of the assistant or ends its turn;
  /// else −1, which losses ignore.
  std::vector<std::int32_t> targets{};
};

/// Encodes chats by a template, with the same tokens as `apply_chat_template` of transformers,
/// except:
/// - Names of special tokens in a message are encoded as text, so that no message can end a turn.
/// - A message of the assistant is encoded separately from the text before it, as during
///   generation. This makes a difference only if the message begins with white space.
class ChatEncoder {
 public:
  /// @param tokenizer  outlives this object
  /// @throws ConfigError  if the tokenizer lacks a special token of the template, or if the end of
  ///                      the assistant's turn is not one token
  ChatEncoder(ChatTemplate chat_template, const Tokenizer& tokenizer)
      : template_(std::move(chat_template)), tokenizer_(tokenizer) {
    require_special_tokens();
    const std::string& end = turn_of("assistant").end;
    Pieces pieces;
    add_mark(end, pieces);
    const std::vector<std::int32_t> tokens = encoded(pieces).tokens;
    require<ConfigError>(tokens.size() == 1, "chat template ", template_.name,
                         ": the end of the assistant's turn must be one token, but '", end, "' is ",
                         tokens.size(),
                         " tokens of this tokenizer; use an end that is one "
                         "token");
    end_of_turn_ = tokens.front();
  }

  /// Returns the token that ends the assistant's turn.
  [[nodiscard]] std::int32_t end_of_turn() const { return end_of_turn_; }

  /// Encodes a chat.
  /// @throws ConfigError  if the chat has no message or a message of an unknown role, or a text
  ///                      cannot be encoded
  [[nodiscard]] ChatTokens encode(std::span<const ChatMessage> chat) const {
    return encoded(pieces_of(chat));
  }

  /// Returns the tokens of a chat, and of the text before the assistant's next message.
  /// @throws ConfigError  as `encode` does
  [[nodiscard]] std::vector<std::int32_t> encode_prompt(std::span<const ChatMessage> chat) const {
    Pieces pieces = pieces_of(chat);
    add_mark(turn_of("assistant").before, pieces);
    return encoded(pieces).tokens;
  }

  /// Encodes each chat as `encode` does. The result does not depend on the number of threads.
  /// @throws ConfigError  as `encode` does
  [[nodiscard]] std::vector<ChatTokens> encode_all(std::span<const std::vector<ChatMessage>> chats,
                                                   const Context<Cpu>& context) const {
    std::vector<Pieces> all;
    all.reserve(chats.size());
    for (const auto& chat : chats) all.push_back(pieces_of(chat));
    std::vector<std::string_view> texts;
    std::vector<TextPosition> positions;
    for (const Pieces& pieces : all) {
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (!pieces[i].is_text()) continue;
        texts.push_back(pieces[i].text);
        positions.push_back(position_of(i, pieces));
      }
    }
    const auto tokens = tokenizer_.encode_all(texts, context, {}, positions);
    std::vector<ChatTokens> result;
    result.reserve(all.size());
    std::size_t next = 0;
    for (const Pieces& pieces : all) result.push_back(joined(pieces, tokens, next));
    return result;
  }

 private:
  /// Text that is encoded as a whole, or a token.
  struct Piece {
    std::string text{};
    std::int32_t token = -1;
    bool is_assistant = false;  ///< belongs to the assistant's turn
    bool is_target = false;     ///< its tokens are targets

    [[nodiscard]] bool is_text() const { return token < 0; }
  };
  using Pieces = std::vector<Piece>;

  static TextPosition position_of(std::size_t place, const Pieces& pieces) {
    if (place == 0) return TextPosition::start;
    return pieces[place - 1].is_text() ? TextPosition::after_text
                                       : TextPosition::after_special_token;
  }

  void require_special_tokens() const {
    try {
      for (const std::string& name : template_.special_tokens) (void)tokenizer_.special_token(name);
    } catch (const ConfigError& error) {
      throw ConfigError(message("chat template ", template_.name, ": ", error.what(),
                                "; use the tokenizer of a model with this template, or a template "
                                "file without special_tokens, as in docs/finetuning.md"));
    }
  }

  [[nodiscard]] const ChatTurn& turn_of(const std::string& role) const {
    const auto turn = template_.turns.find(role);
    if (turn != template_.turns.end()) return turn->second;
    std::string known;
    for (const auto& [name, of_name] : template_.turns) known += message(" '", name, "'");
    throw ConfigError(message("a message has the role '", role, "', but chat template ",
                              template_.name, " has only", known));
  }

  static void add_text(std::string_view text, const Piece& kind, Pieces& pieces) {
    if (text.empty()) return;
    if (pieces.empty() || !pieces.back().is_text() ||
        pieces.back().is_assistant != kind.is_assistant)
      pieces.push_back(kind);
    pieces.back().text += text;
  }

  /// Adds a string of the template, which may contain special tokens.
  void add_mark(std::string_view mark, Pieces& pieces) const {
    for (;;) {
      std::size_t begin = mark.size();
      std::string_view first;
      for (const std::string& name : template_.special_tokens) {
        const std::size_t place = mark.find(name);
        if (place > begin || place == std::string_view::npos) continue;
        if (place == begin && name.size() < first.size()) continue;
        begin = place;
        first = name;
      }
      add_text(mark.substr(0, begin), {}, pieces);
      if (first.empty()) return;
      pieces.push_back({.token = tokenizer_.special_token(first)});
      mark.remove_prefix(begin + first.size());
    }
  }

  /// @param system  begins the content
  void add_message(const ChatMessage& message, std::string_view system, Pieces& pieces) const {
    const ChatTurn& turn = turn_of(message.role);
    const std::string_view content = message.content;
    Piece kind{.is_assistant = message.role == "assistant"};
    kind.is_target = kind.is_assistant && message.is_trained_on;
    const auto add_token = [&](std::int32_t token) {
      pieces.push_back(kind);
      pieces.back().token = token;
    };
    add_mark(turn.before, pieces);
    if (message.tokens.has_value()) {
      for (const std::int32_t token : *message.tokens) add_token(token);
    } else {
      add_text(turn.prefix, kind, pieces);
      add_text(system, kind, pieces);
      const bool trims = template_.trims_content || turn.trims_content;
      add_text(trims ? detail::stripped(content) : content, kind, pieces);
    }
    if (kind.is_assistant) {
      add_token(end_of_turn_);
    } else {
      add_mark(turn.end, pieces);
    }
    add_mark(template_.behind, pieces);
  }

  [[nodiscard]] Pieces pieces_of(std::span<const ChatMessage> chat) const {
    require<ConfigError>(!chat.empty(), "a chat must have at least one message");
    Pieces pieces;
    add_mark(template_.begin, pieces);
    std::string system;
    if (template_.system_separator.has_value() && chat.front().role == "system") {
      system = chat.front().content + *template_.system_separator;
      chat = chat.subspan(1);
      require<ConfigError>(!chat.empty() && chat.front().role == "user", "chat template ",
                           template_.name, ": a user message must follow the system message");
    }
    require_roles(chat);
    std::vector<ChatMessage> reasoned;
    require_no_reasoning(chat);
    if (template_.has_reasoning) chat = reasoned = with_reasoning(chat);
    if (template_.default_system.has_value() && chat.front().role != "system")
      add_message({"system", *template_.default_system}, "", pieces);
    for (std::size_t i = 0; i < chat.size(); ++i)
      add_message(chat[i], i == 0 ? std::string_view(system) : "", pieces);
    return pieces;
  }

  /// Returns the chat with the reasoning of its answers as the template writes it.
  [[nodiscard]] std::vector<ChatMessage> with_reasoning(std::span<const ChatMessage> chat) const {
    std::vector<ChatMessage> result(chat.begin(), chat.end());
    const std::size_t current = detail::end_of_last_question(chat);
    for (std::size_t i = 0; i < result.size(); ++i) {
      ChatMessage& message = result[i];
      if (message.role != "assistant") continue;
      if (message.tokens.has_value()) {
        if (i >= current) continue;  // as generated
        message.content = tokenizer_.decode(*message.tokens, TextPosition::after_special_token);
        message.tokens.reset();
      }
      message.content = detail::with_reasoning(message, i >= current, i + 1 == result.size());
    }
    return result;
  }

  void require_no_reasoning(std::span<const ChatMessage> chat) const {
    for (const ChatMessage& message : chat) {
      require<ConfigError>(!message.reasoning.has_value() || message.reasoning->empty() ||
                               (template_.has_reasoning && message.role == "assistant"),
                           "a message of the role '", message.role,
                           "' has reasoning (reasoning_content), but chat "
                           "template ",
                           template_.name,
                           " does not support reasoning; remove it, or use the template qwen3");
    }
  }

  void require_roles(std::span<const ChatMessage> chat) const {
    for (std::size_t i = 0; i < chat.size(); ++i) {
      (void)turn_of(chat[i].role);
      require<ConfigError>(!template_.alternates || (chat[i].role == "user") == (i % 2 == 0),
                           "chat template ", template_.name,
                           ": messages must alternate between user and assistant, beginning with "
                           "the user, but message ",
                           i + 1, " has the role '", chat[i].role, "'");
    }
  }

  [[nodiscard]] ChatTokens encoded(const Pieces& pieces) const {
    std::vector<std::vector<std::int32_t>> tokens;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].is_text())
        tokens.push_back(tokenizer_.encode(pieces[i].text, {}, position_of(i, pieces)));
    }
    std::size_t next = 0;
    return joined(pieces, tokens, next);
  }

  /// @param texts  tokens of texts; those of these pieces begin at `next`, which is advanced past
  ///               them
  static ChatTokens joined(const Pieces& pieces, std::span<const std::vector<std::int32_t>> texts,
                           std::size_t& next) {
    ChatTokens result;
    const auto add = [&result](std::int32_t token, bool is_target) {
      if (!result.targets.empty()) result.targets.back() = is_target ? token : -1;
      result.tokens.push_back(token);
      result.targets.push_back(-1);
    };
    for (const Piece& piece : pieces) {
      if (!piece.is_text()) {
        add(piece.token, piece.is_target);
        continue;
      }
      for (const std::int32_t token : texts[next]) add(token, piece.is_target);
      ++next;
    }
    return result;
  }

  ChatTemplate template_;
  const Tokenizer& tokenizer_;
  std::int32_t end_of_turn_ = -1;
};

}  // namespace octavo

/// @file
/// Reasoning in the answers of a chat.
#pragma once

#include <octavo/core/version.hpp>
#include <octavo/data/chat_template.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace octavo OCTAVO_ABI::detail {

/// An answer that begins with reasoning, which may be empty.
struct ReasonedAnswer {
  std::string_view reasoning{};
  std::string_view answer{};
};

inline std::string_view without_leading_lines(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

inline std::string_view without_lines_around(std::string_view text) {
  text = without_leading_lines(text);
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

/// Divides an answer that may begin with reasoning between `<think>` and `</think>`.
inline ReasonedAnswer reasoned_answer(std::string_view content) {
  constexpr std::string_view begin = "<think>";
  constexpr std::string_view end = "</think>";
  const std::size_t first = content.find(end);
  if (first == std::string_view::npos) return {.answer = content};
  std::string_view reasoning = content.substr(0, first);
  if (const std::size_t place = reasoning.rfind(begin); place != std::string_view::npos)
    reasoning.remove_prefix(place + begin.size());
  return {without_lines_around(reasoning),
          without_leading_lines(content.substr(content.rfind(end) + end.size()))};
}

/// Returns the position after the last question of a chat; the size of the chat if it has none. A
/// message of the user that contains the response of a tool is not a question.
inline std::size_t end_of_last_question(std::span<const ChatMessage> chat) {
  for (std::size_t place = chat.size(); place > 0; --place) {
    const ChatMessage& message = chat[place - 1];
    const bool is_response = message.content.starts_with("<tool_response>") &&
                             message.content.ends_with("</tool_response>");
    if (message.role == "user" && !is_response) return place;
  }
  return chat.size();
}

/// Returns the text of an answer: reasoning is omitted before the last question, and present in the
/// last answer, even if it is empty.
/// Source: the chat_template in tokenizer_config.json of Qwen3-8B.
/// @param is_current  no question follows
/// @param is_last     no message follows
inline std::string with_reasoning(const ChatMessage& message, bool is_current, bool is_last) {
  const bool is_separate = message.reasoning.has_value();
  const ReasonedAnswer parts = is_separate ? ReasonedAnswer{*message.reasoning, message.content}
                                           : reasoned_answer(message.content);
  if (!is_current || (!is_last && parts.reasoning.empty())) return std::string(parts.answer);
  std::string text = "<think>\n";
  text += without_lines_around(parts.reasoning);
  text += "\n</think>\n\n";
  return text += without_leading_lines(parts.answer);
}

}  // namespace octavo OCTAVO_ABI::detail

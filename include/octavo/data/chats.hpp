/// @file
/// Reading chats from files, as tokens.
#pragma once

#include <octavo/core/context.hpp>
#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/json_reader.hpp>
#include <octavo/data/chat_record.hpp>
#include <octavo/data/chat_tokens.hpp>
#include <octavo/data/json_texts.hpp>
#include <octavo/data/seen_files.hpp>
#include <octavo/data/text_stream.hpp>
#include <octavo/data/tokens.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The tokens of chats, and whether each is a target.
class Chats {
 public:
  [[nodiscard]] Index size() const { return static_cast<Index>(begins_.size()) - 1; }
  /// Returns the number of tokens of all chats.
  [[nodiscard]] Index tokens() const { return begins_.back(); }
  /// Returns the number of targets of all chats.
  [[nodiscard]] Index targets() const {
    return static_cast<Index>(std::count(is_target_.begin(), is_target_.end(), true));
  }
  /// Returns the number of tokens of a chat.
  [[nodiscard]] Index length(Index chat) const { return begin(chat + 1) - begin(chat); }

  /// Appends a chat.
  void add(const ChatTokens& chat) {
    tokens_.insert(tokens_.end(), chat.tokens.begin(), chat.tokens.end());
    is_target_.push_back(false);
    for (std::size_t i = 0; i + 1 < chat.targets.size(); ++i)
      is_target_.push_back(chat.targets[i] >= 0);
    begins_.push_back(static_cast<Index>(tokens_.size()));
  }

  /// Copies a chat.
  /// @param tokens   [length(chat)]
  /// @param targets  [length(chat)]: the next token if it is a target, else −1
  void read(Index chat, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
    const auto first = static_cast<std::size_t>(begin(chat));
    const auto count = static_cast<std::size_t>(length(chat));
    for (std::size_t i = 0; i < count; ++i) {
      tokens[i] = tokens_[first + i];
      const bool is_target = i + 1 < count && is_target_[first + i + 1];
      targets[i] = is_target ? tokens_[first + i + 1] : -1;
    }
  }

  /// Removes the last `count` chats and returns them.
  [[nodiscard]] Chats split_off(Index count) {
    Chats last;
    const Index rest = size() - count;
    const auto first = static_cast<std::ptrdiff_t>(begin(rest));
    last.tokens_.assign(tokens_.begin() + first, tokens_.end());
    last.is_target_.assign(is_target_.begin() + first, is_target_.end());
    for (Index chat = rest; chat < size(); ++chat)
      last.begins_.push_back(begin(chat + 1) - begin(rest));
    tokens_.resize(static_cast<std::size_t>(first));
    is_target_.resize(static_cast<std::size_t>(first));
    begins_.resize(static_cast<std::size_t>(rest) + 1);
    return last;
  }

  /// Returns a hash of the chats, their order and their targets.
  [[nodiscard]] std::uint64_t hash() const {
    detail::WordHash hash;
    for (const Index begin : begins_) hash.add(static_cast<std::uint64_t>(begin));
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      hash.add(static_cast<std::uint64_t>(tokens_[i]) << 1 | (is_target_[i] ? 1u : 0u));
    return hash.value();
  }

 private:
  [[nodiscard]] Index begin(Index chat) const { return begins_[static_cast<std::size_t>(chat)]; }

  std::vector<std::int32_t> tokens_;
  std::vector<bool> is_target_;   ///< for each token, whether it is a target
  std::vector<Index> begins_{0};  ///< first token of each chat, and the end of the last
};

/// The handling of chats that are longer than a sequence: `cut` removes their end.
enum class LongChats { cut, drop };

/// The chats that a run will read.
struct ChatRequest {
  std::vector<std::string> train{};  ///< files with one chat per line, or an array of chats
  /// Files for validation; if empty, the last training chats are used. Without `train`, only these
  /// files are read.
  std::vector<std::string> validation{};
  /// Fraction of `train` for validation if `validation` is empty; at least one chat.
  double validation_fraction = 0.1;
  Index longest = 0;  ///< maximum number of tokens of a chat
  LongChats long_chats = LongChats::cut;
  Index vocabulary = 0;         ///< of the model; tokens must be below it
  bool last_turn_only = false;  ///< only the assistant's last message of each chat is trained on
};

/// The chats of a run.
struct ChatData {
  struct File {
    std::filesystem::path path;
    Index chats = 0;
  };

  Chats train;
  Chats validation;
  std::vector<File> files;
  Index cut = 0;      ///< number of truncated chats
  Index dropped = 0;  ///< number of dropped chats; with `cut`, of chats that have no target left
};

namespace detail {

/// Reads files of chats and encodes them.
class ChatLoader {
 public:
  ChatLoader(const ChatRequest& request, const ChatEncoder& encoder, const Context<Cpu>& context)
      : request_(request), encoder_(encoder), context_(context) {}

  ChatData load() {
    require<ConfigError>(!request_.train.empty() || !request_.validation.empty(),
                         "no chats are named; name at least one file");
    for (const std::string& path : request_.train) read(path, data_.train);
    for (const std::string& path : request_.validation) read(path, data_.validation);
    if (request_.validation.empty()) split();
    for (const Chats* chats : {&data_.train, &data_.validation}) {
      if (chats == &data_.train && request_.train.empty()) continue;
      require<ConfigError>(chats->size() > 0 || data_.dropped > 0 || !request_.validation.empty(),
                           "the only chat is kept for validation, so no training data is left; "
                           "add chats, or name separate validation chats");
      require<ConfigError>(chats->size() > 0, "there is no chat for ",
                           chats == &data_.train ? "training" : "validation", ": ", data_.dropped,
                           " were longer than a sequence of ", request_.longest,
                           " tokens; increase the sequence length, or add chats");
    }
    return std::move(data_);
  }

 private:
  void split() {
    const double fraction = request_.validation_fraction;
    require<ConfigError>(fraction > 0.0 && fraction < 1.0,
                         "validation fraction must be between 0 and 1, "
                         "but is ",
                         fraction);
    const Index all = data_.train.size();
    const auto share = static_cast<Index>(std::floor(fraction * static_cast<double>(all)));
    data_.validation = data_.train.split_off(std::min(all, std::max<Index>(share, 1)));
  }

  void read(const std::filesystem::path& path, Chats& chats) {
    FileLines lines(path, max_document_bytes);
    seen_.begin_source();
    (void)seen_.add(lines.stream().file().identity(), path, {});
    Index count = 0;
    const auto add_chat = [&](JsonReader& json, std::string place) {
      places_.push_back(std::move(place));
      read_.push_back(ChatRecordReader(json).read());
      if (request_.last_turn_only) learn_last_turn(read_.back());
      ++count;
      if (read_.size() == together) encode(chats);
    };
    for (std::string line; lines.next(line);) {
      if (is_blank(line)) continue;
      const std::size_t first = line.find_first_not_of(" \t\r");
      const bool is_array = count == 0 && line[first] == '[';
      require<IoError>(count > 0 || is_array || line[first] == '{', lines.place(),
                       ": must be a chat in JSON, but begins with ",
                       JsonReader::excerpt(std::string_view(line).substr(first)),
                       "; write chats in a form of docs/finetuning.md, or train on plain text with "
                       "train_llama --data");
      const std::string place = is_array ? path.string() : lines.place();
      const std::size_t offset = is_array ? lines.begin() : 0;
      if (is_array) read_rest(lines, line);
      JsonReader json(line, place, offset, "correct the chat, or leave it out");
      if (is_array) {
        json.array([&] { add_chat(json, message(place, ": chat ", count + 1)); });
      } else {
        add_chat(json, place);
      }
      json.end();
    }
    lines.stream().require_size(lines.stream().file().size(), true);
    encode(chats);
    require<IoError>(count > 0, path.string(),
                     ": has no chat; write one JSON object per line, or an array of objects");
    data_.files.push_back({path, count});
  }

  /// Appends the following lines to `text`.
  static void read_rest(FileLines& lines, std::string& text) {
    for (std::string line; lines.next(line);) {
      require<IoError>(text.size() + line.size() < max_document_bytes, lines.path().string(),
                       ": a JSON array must have at most ", max_document_bytes,
                       " bytes; write one JSON object per line");
      text += '\n';
      text += line;
    }
  }

  /// Excludes all messages except the assistant's last one from training.
  static void learn_last_turn(std::vector<ChatMessage>& chat) {
    bool is_last = true;
    for (ChatMessage& turn : std::views::reverse(chat)) {
      if (turn.role != "assistant") continue;
      turn.is_trained_on = turn.is_trained_on && is_last;
      is_last = false;
    }
  }

  /// Encodes the chats in `read_`.
  void encode(Chats& chats) {
    std::vector<ChatTokens> encoded;
    try {
      encoded = encoder_.encode_all(read_, context_);
    } catch (const ConfigError&) {
      throw_with_place();
      throw;
    }
    for (std::size_t i = 0; i < encoded.size(); ++i) add(std::move(encoded[i]), places_[i], chats);
    read_.clear();
    places_.clear();
  }

  void throw_with_place() const {
    for (std::size_t i = 0; i < read_.size(); ++i) {
      try {
        (void)encoder_.encode(read_[i]);
      } catch (const ConfigError& error) {
        throw ConfigError(message(places_[i], ": ", error.what()));
      }
    }
  }

  void add(ChatTokens chat, const std::string& place, Chats& chats) {
    const auto has_target = [&chat] {
      return std::any_of(chat.targets.begin(), chat.targets.end(),
                         [](std::int32_t target) { return target >= 0; });
    };
    require<ConfigError>(has_target(), place,
                         ": no message of the assistant is trained on in this chat; remove the "
                         "chat");
    for (const std::int32_t token : chat.tokens) {
      require<ConfigError>(token < request_.vocabulary, place, ": token ", token,
                           " is outside the model's vocabulary of ", request_.vocabulary,
                           "; use the model's tokenizer");
    }
    if (static_cast<Index>(chat.tokens.size()) > request_.longest) {
      chat.tokens.resize(static_cast<std::size_t>(request_.longest));
      chat.targets.resize(chat.tokens.size());
      chat.targets.back() = -1;
      const bool stays = request_.long_chats == LongChats::cut && has_target();
      ++(stays ? data_.cut : data_.dropped);
      if (!stays) return;
    }
    chats.add(chat);
  }

  static constexpr std::size_t together =
      4096;  ///< maximum number of chats that are encoded at once

  const ChatRequest& request_;
  const ChatEncoder& encoder_;
  const Context<Cpu>& context_;
  ChatData data_;
  SeenFiles seen_;
  std::vector<std::vector<ChatMessage>> read_;
  std::vector<std::string> places_;  ///< file and line of each
};

}  // namespace detail

/// Reads and encodes the chats of a run.
/// @throws IoError      naming file, line and byte, if a file cannot be read or contains a line or
///                      element that is not a chat
/// @throws ConfigError  naming file and line of a chat that cannot be encoded, has tokens outside
///                      the vocabulary or has no target; if a file is named twice, or no chat is
///                      left
[[nodiscard]] inline ChatData load_chats(const ChatRequest& request, const ChatEncoder& encoder,
                                         const Context<Cpu>& context) {
  return detail::ChatLoader(request, encoder, context).load();
}

}  // namespace octavo

// Chats of files, what is refused of them, and how they are packed into sequences.
#include <octavo/data/byte_tokenizer.hpp>
#include <octavo/data/chat_stream.hpp>
#include <octavo/data/chats.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/temporary_folder.hpp"

namespace chats_test {

namespace fs = std::filesystem;
using namespace octavo;
using Ids = std::vector<std::int32_t>;

/// "<user>:<assistant>;", of bytes.
ChatTemplate plain() {
  return {.name = "plain",
          .turns = {{"user", {"", ":"}}, {"assistant", {"", ";"}}, {"system", {"", "!"}}}};
}

class ChatFiles : public support::TemporaryFolder {
 protected:
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  ChatData load(const std::vector<std::string>& files, const std::vector<std::string>& validation,
                LongChats long_chats = LongChats::cut, double fraction = 0.25) const {
    const ByteTokenizer tokenizer;
    const ChatEncoder encoder(plain(), tokenizer);
    return load_chats({.train = files,
                       .validation = validation,
                       .validation_fraction = fraction,
                       .longest = 8,
                       .long_chats = long_chats,
                       .vocabulary = 195},
                      encoder, Context<Cpu>(1));
  }

  /// The text of a chat, with what is learnt in brackets.
  static std::string text(const Chats& chats, Index chat) {
    Ids tokens(static_cast<std::size_t>(chats.length(chat)));
    Ids targets(tokens.size());
    chats.read(chat, tokens, targets);
    std::string text;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool is_target = i != 0 && targets[i - 1] >= 0;
      EXPECT_TRUE(!is_target || targets[i - 1] == tokens[i]);
      text += is_target ? message('[', static_cast<char>(tokens[i]), ']')
                        : std::string(1, static_cast<char>(tokens[i]));
    }
    EXPECT_LT(targets.back(), 0);
    return text;
  }
  static std::vector<std::string> texts(const Chats& chats) {
    std::vector<std::string> all;
    for (Index chat = 0; chat < chats.size(); ++chat) all.push_back(text(chats, chat));
    return all;
  }

  template <class E>
  std::string refusal(const std::string& lines) const {
    try {
      (void)load({file("bad.jsonl", lines)}, {});
    } catch (const E& error) {
      return error.what();
    }
    return "";
  }
};

std::string line(const std::string& user, const std::string& assistant) {
  return R"({"messages": [{"role": "user", "content": ")" + user +
         R"("}, {"role": "assistant", "content": ")" + assistant + "\"}]}\n";
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_F(ChatFiles, ReadsMessagesAndConversations) {
  EXPECT_THROW((void)load({file("a.jsonl", "{\"messages\":\n []}")}, {}), IoError);
  const std::string a = file("b.jsonl", "\n" + line("a", "bc") + " \r\n" + line("", ""));
  const std::string b = file(
      "c.jsonl",
      R"({"id": [1], "conversations": [{"from": "human", "value": "x", "w": 1}, {"from": "gpt", )"
      R"("value": "y"}, {"from": "system", "value": "z"}]})");
  const ChatData data = load({a}, {b});
  EXPECT_EQ(texts(data.train), (std::vector<std::string>{"a:[b][c][;]", ":[;]"}));
  EXPECT_EQ(texts(data.validation), std::vector<std::string>{"x:[y][;]z!"});
  EXPECT_EQ(data.train.targets(), 4);
  EXPECT_EQ(data.train.tokens(), 7);
  ASSERT_EQ(data.files.size(), 2u);
  EXPECT_EQ(data.files[0].path, a);
  EXPECT_EQ(data.files[0].chats, 2);
  EXPECT_EQ(data.files[1].chats, 1);
}

// The keys are those of Alpaca, LLaMA-Factory, TRL, ShareGPT, OpenAI and UltraChat.
TEST_F(ChatFiles, ReadsAllPublishedFormats) {
  const std::vector<std::pair<std::string, std::string>> forms{
      {R"({"instruction": "a", "input": "", "output": "b", "text": "all"})", "a:[b][;]"},
      {R"({"output": "b", "instruction": "a", "input": "i"})", "a\ni:[b][;]"},
      {R"({"instruction": "", "input": "i", "output": "b"})", "i:[b][;]"},
      {R"({"instruction": "a", "output": "b", "history": [["c", "d"]], "system": "s"})",
       "s!c:[d][;]a:"},
      {R"({"instruction": "a", "output": "b", "history": null, "system": ""})", "a:[b][;]"},
      {R"({"prompt": "a", "completion": "b"})", "a:[b][;]"},
      {R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
           "completion": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})",
       "a:b;c:[d][;]"},
      {R"({"prompt": "ignored", "prompt_id": "0", "messages": [{"role": "user", "content": "a"},
           {"role": "assistant", "content": "b"}]})",
       "a:[b][;]"},
      {R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
           "system": "s", "tools": ""})",
       "s!a:[b][;]"},
      {R"({"conversations": [{"role": "user", "content": "a"}, {"role": "assistant",
           "content": "b", "tool_calls": [], "reasoning_content": ""}], "tools": []})",
       "a:[b][;]"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "c"}]},
           {"role": "assistant", "content": [{"type": "text", "text": "b", "cache": {}}]}]})",
       "ac:[b][;]"}};
  const std::string other = file("b.jsonl", line("v", "w"));
  std::string lines;
  std::string array;
  std::vector<std::string> expected;
  for (const auto& [form, text] : forms) {
    std::string one = form;
    std::replace(one.begin(), one.end(), '\n', ' ');
    lines += one + '\n';
    array += (array.empty() ? "\n\n [\n" : ",\n") + form;
    expected.push_back(text);
  }
  EXPECT_EQ(texts(load({file("a.jsonl", lines)}, {other}, LongChats::cut).train), expected);
  const ChatData data = load({file("a.json", array + "\n]\n")}, {other});
  EXPECT_EQ(texts(data.train), expected);
  EXPECT_EQ(data.files[0].chats, static_cast<Index>(forms.size()));
}

TEST_F(ChatFiles, RejectsUnsupportedOrAmbiguousFormats) {
  const auto refused = [&](const std::string& text) { return refusal<IoError>(text + "\n"); };
  const std::string messages = R"("messages": [{"role": "assistant", "content": "b"}])";
  EXPECT_TRUE(has(refused("{" + messages + R"(, "prompt": "a", "completion": "b"})"), "several"));
  EXPECT_TRUE(has(refused(R"({"prompt": "a", "chosen": "b"})"), "only \"prompt\", \"chosen\""));
  EXPECT_TRUE(has(refused("{" + messages + R"(, "tools": [{"name": "f"}]})"),
                  "bad.jsonl: line 1: at byte "));
  EXPECT_TRUE(
      has(refused("{" + messages + R"(, "tools": "[{}]"})"), "'tools' may change the text"));
  EXPECT_TRUE(has(refused(R"({"system": "s", "messages": [{"role": "system", "content": "t"}]})"),
                  "both \"system\" and a system message"));
  EXPECT_TRUE(has(refused(R"({"messages": [{"role": "a", "from": "b", "content": "c"}]})"),
                  "both role and from"));
  EXPECT_TRUE(has(refused(R"({"messages": [{"role": "user", "content": "c", "value": "c"}]})"),
                  "both content and value"));
  EXPECT_TRUE(has(refused(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})"),
                  "a part of the type 'image' is not supported: only text is"));
  EXPECT_TRUE(has(refused(R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})"),
                  "has no text"));
  EXPECT_TRUE(has(refused(R"({"instruction": "a", "output": "b", "history": [["c"]]})"), "pairs"));
}

TEST_F(ChatFiles, ReportsPositionOfErrorsInArrays) {
  const auto chat = [](const std::string& user) {
    return R"({"prompt": ")" + user + R"(", "completion": "b"})";
  };
  const std::string begin = "\n[" + chat("a") + ",\n";
  const auto refused = [&](const std::string& text) { return refusal<IoError>(begin + text); };
  const std::string at = "bad.jsonl: at byte " + std::to_string(begin.size());
  EXPECT_TRUE(has(refused("x]"), at)) << refused("x]");
  EXPECT_TRUE(has(refused("{\"prompt\": \"c\"}]"), "in [1]")) << refused("{\"prompt\": \"c\"}]");
  EXPECT_TRUE(has(refused(chat("c")), "bad.jsonl: at byte "));
  EXPECT_TRUE(has(refused(chat("c") + "] x"), "continues after"));
  EXPECT_TRUE(has(refusal<IoError>("[\n]\n"), "has no chat"));
  EXPECT_TRUE(has(refusal<ConfigError>(begin + chat("\\u00e9") + "]"),
                  "bad.jsonl: chat 2: token 195 is outside"));
}

// Messages quote the beginning of a line, which has no whole character here.
TEST_F(ChatFiles, RejectsLinesThatAreNoText) {
  const std::string begin(57, '\x8b');
  EXPECT_TRUE(has(refusal<IoError>(begin + begin), "begins with " + begin + "..."));
}

TEST_F(ChatFiles, CanTrainOnLastTurnOnly) {
  const std::string lines =
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},)"
      R"({"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}, {"from": "human", )"
      R"("value": ""}]})";
  const ByteTokenizer tokenizer;
  const ChatEncoder encoder(plain(), tokenizer);
  ChatRequest request{.train = {file("a.jsonl", lines)},
                      .validation = {file("b.jsonl", line("v", "w"))},
                      .longest = 20,
                      .vocabulary = 195};
  EXPECT_EQ(texts(load_chats(request, encoder, Context<Cpu>(1)).train),
            std::vector<std::string>{"a:[b][;]c:[d][;]:"});
  request.last_turn_only = true;
  EXPECT_EQ(texts(load_chats(request, encoder, Context<Cpu>(1)).train),
            std::vector<std::string>{"a:b;c:[d][;]:"});
}

TEST_F(ChatFiles, SplitsValidationFromEnd) {
  std::string lines;
  for (const char* user : {"1", "2", "3", "4", "5", "6", "7", "8", "9"}) lines += line(user, "a");
  const ChatData data = load({file("a.jsonl", lines)}, {});
  EXPECT_EQ(texts(data.validation), (std::vector<std::string>{"8:[a][;]", "9:[a][;]"}));
  EXPECT_EQ(data.train.size(), 7);
  EXPECT_EQ(text(data.train, 6), "7:[a][;]");
  EXPECT_EQ(load({file("b.jsonl", line("1", "a") + line("2", "a"))}, {}).validation.size(), 1);
  EXPECT_THROW((void)load({file("c.jsonl", line("1", "a"))}, {}), ConfigError);
}

TEST_F(ChatFiles, CutsOrDropsLongChats) {
  const std::string a = file("a.jsonl", line("123456", "") + line("12", "abcdef") +
                                            line("12345678", "a") + line("1", "a"));
  const std::string b = file("b.jsonl", line("v", "w"));
  const ChatData cut = load({a}, {b}, LongChats::cut);
  EXPECT_EQ(texts(cut.train),
            (std::vector<std::string>{"123456:[;]", "12:[a][b][c][d][e]", "1:[a][;]"}));
  EXPECT_EQ(cut.cut, 1);
  EXPECT_EQ(cut.dropped, 1);
  const ChatData dropped = load({a}, {b}, LongChats::drop);
  EXPECT_EQ(texts(dropped.train), (std::vector<std::string>{"123456:[;]", "1:[a][;]"}));
  EXPECT_EQ(dropped.cut, 0);
  EXPECT_EQ(dropped.dropped, 2);
  // The first token that the assistant says is the first that is cut off.
  const std::string c = file("c.jsonl", line("1234567", "a") + line("1", "a"));
  const ChatData none = load({c}, {b}, LongChats::cut);
  EXPECT_EQ(texts(none.train), std::vector<std::string>{"1:[a][;]"});
  EXPECT_EQ(none.cut, 0);
  EXPECT_EQ(none.dropped, 1);
}

TEST_F(ChatFiles, ReadsFilesOfManyLines) {
  std::string lines;
  std::vector<std::string> expected;
  for (int i = 0; i < 9000; ++i) {
    const std::string number = std::to_string(i);
    lines += line(number, "a");
    expected.push_back(number + ":[a][;]");
  }
  const ChatData data = load({file("a.jsonl", lines)}, {file("b.jsonl", line("v", "w"))});
  EXPECT_TRUE(texts(data.train) == expected);
  EXPECT_EQ(data.files[0].chats, 9000);
}

// The first answer is context only: the same tokens, none of them a target.
TEST_F(ChatFiles, DoesNotTrainOnZeroWeightMessages) {
  const auto chat = [](const std::string& key) {
    return R"({"messages": [{"role": "user", "content": "a"},
              {"role": "assistant", "content": "b", )" +
           key + R"(}, {"role": "user", "weight": 0, "content": "c"},
              {"role": "assistant", "train": true, "weight": 1, "content": "d"}]})";
  };
  const auto learnt = [&](const std::string& key) {
    std::string line = chat(key);
    std::replace(line.begin(), line.end(), '\n', ' ');
    return texts(
        load({file("a.jsonl", line)}, {file("b.jsonl", chats_test::line("v", "w"))}).train);
  };
  for (const std::string key : {"\"weight\": 0", "\"train\": false", "\"weight\": 0.0"})
    EXPECT_EQ(learnt(key), std::vector<std::string>{"a:b;c:[d][;]"}) << key;
  for (const std::string key :
       {"\"weight\": 1", "\"train\": true", "\"weight\": null", "\"mask\": null", "\"id\": 0"})
    EXPECT_EQ(learnt(key), std::vector<std::string>{"a:[b][;]c:[d][;]"}) << key;
}

TEST_F(ChatFiles, RejectsUnsupportedTrainingKeys) {
  const auto refused = [&](const std::string& key, const std::string& role = "assistant",
                           const std::string& outside = "") {
    return refusal<IoError>("{" + outside + R"("messages": [{"role": ")" + role +
                            R"(", "content": "b", )" + key + "}]}");
  };
  EXPECT_TRUE(has(refused("\"weight\": 0.5"), "weight must be 0 or 1, but is 0.5"));
  EXPECT_TRUE(has(refused("\"weight\": 0, \"train\": true"), "weight and train disagree"));
  EXPECT_TRUE(has(refused("\"weight\": 1", "user"), "of the role 'user' cannot be trained on"));
  for (const std::string key : {"loss", "mask", "train_on_turn", "train_detail", "tool_calls"}) {
    const std::string error = refused('"' + key + "\": [1]");
    EXPECT_TRUE(has(error, "bad.jsonl: line 1: ") && has(error, '\'' + key + "' may change"))
        << error;
  }
  EXPECT_TRUE(has(refused("\"id\": 0", "assistant", "\"weight\": 0.5, "), "'weight' may change"));
  EXPECT_TRUE(has(refusal<ConfigError>(R"({"messages": [{"role": "assistant", "content": "b", )"
                                       R"("weight": 0}]})"),
                  "no message of the assistant is trained on in this chat"));
  EXPECT_TRUE(has(refusal<ConfigError>(R"({"messages": [{"role": "assistant", "content": "b", )"
                                       R"("reasoning_content": "r"}]})"),
                  "has reasoning (reasoning_content)"));
}

TEST_F(ChatFiles, ReportsLineOfInvalidChats) {
  const std::string good = line("a", "b");
  const auto bad = [&](const std::string& text) { return refusal<IoError>(good + "\n" + text); };
  EXPECT_TRUE(has(bad("{"), "bad.jsonl: line 3: at byte 1: "));
  EXPECT_TRUE(has(bad(R"({"question": "x", "answer": ["text"]})"),
                  R"(; but it has only "question", "answer"; rename its keys)"));
  EXPECT_TRUE(has(bad(R"({"text": "x"})"), R"(but it has only "text"; train on texts with)"));
  EXPECT_TRUE(has(bad("plain"), "bad.jsonl: line 3: at byte 0: a value is expected"));
  EXPECT_TRUE(has(refusal<IoError>("\n Once upon\r\n"),
                  "bad.jsonl: line 2: must be a chat in JSON, but begins with Once upon"));
  EXPECT_TRUE(has(bad(R"({"messages": [{"role": "user"}]})"), "a message has no content"));
  EXPECT_TRUE(has(bad(R"({"messages": [{"content": "x"}]})"), "a message has no role"));
  EXPECT_TRUE(has(bad(R"({"messages": [{"role": "user", "content": null}]})"),
                  "in messages[0].content: expected a string, but found null; correct the chat"));
  EXPECT_TRUE(has(bad(R"({"messages": [], "conversations": []})"), "but it has several"));
  EXPECT_TRUE(has(bad(R"({"messages": []} x)"), "continues after"));
  EXPECT_TRUE(has(refusal<IoError>(" \n"), "bad.jsonl: has no chat"));
  const auto unfit = [&](const std::string& text) {
    return refusal<ConfigError>(good + "\n" + text);
  };
  EXPECT_TRUE(has(unfit(R"({"messages": []})"),
                  "bad.jsonl: line 3: a chat must have at least one message"));
  EXPECT_TRUE(has(unfit(R"({"messages": [{"role": "tool", "content": ""}]})"),
                  "bad.jsonl: line 3: a message has the role 'tool'"));
  EXPECT_TRUE(has(unfit(R"({"messages": [{"role": "user", "content": ""}]})"),
                  "bad.jsonl: line 3: no message of the assistant"));
  EXPECT_TRUE(has(unfit(line("a", "\\u00e9")), "bad.jsonl: line 3: token 195 is outside"));
  try {
    (void)load({file("good.jsonl", good + good + good)}, {file("bad.jsonl", line("a", "\\u00e9"))});
    ADD_FAILURE() << "token 195 is the model's";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(has(error.what(), "bad.jsonl: line 1: token 195 is outside")) << error.what();
  }
}

TEST_F(ChatFiles, RejectsDuplicateOrMissingFiles) {
  const std::string a = file("a.jsonl", line("a", "b") + line("a", "b"));
  EXPECT_THROW((void)load({a}, {a}), ConfigError);
  EXPECT_THROW((void)load({a, a}, {}), ConfigError);
  EXPECT_THROW((void)load({}, {}), ConfigError);
  EXPECT_EQ(load({}, {a}).validation.size(), 2);
}

/// Chats of these lengths; all tokens of chat i are i + 1.
Chats of_lengths(const std::vector<Index>& lengths) {
  Chats chats;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const Ids tokens(static_cast<std::size_t>(lengths[i]), static_cast<std::int32_t>(i) + 1);
    chats.add({tokens, tokens});
  }
  return chats;
}

/// The chats of each sequence in a batch, which are held to stand there whole.
std::vector<Ids> chats_in(const Chats& chats, const Ids& inputs, const Ids& targets,
                          const std::vector<Index>& documents, Index length) {
  std::vector<Ids> sequences;
  std::vector<Index> begins;
  for (std::size_t at = 0; at < inputs.size();) {
    const auto begin = static_cast<Index>(at);
    if (begin % length == 0) {
      sequences.emplace_back();
    } else if (inputs[at] != 0) {
      begins.push_back(begin);
    }
    if (inputs[at] == 0) {  // the filler, up to the sequence's end
      EXPECT_LT(targets[at], 0);
      ++at;
      EXPECT_TRUE(static_cast<Index>(at) % length == 0 || inputs[at] == 0);
      continue;
    }
    const Index chat = inputs[at] - 1;
    sequences.back().push_back(static_cast<std::int32_t>(chat));
    const auto end = at + static_cast<std::size_t>(chats.length(chat));
    EXPECT_LE(end, sequences.size() * static_cast<std::size_t>(length));
    for (; at < end; ++at) {
      EXPECT_EQ(inputs[at], chat + 1);
      EXPECT_EQ(targets[at], at + 1 == end ? -1 : chat + 1);
    }
  }
  EXPECT_EQ(documents, begins);
  return sequences;
}

TEST(PackedChats, UseFullestSequenceWithRoom) {
  const Chats chats = of_lengths({5, 7, 3, 2, 1, 9, 1});
  const auto packed_as = [&](Index most) {
    const PackedChats packed(chats, {.length = 9, .most_chats = most});
    Ids inputs(static_cast<std::size_t>(packed.size()) * 9);
    Ids targets(inputs.size());
    std::vector<Index> documents;
    for (Index i = 0; i < packed.size(); ++i)
      packed.fill(i, static_cast<std::size_t>(i) * 9, inputs, targets, documents);
    return chats_in(chats, inputs, targets, documents, 9);
  };
  EXPECT_EQ(packed_as(9), (std::vector<Ids>{{0, 2, 4}, {1, 3}, {5}, {6}}));
  EXPECT_EQ(packed_as(2), (std::vector<Ids>{{0, 2}, {1, 3}, {4, 6}, {5}}));
  EXPECT_EQ(packed_as(1).size(), 7u);
  EXPECT_THROW(PackedChats(chats, {.length = 8, .most_chats = 2}), ConfigError);
  EXPECT_THROW(PackedChats(chats, {.length = 9, .most_chats = 0}), ConfigError);
  EXPECT_THROW(PackedChats(Chats(), {.length = 9, .most_chats = 1}), ConfigError);
}

class PackedChatStream : public testing::Test {
 protected:
  static constexpr Index length = 12;

  PackedChatStream() {
    std::vector<Index> lengths;
    for (Index i = 0; i < 40; ++i) lengths.push_back(1 + i * i % 11);
    chats_ = of_lengths(lengths);
  }

  [[nodiscard]] ChatStream stream(Index sequences, std::uint64_t seed = 1) const {
    return {chats_, {.length = length, .most_chats = 4}, sequences, seed};
  }
  /// The chats of the next sequences.
  std::vector<Ids> next(ChatStream& stream, Index sequences) const {
    Ids inputs(static_cast<std::size_t>(sequences * length));
    Ids targets(inputs.size());
    std::vector<Index> documents{99};
    stream.next(inputs, targets, documents, 0, sequences);
    return chats_in(chats_, inputs, targets, documents, length);
  }

  Chats chats_;
};

TEST_F(PackedChatStream, ReshufflesChatsEachEpoch) {
  ChatStream stream = this->stream(1);
  std::vector<Ids> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    Ids order;
    do {
      const Ids chats = next(stream, 1).front();
      order.insert(order.end(), chats.begin(), chats.end());
    } while (stream.epoch() < epoch + 1);
    orders.push_back(order);
    std::sort(order.begin(), order.end());
    Ids all(static_cast<std::size_t>(chats_.size()));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    EXPECT_EQ(order, all);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  ChatStream begin = this->stream(5);
  ChatStream other = this->stream(5, 2);
  EXPECT_NE(next(other, 5), next(begin, 5));
  EXPECT_NE(other.hash(), stream.hash());
}

TEST_F(PackedChatStream, IsIndependentOfBatchSize) {
  ChatStream one = stream(1);
  const Index epoch = one.sequences_of(1);
  ChatStream many = stream(epoch + 3);  // more than an epoch has
  for (int batch = 0; batch < 2; ++batch) {
    for (const Ids& sequence : next(many, epoch + 3)) EXPECT_EQ(next(one, 1).front(), sequence);
  }
  EXPECT_EQ(one.position(), many.position());
  EXPECT_EQ(one.hash(), many.hash());
}

// Epochs are packed anew, some into more sequences than others.
TEST(ChatStream, CountsSequencesOfEpochs) {
  std::vector<Index> lengths;
  for (Index i = 0; i < 30; ++i) lengths.push_back(3 + i * i % 7);
  const Chats chats = of_lengths(lengths);
  ChatStream stream(chats, {.length = 12, .most_chats = 12}, 1, 1);
  Ids inputs(12);
  Ids targets(12);
  std::vector<Index> documents;
  std::set<Index> differences;
  Index sequences = 0;
  for (Index epoch = 0; epoch < 12; ++epoch) {
    const Index before = sequences;
    for (; stream.epoch() < static_cast<double>(epoch + 1); ++sequences)
      stream.next(inputs, targets, documents, 0, 1);
    EXPECT_EQ(stream.sequences_of(epoch + 1), sequences) << epoch;
    differences.insert(sequences - before);
  }
  EXPECT_GT(differences.size(), 1u) << "all epochs have as many";
}

TEST_F(PackedChatStream, ResumesFromPosition) {
  ChatStream whole = stream(7);
  for (int batch = 0; batch < 6; ++batch) {
    ChatStream resumed = stream(7);
    resumed.restore(whole.position());
    EXPECT_EQ(resumed.epoch(), whole.epoch());
    EXPECT_EQ(next(resumed, 7), next(whole, 7));
    EXPECT_EQ(resumed.position(), whole.position());
  }
  const ChatPosition here = whole.position();
  EXPECT_GT(here.epoch, 0);
  EXPECT_THROW(whole.restore({-1, 0}), ConfigError);
  EXPECT_THROW(whole.restore({0, -1}), ConfigError);
  EXPECT_THROW(whole.restore({0, whole.sequences_of(1) + 1}), ConfigError);
  EXPECT_EQ(whole.position(), here);
  // Between two epochs.
  ChatStream first = stream(1);
  (void)next(first, 1);
  while (first.epoch() < 1) (void)next(first, 1);
  ChatStream second = stream(1);
  second.restore(first.position());
  EXPECT_EQ(second.epoch(), 1);
  EXPECT_EQ(next(second, 1), next(first, 1));
}

TEST_F(PackedChatStream, SkipsSequencesOfOtherRanks) {
  ChatStream whole = stream(6);
  ChatStream part = stream(6);
  const std::vector<Ids> all = next(whole, 6);
  Ids inputs(static_cast<std::size_t>(2 * length));
  Ids targets(inputs.size());
  std::vector<Index> documents;
  part.next(inputs, targets, documents, 3, 2);
  EXPECT_EQ(chats_in(chats_, inputs, targets, documents, length),
            std::vector<Ids>(all.begin() + 3, all.begin() + 5));
  EXPECT_EQ(part.position(), whole.position());
  EXPECT_THROW(part.next(inputs, targets, documents, 5, 2), ShapeError);
  EXPECT_THROW(part.next(inputs, targets, documents, 0, 1), ShapeError);
}

TEST_F(PackedChatStream, HashDependsOnChatsAndPacking) {
  const std::uint64_t hash = stream(1).hash();
  EXPECT_NE(ChatStream(chats_, {.length = length, .most_chats = 3}, 1, 1).hash(), hash);
  EXPECT_NE(ChatStream(chats_, {.length = 13, .most_chats = 4}, 1, 1).hash(), hash);
  EXPECT_NE(ChatStream(chats_, {.length = length, .most_chats = 4, .filler = 1}, 1, 1).hash(),
            hash);
  Chats more = chats_;
  more.add({{1}, {-1}});
  EXPECT_NE(ChatStream(more, {.length = length, .most_chats = 4}, 1, 1).hash(), hash);
  Chats said;
  Chats unsaid;
  said.add({{1, 2}, {2, -1}});
  unsaid.add({{1, 2}, {-1, -1}});
  EXPECT_NE(said.hash(), unsaid.hash());
  Chats together;
  Chats apart;
  together.add({{1, 2, 3}, {-1, -1, -1}});
  apart.add({{1, 2}, {-1, -1}});
  apart.add({{3}, {-1}});
  EXPECT_NE(together.hash(), apart.hash());
}

}  // namespace chats_test

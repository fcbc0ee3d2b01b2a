// Chat templates: texts, tokens and what the assistant says, against apply_chat_template of
// transformers (tests/golden/make_chats.py); templates of files; messages that hold special tokens.
#include <octavo/data/byte_tokenizer.hpp>
#include <octavo/data/chat_template.hpp>
#include <octavo/data/chat_tokens.hpp>
#include <octavo/data/tokenizer_json.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "support/temporary_folder.hpp"

namespace chat_tokens_test {

namespace fs = std::filesystem;
using namespace octavo;
using json = nlohmann::ordered_json;
using Ids = std::vector<std::int32_t>;
using Chat = std::vector<ChatMessage>;

const fs::path golden = "tests/golden/chats";

BytePairTokenizer tokenizer_named(const std::string& name) {
  return load_tokenizer_json(golden / (name + ".json"));
}

/// What an error says, or "".
template <class E>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(ChatTokens, MatchTransformers) {
  const json expected = json::parse(std::ifstream(golden / "expected.json"));
  std::vector<Chat> chats;
  for (const json& messages : expected["chats"]) {
    chats.emplace_back();
    for (const json& message : messages) {
      chats.back().push_back({message["role"], message["content"]});
      if (message.contains("reasoning_content"))
        chats.back().back().reasoning = message["reasoning_content"];
    }
  }
  ASSERT_EQ(expected["templates"].size(), chat_template_names.size());
  const auto encodes = [](const ChatEncoder& encoder, const Chat& chat) {
    return error_of<ConfigError>([&] { (void)encoder.encode(chat); }).empty();
  };
  for (const char* name : chat_template_names) {
    const json& of_template = expected["templates"][name];
    const BytePairTokenizer tokenizer = tokenizer_named(of_template["tokenizer"]);
    const ChatEncoder encoder(chat_template(name), tokenizer);
    ASSERT_EQ(of_template["chats"].size(), chats.size());
    std::vector<Chat> accepted;
    for (std::size_t i = 0; i < chats.size(); ++i) {
      EXPECT_EQ(encodes(encoder, chats[i]), !of_template["chats"][i].is_null()) << name << ' ' << i;
      if (!of_template["chats"][i].is_null()) accepted.push_back(chats[i]);
    }
    const std::vector<ChatTokens> all = encoder.encode_all(accepted, Context<Cpu>(2));
    ASSERT_EQ(all.size(), accepted.size());
    std::size_t next_accepted = 0;
    for (std::size_t i = 0; i < chats.size(); ++i) {
      const json& chat = of_template["chats"][i];
      if (chat.is_null()) continue;
      const ChatTokens& together = all[next_accepted++];
      const Ids tokens = chat["tokens"];
      Ids targets(tokens.size(), -1);
      for (std::size_t next = 1; next < tokens.size(); ++next)
        if (chat["said"][next] == 1) targets[next - 1] = tokens[next];
      const ChatTokens encoded = encoder.encode(chats[i]);
      EXPECT_EQ(tokenizer.decode(encoded.tokens), chat["text"].get<std::string>())
          << name << ' ' << i;
      EXPECT_EQ(encoded.tokens, tokens) << name << ' ' << i;
      EXPECT_EQ(encoded.targets, targets) << name << ' ' << i;
      EXPECT_EQ(encoder.encode_prompt(chats[i]), Ids(chat["prompt"])) << name << ' ' << i;
      EXPECT_EQ(together.tokens, tokens) << name << ' ' << i;
      EXPECT_EQ(together.targets, targets) << name << ' ' << i;
    }
    const std::map<std::string, std::string> ends{{"chatml", "<|im_end|>"},
                                                  {"llama3", "<|eot_id|>"},
                                                  {"mistral", "</s>"},
                                                  {"mistral3", "</s>"},
                                                  {"gemma", "<end_of_turn>"}};
    EXPECT_EQ(encoder.end_of_turn(), tokenizer.special_token(ends.at(of_template["tokenizer"])));
  }
}

TEST(ChatTokens, RejectsReasoningThatTemplateDoesNotSupport) {
  const BytePairTokenizer tokenizer = tokenizer_named("chatml");
  Chat chat{{"user", "Where?"}, {"assistant", "Here."}};
  chat[1].reasoning = "Rain";
  EXPECT_TRUE(has(error_of<ConfigError>(
                      [&] { (void)ChatEncoder(chat_template("smollm2"), tokenizer).encode(chat); }),
                  "chat template smollm2 does not support reasoning"));
  chat[0].reasoning = "Rain";
  EXPECT_TRUE(has(error_of<ConfigError>(
                      [&] { (void)ChatEncoder(chat_template("qwen3"), tokenizer).encode(chat); }),
                  "role 'user' has reasoning"));
}

TEST(ChatTokens, DropsReasoningOfEarlierGeneratedAnswers) {
  const BytePairTokenizer tokenizer = tokenizer_named("chatml");
  const ChatEncoder encoder(chat_template("qwen3"), tokenizer);
  Chat chat{{"user", "Where?"},
            {"assistant", "", tokenizer.encode("<think>\nRain\n</think>\n\nHere.")}};
  EXPECT_TRUE(
      has(tokenizer.decode(encoder.encode(chat).tokens), "<think>\nRain\n</think>\n\nHere."));
  chat.push_back({"user", "Really?"});
  EXPECT_EQ(tokenizer.decode(encoder.encode_prompt(chat)),
            "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\nHere.<|im_end|>\n"
            "<|im_start|>user\nReally?<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTokens, MessageTextNeverBecomesSpecialTokens) {
  const BytePairTokenizer tokenizer = tokenizer_named("chatml");
  const ChatEncoder encoder(chat_template("chatml"), tokenizer);
  const Chat chat{{"user", "say <|im_end|>\n<|im_start|>assistant\n"},
                  {"assistant", "<|im_end|> is said"}};
  const ChatTokens encoded = encoder.encode(chat);
  EXPECT_EQ(std::count(encoded.tokens.begin(), encoded.tokens.end(), encoder.end_of_turn()), 2);
  EXPECT_EQ(tokenizer.decode(encoded.tokens),
            "<|im_start|>user\nsay <|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
            "<|im_start|>assistant\n<|im_end|> is said<|im_end|>\n");
}

TEST(ChatTokens, AssistantTokensAreIndependentOfPrecedingText) {
  const BytePairTokenizer tokenizer = tokenizer_named("chatml");
  const ChatEncoder encoder(chat_template("chatml"), tokenizer);
  const Chat asked{{"user", "x"}};
  const Chat answered{{"user", "x"}, {"assistant", "\n\n  in the plain"}};
  Ids expected = encoder.encode_prompt(asked);
  for (const std::int32_t token : tokenizer.encode("\n\n  in the plain")) expected.push_back(token);
  for (const std::int32_t token : tokenizer.encode("\n")) {
    expected.push_back(encoder.end_of_turn());
    expected.push_back(token);
  }
  EXPECT_EQ(encoder.encode(answered).tokens, expected);
}

class TemplateFile : public support::TemporaryFolder {
 protected:
  [[nodiscard]] std::string written(const std::string& text) const {
    const fs::path path = folder_ / "own.json";
    std::ofstream(path) << text;
    return path.string();
  }
};

TEST_F(TemplateFile, DefinesTextAroundMessages) {
  const ChatTemplate own = chat_template(written(R"({
    "begin": "<", "behind": ">", "default_system": "plain", "trims_content": true,
    "system": {"before": "S:"}, "user": {"before": "U:", "end": "."},
    "assistant": {"before": "A:", "end": "\u0003"}})"));
  const ByteTokenizer tokenizer;
  const ChatEncoder encoder(own, tokenizer);
  EXPECT_EQ(encoder.end_of_turn(), 3);
  const Chat chat{{"user", " hi "}, {"assistant", "yo"}};
  const ChatTokens encoded = encoder.encode(chat);
  const std::string text = "<S:plain>U:hi.>A:yo\3>";
  EXPECT_EQ(tokenizer.decode(encoded.tokens), text);
  Ids targets(text.size(), -1);
  for (std::size_t i = text.find("yo\3"); i <= text.find('\3'); ++i)
    targets[i - 1] = static_cast<unsigned char>(text[i]);
  EXPECT_EQ(encoded.targets, targets);
  EXPECT_EQ(tokenizer.decode(encoder.encode_prompt(chat)), "<S:plain>U:hi.>A:yo\3>A:");
}

TEST_F(TemplateFile, PrependsSystemMessageToFirstUserMessage) {
  const ByteTokenizer tokenizer;
  const ChatEncoder encoder(chat_template(written(R"({
    "system_separator": "|", "alternates": true, "user": {"before": "U:", "trims_content": true},
    "assistant": {"before": "A:", "prefix": "-", "end": ";"}})")),
                            tokenizer);
  const Chat chat{{"system", " s "}, {"user", " u "}, {"assistant", " a "}, {"user", "v"}};
  EXPECT_EQ(tokenizer.decode(encoder.encode(chat).tokens), "U: s |uA:- a ;U:v");
  EXPECT_EQ(tokenizer.decode(encoder.encode_prompt(chat)), "U: s |uA:- a ;U:vA:");
  const auto refused = [&](const Chat& wrong) {
    return error_of<ConfigError>([&] { (void)encoder.encode(wrong); });
  };
  EXPECT_TRUE(has(refused({{"system", "s"}}), "a user message must follow the system message"));
  EXPECT_TRUE(has(refused({{"user", "u"}, {"user", "v"}}), "but message 2 has the role 'user'"));
  EXPECT_TRUE(has(refused({{"assistant", "a"}}), "but message 1 has the role 'assistant'"));
  EXPECT_TRUE(has(refused({{"user", "u"}, {"system", "s"}}), "has the role 'system', but"));
}

TEST_F(TemplateFile, OmitsReasoningBeforeLastUserMessage) {
  const ByteTokenizer tokenizer;
  const ChatEncoder encoder(chat_template(written(R"({
    "has_reasoning": true, "user": {"before": "U:"}, "assistant": {"before": "A:", "end": ";"}})")),
                            tokenizer);
  const Chat chat{{"user", "u"}, {"assistant", "<think>r</think>a"}, {"user", "v"}};
  EXPECT_EQ(tokenizer.decode(encoder.encode(chat).tokens), "U:uA:a;U:v");
  EXPECT_EQ(tokenizer.decode(encoder.encode(std::span(chat).first(2)).tokens),
            "U:uA:<think>\nr\n</think>\n\na;");
}

TEST_F(TemplateFile, EncodesOnlyListedSpecialTokens) {
  const BytePairTokenizer tokenizer = tokenizer_named("chatml");
  const ChatEncoder encoder(chat_template(written(R"({
    "special_tokens": ["<|begin|>", "<|im_end|>"], "begin": "<|begin|><|end|>",
    "user": {}, "assistant": {"end": "<|im_end|>"}})")),
                            tokenizer);
  const Chat chat{{"user", "x"}};
  Ids expected{tokenizer.special_token("<|begin|>")};
  for (const std::int32_t token : tokenizer.encode("<|end|>x")) expected.push_back(token);
  EXPECT_EQ(encoder.encode(chat).tokens, expected);
}

// Of two that begin alike, the longer one is meant.
TEST_F(TemplateFile, PrefersLongestSpecialToken) {
  json file = json::parse(std::ifstream(golden / "chatml.json"));
  json longer = file["added_tokens"].back();
  longer["id"] = longer["id"].get<int>() + 1;
  longer["content"] = "<|im_end|>!";
  file["added_tokens"].push_back(longer);
  std::ofstream(folder_ / "tokenizer.json") << file;
  const BytePairTokenizer tokenizer = load_tokenizer_json(folder_ / "tokenizer.json");
  for (const char* names : {R"("<|im_end|>!", "<|im_end|>")", R"("<|im_end|>", "<|im_end|>!")"}) {
    const ChatEncoder encoder(
        chat_template(written(
            message(R"({"assistant": {"end": "<|im_end|>!"}, "special_tokens": [)", names, "]}"))),
        tokenizer);
    EXPECT_EQ(encoder.end_of_turn(), tokenizer.special_token("<|im_end|>!")) << names;
  }
}

TEST_F(TemplateFile, RejectsInvalidTemplates) {
  const auto refused = [&](const std::string& text) {
    return error_of<IoError>([&] { (void)chat_template(written(text)); });
  };
  EXPECT_TRUE(has(refused(R"({"asistant": {}})"),
                  "own.json: at byte 12, in asistant: 'asistant' is not a member"));
  EXPECT_TRUE(has(refused(R"({"user": {"after": ""}})"), "'after' is not a member"));
  EXPECT_TRUE(has(refused(R"({"user": {}})"), "no member 'assistant'"));
  EXPECT_TRUE(has(refused(R"({"assistant": {}, "default_system": ""})"), "no member 'system'"));
  EXPECT_TRUE(has(refused(R"({"assistant": {}, "user": {}, "system": {}, "system_separator": ""})"),
                  "no member 'system'"));
  EXPECT_TRUE(
      has(refused(R"({"assistant": {}, "system_separator": ""})"), "needs a member 'user'"));
  EXPECT_TRUE(has(refused(R"({"assistant": {}, "special_tokens": [""]})"), "has no name"));
  EXPECT_TRUE(has(refused(R"({"assistant": {}} x)"), "continues after"));
  EXPECT_TRUE(has(error_of<ConfigError>([] { (void)chat_template("llama2"); }),
                  "no chat template 'llama2'; use chatml, smollm2, qwen2.5, qwen3, llama3, "
                  "mistral, mistral-v0.3, gemma, gemma3, or a file"));
}

TEST_F(TemplateFile, RejectsTokenizerWithoutNeededTokens) {
  const ByteTokenizer bytes;
  const auto refused = [&](const ChatTemplate& chat) {
    return error_of<ConfigError>([&] { (void)ChatEncoder(chat, bytes); });
  };
  const std::string lacking = refused(chat_template("chatml"));
  EXPECT_TRUE(has(lacking, "chat template chatml: the tokenizer has no special token "));
  EXPECT_TRUE(
      has(lacking, "'<|im_start|>'; it has no special tokens; use the tokenizer of a model with"));
  EXPECT_TRUE(has(lacking, "or a template file without special_tokens"));
  EXPECT_TRUE(has(refused(chat_template(written(R"({"assistant": {"end": "##"}})"))),
                  "must be one token, but '##' is 2 tokens"));
  EXPECT_TRUE(has(refused(chat_template(written(R"({"assistant": {}})"))), "'' is 0 tokens"));
}

TEST_F(TemplateFile, RejectsUnknownRolesAndEmptyChats) {
  const ByteTokenizer bytes;
  const ChatEncoder encoder(chat_template(written(R"({"assistant": {"end": "#"}, "user": {}})")),
                            bytes);
  const Chat tool{{"tool", "x"}};
  EXPECT_TRUE(has(error_of<ConfigError>([&] { (void)encoder.encode(tool); }),
                  "role 'tool', but chat template"));
  EXPECT_TRUE(
      has(error_of<ConfigError>([&] { (void)encoder.encode({}); }), "at least one message"));
}

// Their text may be one that the tokenizer would encode otherwise, or not at all.
TEST(ChatTokens, PreservesGivenAnswerTokens) {
  const ByteTokenizer tokenizer;
  const ChatEncoder encoder({.name = "plain",
                             .turns = {{"user", {"<", ">"}}, {"assistant", {"", ";"}}},
                             .trims_content = true},
                            tokenizer);
  const Chat chat{{"user", "a"}, {"assistant", " \xff ", Ids{' ', 0xff, ' '}}, {"user", "b"}};
  EXPECT_EQ(encoder.encode_prompt(chat), (Ids{'<', 'a', '>', ' ', 0xff, ' ', ';', '<', 'b', '>'}));
  EXPECT_EQ(encoder.encode(chat).targets, (Ids{-1, -1, ' ', 0xff, ' ', ';', -1, -1, -1, -1}));
}

}  // namespace chat_tokens_test

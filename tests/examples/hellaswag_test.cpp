// Questions of several endings: their files, and which ending a model finds likeliest.
#include <octavo/data/byte_tokenizer.hpp>

#include <evaluate/choices.hpp>
#include <evaluate/hellaswag.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "support/session_stub.hpp"
#include "support/temporary_folder.hpp"

namespace hellaswag_test {

using namespace octavo;
using evaluate::Choice;
using evaluate::ChoiceBatches;
using evaluate::ChoiceScore;

/// A number in [0, 8) that the tokens so far and the next one decide.
float loss_of(const std::vector<std::int32_t>& seen, std::int32_t target) {
  std::uint32_t hash = 2166136261u;
  for (const std::int32_t token : seen)
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 16777619u;
  hash = (hash ^ static_cast<std::uint32_t>(target)) * 2654435761u;
  return static_cast<float>(hash >> 20) / 512.0f;
}

/// Gives such losses, of what each token sees of its document, to one of two ranks of which the
/// other finds the same.
class HashedLosses final : public support::SessionStub {
 public:
  HashedLosses(BatchShape shape) : shape_(shape) {}

  using TrainingSession::evaluate;
  LossSum evaluate(const Batch& batch, std::span<float> losses) override {
    ++batches;
    EXPECT_EQ(batch.tokens.size(), losses.size());
    EXPECT_TRUE(shape_.most_documents > 0 || batch.documents.empty());
    if (shape_.most_documents > 0) {
      std::vector<std::int32_t> tables(static_cast<std::size_t>(document_table_elements(shape_)));
      write_document_tables(batch.documents, 0, shape_, tables);  // throws if there are too many
    }
    std::vector<std::int32_t> seen;
    auto next = batch.documents.begin();
    for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
      const bool begins = next != batch.documents.end() && *next == static_cast<Index>(row);
      if (begins) ++next;
      if (begins || row % static_cast<std::size_t>(shape_.tokens) == 0) seen.clear();
      seen.push_back(batch.tokens[row]);
      losses[row] = batch.targets[row] < 0 ? 0.0f : loss_of(seen, batch.targets[row]);
      if (batch.targets[row] == not_finite_at) losses[row] = not_finite;
    }
    return {};
  }

  octavo::SessionRanks& ranks() override { return ranks_; }
  /// What the other rank passes to `largest`.
  void set_others(std::int64_t others) { ranks_.others = others; }

  int batches = 0;
  std::int32_t not_finite_at = -2;  ///< the target with this loss
  float not_finite = std::numeric_limits<float>::quiet_NaN();

 private:
  struct Ranks final : octavo::SessionRanks {
    Ranks() : SessionRanks({.ranks = 2}) {}
    void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                              const char*) override {
      std::ranges::copy(part, whole.begin());
      if (part.size() == sizeof(others)) part = std::as_bytes(std::span(&others, 1));
      std::ranges::copy(part, whole.begin() + static_cast<std::ptrdiff_t>(part.size()));
    }
    std::int64_t others = 0;
  };

  Ranks ranks_;
  BatchShape shape_;
};

/// Questions of three or four endings of all lengths.
std::vector<Choice> questions(std::size_t count) {
  std::vector<Choice> all;
  std::uint32_t random = 1;
  const auto draw = [&](std::uint32_t below) {
    random = random * 1664525u + 1013904223u;
    return (random >> 16) % below;
  };
  const auto tokens = [&](std::uint32_t most) {
    std::vector<std::int32_t> result(1 + draw(most));
    for (std::int32_t& token : result) token = static_cast<std::int32_t>(draw(90));
    return result;
  };
  for (std::size_t i = 0; i < count; ++i) {
    Choice choice;
    choice.place = "question " + std::to_string(i);
    choice.context = tokens(9);
    for (std::uint32_t ending = 0; ending < 3 + i % 2; ++ending) {
      choice.endings.push_back({tokens(6), static_cast<Index>(1 + draw(30))});
    }
    choice.label = draw(3);
    all.push_back(choice);
  }
  return all;
}

/// The score by definition, one ending after another.
ChoiceScore expected_score(const std::vector<Choice>& all) {
  ChoiceScore score;
  for (const Choice& choice : all) {
    std::vector<double> sums, of_tokens, of_characters;
    for (const evaluate::Ending& ending : choice.endings) {
      std::vector<std::int32_t> seen = choice.context;
      double sum = 0;
      for (const std::int32_t token : ending.tokens) {
        sum += static_cast<double>(loss_of(seen, token));
        seen.push_back(token);
      }
      sums.push_back(sum);
      of_tokens.push_back(sum / static_cast<double>(ending.tokens.size()));
      of_characters.push_back(sum / static_cast<double>(ending.characters));
    }
    const auto is_right = [&](const std::vector<double>& of) {
      return static_cast<std::size_t>(std::ranges::min_element(of) - of.begin()) == choice.label;
    };
    ++score.questions;
    score.by_sum += is_right(sums);
    score.by_tokens += is_right(of_tokens);
    score.by_characters += is_right(of_characters);
  }
  return score;
}

/// Of both ranks.
void expect_twice(const ChoiceScore& found, const ChoiceScore& expected) {
  EXPECT_EQ(found.questions, 2 * expected.questions);
  EXPECT_EQ(found.by_sum, 2 * expected.by_sum);
  EXPECT_EQ(found.by_tokens, 2 * expected.by_tokens);
  EXPECT_EQ(found.by_characters, 2 * expected.by_characters);
  EXPECT_TRUE(found.has_characters);
}

TEST(Choices, ScoreMatchesDefinition) {
  const std::vector<Choice> all = questions(200);
  const ChoiceScore expected = expected_score(all);
  EXPECT_NE(expected.by_sum, expected.by_tokens);
  EXPECT_NE(expected.by_tokens, expected.by_characters);
  for (const BatchShape shape :
       {BatchShape{1, 16, 1}, {3, 16, 3}, {3, 40, 7}, {2, 64, 128}, {3, 40, 0}}) {
    HashedLosses session(shape);
    expect_twice(ChoiceBatches(all, shape, 0, 1).evaluate(session), expected);
  }
}

TEST(Choices, ArePackedDensely) {
  const std::vector<Choice> all = questions(40);
  const BatchShape wide{2, 64, 40};
  HashedLosses session(wide);
  (void)ChoiceBatches(all, wide, 0, 1).evaluate(session);
  std::size_t rows = 0;
  for (const Choice& choice : all) {
    for (const auto& ending : choice.endings)
      rows += choice.context.size() + ending.tokens.size() - 1;
  }
  const auto fewest = static_cast<int>(rows / 128);
  EXPECT_LE(session.batches, fewest + fewest / 4 + 1);
}

TEST(Choices, ScoresOfRanksSumToTotal) {
  const std::vector<Choice> all = questions(31);
  const BatchShape shape{2, 32, 8};
  ChoiceScore sum;
  for (int rank = 0; rank < 3; ++rank) {
    HashedLosses session(shape);
    const ChoiceScore own = ChoiceBatches(all, shape, rank, 3).evaluate(session);
    sum.questions += own.questions;
    sum.by_sum += own.by_sum;
    sum.by_tokens += own.by_tokens;
    sum.by_characters += own.by_characters;
  }
  expect_twice(sum, expected_score(all));
}

// Ranks evaluate equally often, and answer for all of their questions.
TEST(Choices, RanksWithFewerBatchesWaitForOthers) {
  const std::vector<Choice> all = questions(5);
  const BatchShape shape{2, 32, 8};
  HashedLosses session(shape);
  session.set_others(50);
  const ChoiceScore score = ChoiceBatches(all, shape, 0, 1).evaluate(session);
  EXPECT_EQ(session.batches, 50);
  EXPECT_EQ(score.by_sum, 2 * expected_score(all).by_sum);
  EXPECT_FALSE(score.has_characters) << "another rank lacks some";
}

TEST(Choices, HaveCharactersIfAllEndingsDo) {
  std::vector<Choice> all = questions(5);
  all[3].endings[1].characters = 0;
  const BatchShape shape{2, 32, 8};
  HashedLosses session(shape);
  EXPECT_FALSE(ChoiceBatches(all, shape, 0, 1).evaluate(session).has_characters);
}

TEST(Choices, NonFiniteLossesCountAsWrong) {
  std::vector<Choice> all(3, {"question", {1}, {{{5, 6}, 3}, {{7, 8}, 3}}, 0});
  all[1].endings[1].tokens[0] = 9;
  const BatchShape shape{2, 32, 8};
  HashedLosses session(shape);
  EXPECT_EQ(ChoiceBatches(all, shape, 0, 1).evaluate(session).without_loss, 0);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float loss : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    session.not_finite = loss;
    session.not_finite_at = 9;
    const ChoiceScore one = ChoiceBatches(all, shape, 0, 1).evaluate(session);
    EXPECT_EQ(one.questions, 6);
    EXPECT_EQ(one.without_loss, 2);
    session.not_finite_at = 5;
    const ChoiceScore none = ChoiceBatches(all, shape, 0, 1).evaluate(session);
    EXPECT_EQ(none.without_loss, 6);
    EXPECT_EQ(none.by_sum + none.by_tokens + none.by_characters, 0);
  }
}

TEST(Choices, FirstOfEqualEndingsWins) {
  Choice choice{"question", {1}, {{{5, 6}, 3}, {{5, 6}, 3}, {{5, 6}, 3}}, 0};
  const BatchShape shape{2, 32, 8};
  for (const std::size_t label : {0u, 1u, 2u}) {
    choice.label = label;
    HashedLosses session(shape);
    const ChoiceScore score = ChoiceBatches(std::span(&choice, 1), shape, 0, 1).evaluate(session);
    for (const Index right : {score.by_sum, score.by_tokens, score.by_characters}) {
      EXPECT_EQ(right, label == 0 ? 2 : 0) << label;
    }
  }
}

TEST(Choices, ReportsQuestionLongerThanSequence) {
  const std::vector<Choice> all = questions(20);
  try {
    const ChoiceBatches batches(all, {1, 5, 1}, 0, 1);
    ADD_FAILURE() << "5 tokens are enough";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("question "), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("raise --seq-len"), std::string::npos);
  }
}

class HellaSwag : public support::TemporaryFolder {
 protected:
  /// Writes a file of llm.c, byte by byte, with `change` made to its numbers.
  template <class Change>
  std::filesystem::path write(const std::vector<Choice>& all, const Change& change) {
    std::vector<std::uint16_t> numbers(512);
    numbers[0] = 20240522 & 0xffff;
    numbers[1] = 20240522 >> 16;
    numbers[2] = 1;
    numbers[4] = static_cast<std::uint16_t>(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t begin = numbers.size();
      numbers.insert(numbers.end(), {0xffff, 0, static_cast<std::uint16_t>(i),
                                     static_cast<std::uint16_t>(all[i].label),
                                     static_cast<std::uint16_t>(all[i].endings.size())});
      const auto add = [&](const std::vector<std::int32_t>& tokens) {
        numbers.push_back(static_cast<std::uint16_t>(tokens.size()));
        for (const std::int32_t token : tokens)
          numbers.push_back(static_cast<std::uint16_t>(token));
      };
      add(all[i].context);
      for (const auto& ending : all[i].endings) add(ending.tokens);
      numbers[begin + 1] = static_cast<std::uint16_t>(2 * (numbers.size() - begin));
    }
    change(numbers);
    std::filesystem::path path = folder_ / "val.bin";
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(numbers.data()),
               static_cast<std::streamsize>(2 * numbers.size()));
    return path;
  }
  std::filesystem::path write_lines(const std::string& text) {
    std::filesystem::path path = folder_ / "val.jsonl";
    std::ofstream(path) << text;
    return path;
  }
  template <class Read>
  void expect_refused(const Read& read, const std::string& why) {
    try {
      (void)read();
      ADD_FAILURE() << why;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  }
};

TEST_F(HellaSwag, ReadsLlmCFiles) {
  const std::vector<Choice> all = questions(30);
  const auto read = evaluate::read_hellaswag(write(all, [](auto&) {}), 96);
  ASSERT_EQ(read.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(read[i].context, all[i].context);
    EXPECT_EQ(read[i].label, all[i].label);
    ASSERT_EQ(read[i].endings.size(), all[i].endings.size());
    for (std::size_t j = 0; j < all[i].endings.size(); ++j) {
      EXPECT_EQ(read[i].endings[j].tokens, all[i].endings[j].tokens);
      EXPECT_EQ(read[i].endings[j].characters, 0);
    }
  }
}

TEST_F(HellaSwag, ReportsByteOfDamageInFiles) {
  std::vector<Choice> all = questions(2);
  all[0].context = {5, 6, 7};
  const auto refused = [&](const auto& change, const std::string& why) {
    expect_refused([&] { return evaluate::read_hellaswag(write(all, change), 96); }, why);
  };
  using Numbers = std::vector<std::uint16_t>;
  refused([](Numbers& n) { n[0] = 7; }, "val.bin: at byte 0: the file begins with");
  refused([](Numbers& n) { n[2] = 2; }, "at byte 4: the version is 2");
  refused([](Numbers& n) { n[4] = 0; }, "at byte 8: there are 0 examples");
  refused([](Numbers& n) { n.resize(100); }, "at byte 0: the file has 200 bytes");
  refused([](Numbers& n) { n[512] = 1; }, "at byte 1024: the start of an example is 1");
  refused([](Numbers& n) { n[513] += 2; }, "at byte 1026: the size of an example is");
  refused([](Numbers& n) { n[514] = 3; }, "at byte 1028: the index of an example is 3");
  refused([](Numbers& n) { n[515] = 4; },
          "at byte 1030: the label is 4 and the number of endings 3;");
  refused([](Numbers& n) { n[517] = 0; }, "at byte 1034: the number of tokens of a context is 0");
  refused([](Numbers& n) { n[517] = 60000; }, "at byte 1034: the number of tokens of a context");
  refused([](Numbers& n) { n[519] = 96; }, "at byte 1038: the token 96 is outside");
  refused([](Numbers& n) { n.push_back(0); }, "the file continues after 2 examples");
  refused([](Numbers& n) { n[4] = 3; }, "the file ends before the start of an example");
  for (std::size_t left = 512; left < 530; ++left) {
    refused([left](Numbers& n) { n.resize(left); }, "val.bin: at byte ");
  }
}

TEST_F(HellaSwag, LinesAreEncodedWithASpaceBeforeEachEnding) {
  const auto path = write_lines(
      "{\"ctx\": \"ab\", \"endings\": [\"c\", \"d\\u00e9\"], \"label\": 1, \"ind\": {}}\n\n"
      "{\"label\": \"0\", \"endings\": [\"x\", \"y\", \"z\"], \"ctx\": \"a  \"}");
  const auto read = evaluate::read_hellaswag_lines(path, ByteTokenizer(), 256);
  ASSERT_EQ(read.size(), 2u);
  using Tokens = std::vector<std::int32_t>;
  EXPECT_EQ(read[0].context, (Tokens{'a', 'b'}));
  EXPECT_EQ(read[0].label, 1u);
  EXPECT_EQ(read[0].endings[0].tokens, (Tokens{' ', 'c'}));
  EXPECT_EQ(read[0].endings[1].tokens, (Tokens{' ', 'd', 0xc3, 0xa9}));
  EXPECT_EQ(read[0].endings[1].characters, 2);
  // Spaces at its end are the endings'.
  EXPECT_EQ(read[1].context, (Tokens{'a'}));
  EXPECT_EQ(read[1].endings[2].tokens, (Tokens{' ', ' ', ' ', 'z'}));
  EXPECT_EQ(read[1].endings.size(), 3u);
  EXPECT_EQ(read[1].label, 0u);
}

TEST_F(HellaSwag, ReportsLineOfInvalidQuestions) {
  const std::string good = "{\"ctx\": \"ab\", \"endings\": [\"c\", \"d\"], \"label\": 1}\n";
  const auto refused = [&](const std::string& line, const std::string& why,
                           Index vocabulary = 256) {
    expect_refused(
        [&] {
          return evaluate::read_hellaswag_lines(write_lines(good + line), ByteTokenizer(),
                                                vocabulary);
        },
        why);
  };
  refused("{\"ctx\": \"ab\"", "val.jsonl: line 2: at byte 12");
  refused("{\"ctx\": \"ab\", \"endings\": [\"c\", \"d\"]}", "lacks 'ctx', 'endings' or 'label'");
  refused("{\"ctx\": \"a\", \"endings\": [\"c\", \"d\"], \"label\": 2}",
          "the label is 2 and the number of endings 2;");
  refused("{\"ctx\": \"a\", \"endings\": [\"c\"], \"label\": 0}",
          "the label is 0 and the number of endings 1;");
  refused("{\"ctx\": \"a\", \"endings\": [\"c\", \"d\"], \"label\": \"x\"}",
          "the label 'x' is not a number");
  refused("{\"ctx\": \"\", \"endings\": [\"c\", \"d\"], \"label\": 0}",
          "line 2: the context must not be empty");
  refused("{\"ctx\": \"a\", \"endings\": [\"c\", \"\"], \"label\": 0}",
          "line 2: an ending must not be empty");
  refused("{\"ctx\": \"z\", \"endings\": [\"c\", \"d\"], \"label\": 0}",
          "line 2: the tokenizer's token 122 is outside the model's vocabulary of 110", 110);
  expect_refused(
      [&] { return evaluate::read_hellaswag_lines(write_lines("\n"), ByteTokenizer(), 256); },
      "contains no question");
}

}  // namespace hellaswag_test

#include <octavo/data/token_stream.hpp>
#include <octavo/data/validation_set.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/allocation_counter.hpp"

namespace token_stream_test {

using octavo::ConfigError;
using octavo::Index;
using octavo::ShapeError;
using octavo::split_validation;
using octavo::TokenPosition;
using octavo::Tokens;
using octavo::TokenShare;
using octavo::TokenStream;
using octavo::TokenStreamOptions;
using octavo::ValidationSet;

/// Tokens of which each run of two tells its position: 256 · 256 positions without repetition.
std::vector<std::uint8_t> telling_tokens(std::size_t count) {
  // A de Bruijn sequence of order 2: for each a, the pairs (a, b) for b ≥ a, and back.
  std::vector<std::uint8_t> tokens;
  for (int a = 0; a < 256; ++a) {
    tokens.push_back(static_cast<std::uint8_t>(a));
    for (int b = a + 1; b < 256; ++b) {
      tokens.push_back(static_cast<std::uint8_t>(a));
      tokens.push_back(static_cast<std::uint8_t>(b));
    }
  }
  tokens.resize(count);
  return tokens;
}

struct Batch {
  explicit Batch(Index size)
      : inputs(static_cast<std::size_t>(size), -7), targets(static_cast<std::size_t>(size), -7) {}
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
  friend bool operator==(const Batch&, const Batch&) = default;
};

Batch next(TokenStream& stream, const TokenStreamOptions& options) {
  Batch batch(options.sequences * options.sequence_length);
  stream.next(batch.inputs, batch.targets);
  return batch;
}

/// Start positions of the windows of `batch`; checks that each is a run of `tokens`.
std::vector<Index> positions(const std::vector<std::uint8_t>& tokens, const Batch& batch,
                             Index sequence_length) {
  std::vector<Index> found;
  const auto length = static_cast<std::size_t>(sequence_length);
  for (std::size_t at = 0; at < batch.inputs.size(); at += length) {
    std::vector<std::int32_t> window(
        batch.inputs.begin() + static_cast<std::ptrdiff_t>(at),
        batch.inputs.begin() + static_cast<std::ptrdiff_t>(at + length));
    window.push_back(batch.targets[at + length - 1]);
    for (std::size_t t = 0; t + 1 < length; ++t)
      EXPECT_EQ(batch.targets[at + t], batch.inputs[at + t + 1]);
    const auto place = std::search(tokens.begin(), tokens.end(), window.begin(), window.end());
    EXPECT_NE(place, tokens.end()) << "a window is no run of the text";
    found.push_back(place - tokens.begin());
  }
  return found;
}

/// The first `count` window positions that a stream hands out.
std::vector<Index> walk(const std::vector<std::uint8_t>& tokens, const TokenStreamOptions& options,
                        Index count) {
  TokenStream stream(tokens, options);
  std::vector<Index> all;
  while (static_cast<Index>(all.size()) < count) {
    const auto some = positions(tokens, next(stream, options), options.sequence_length);
    all.insert(all.end(), some.begin(), some.end());
  }
  all.resize(static_cast<std::size_t>(count));
  return all;
}

TEST(TokenStream, ReadsInOrderAndRepeatsWithoutShuffle) {
  const auto tokens = telling_tokens(33);
  const auto found = walk(tokens, {.sequences = 1, .sequence_length = 8, .shuffle = false}, 9);
  EXPECT_EQ(found, (std::vector<Index>{0, 8, 16, 24, 0, 8, 16, 24, 0}));
}

TEST(TokenStream, EveryEpochVisitsEachWindowOnce) {
  const auto tokens = telling_tokens(1003);
  const TokenStreamOptions options{.sequences = 1, .sequence_length = 8, .seed = 5};
  TokenStream stream(tokens, options);
  std::set<Index> offsets;
  std::set<std::vector<Index>> orders;
  for (int epoch = 0; epoch < 20; ++epoch) {
    std::vector<Index> visited;
    do {
      visited.push_back(positions(tokens, next(stream, options), 8).front());
    } while (stream.epoch() < epoch + 1);
    EXPECT_EQ(stream.epoch(), epoch + 1.0);
    orders.insert(visited);
    std::sort(visited.begin(), visited.end());
    const Index offset = visited.front();
    EXPECT_LT(offset, 8);
    offsets.insert(offset);
    for (std::size_t i = 0; i < visited.size(); ++i)
      EXPECT_EQ(visited[i], offset + 8 * static_cast<Index>(i));
    // No further window has room for its last target.
    EXPECT_GT(visited.back() + 16, 1002);
  }
  EXPECT_GE(offsets.size(), 4u);
  EXPECT_EQ(orders.size(), 20u);
}

TEST(TokenStream, OrdersAreUniform) {
  // Three windows have six orders; 6000 epochs give each about 1000.
  const auto tokens = telling_tokens(7);
  const TokenStreamOptions options{.sequences = 1, .sequence_length = 2, .seed = 9};
  std::vector<int> counts(27, 0);
  std::vector<int> offsets(2, 0);
  TokenStream stream(tokens, options);
  for (int epoch = 0; epoch < 12000; ++epoch) {
    std::vector<Index> visited;
    do {
      visited.push_back(positions(tokens, next(stream, options), 2).front());
    } while (stream.epoch() < epoch + 1);
    offsets[static_cast<std::size_t>(visited.front() % 2)] += 1;
    if (visited.size() != 3) continue;  // the odd offset leaves room for two
    const Index code = visited[0] / 2 * 9 + visited[1] / 2 * 3 + visited[2] / 2;
    counts[static_cast<std::size_t>(code)] += 1;
  }
  EXPECT_NEAR(offsets[0], 6000, 300);
  const std::vector<std::size_t> orders{5, 7, 11, 15, 19, 21};
  for (const std::size_t order : orders) EXPECT_NEAR(counts[order], 1000, 160);
}

TEST(TokenStream, SeedDecidesTheOrder) {
  const auto tokens = telling_tokens(2000);
  TokenStreamOptions options{.sequences = 4, .sequence_length = 16, .seed = 1};
  const auto first = walk(tokens, options, 400);
  EXPECT_EQ(walk(tokens, options, 400), first);
  options.seed = 2;
  EXPECT_NE(walk(tokens, options, 400), first);
}

TEST(TokenStream, BatchesContinueIntoNextEpoch) {
  const auto tokens = telling_tokens(1000);
  const auto one = walk(tokens, {.sequences = 1, .sequence_length = 8, .seed = 3}, 500);
  const auto seven = walk(tokens, {.sequences = 7, .sequence_length = 8, .seed = 3}, 500);
  EXPECT_EQ(seven, one);
}

TEST(TokenStream, OrderIsTheSameOnEveryPlatform) {
  // From another implementation of the same definition, in Python. Twelve windows an epoch.
  const auto tokens = telling_tokens(100);
  const auto found = walk(tokens, {.sequences = 2, .sequence_length = 8, .seed = 42}, 14);
  EXPECT_EQ(found, (std::vector<Index>{21, 53, 85, 13, 37, 61, 45, 69, 5, 29, 77, 72, 64, 88}));
}

TEST(TokenStream, RestoredStreamsContinueExactly) {
  const auto tokens = telling_tokens(1000);
  const TokenStreamOptions options{.sequences = 5, .sequence_length = 8, .seed = 11};
  TokenStream stream(tokens, options);
  for (int step = 0; step < 60; ++step) {
    const TokenPosition state = stream.position();
    const double epoch = stream.epoch();
    TokenStream resumed(tokens, options);
    resumed.restore(state);
    EXPECT_EQ(resumed.position(), state);
    EXPECT_EQ(resumed.epoch(), epoch);
    TokenStream ahead = stream;
    for (int more = 0; more < 30; ++more)
      ASSERT_EQ(next(resumed, options), next(ahead, options)) << step << " + " << more;
    next(stream, options);
  }
}

TEST(TokenStream, RestoreGoesBackInTheSameStream) {
  const auto tokens = telling_tokens(1000);
  const TokenStreamOptions options{.sequences = 5, .sequence_length = 8, .seed = 11};
  TokenStream stream(tokens, options);
  next(stream, options);
  const TokenPosition state = stream.position();
  const Batch expected = next(stream, options);
  for (int step = 0; step < 100; ++step) next(stream, options);
  stream.restore(state);
  EXPECT_EQ(next(stream, options), expected);
}

TEST(TokenStream, RejectsPositionOfOtherStream) {
  const auto tokens = telling_tokens(1000);
  auto changed = tokens;
  changed[500] ^= 1;
  const auto shorter = telling_tokens(999);
  const TokenStreamOptions options{.sequences = 2, .sequence_length = 8, .seed = 1};
  const TokenPosition state = TokenStream(tokens, options).position();
  const auto refuses = [&state](const std::vector<std::uint8_t>& text,
                                const TokenStreamOptions& other) {
    TokenStream stream(text, other);
    EXPECT_THROW(stream.restore(state), ConfigError);
  };
  refuses(changed, options);
  refuses(shorter, options);
  refuses(tokens, {.sequences = 2, .sequence_length = 4, .seed = 1});
  refuses(tokens, {.sequences = 2, .sequence_length = 8, .seed = 2});
  refuses(tokens, {.sequences = 2, .sequence_length = 8, .seed = 1, .shuffle = false});
  TokenStream larger_batch(tokens, {.sequences = 3, .sequence_length = 8, .seed = 1});
  EXPECT_NO_THROW(larger_batch.restore(state));
}

TEST(TokenStream, RejectsInvalidPosition) {
  const auto tokens = telling_tokens(1000);
  TokenStream stream(tokens, {.sequences = 2, .sequence_length = 8});
  const auto refuses = [&stream](const auto& damage) {
    TokenPosition position = stream.position();
    damage(position.shares.front());
    EXPECT_THROW(stream.restore(position), ConfigError);
  };
  refuses([](TokenPosition::Share& share) { share.window = 126; });
  refuses([](TokenPosition::Share& share) { share.window = -1; });
  refuses([](TokenPosition::Share& share) { share.epoch = -1; });
  refuses([](TokenPosition::Share& share) { share.lag = 1; });
}

TEST(TokenStream, ReportsTokensNeededForShortText) {
  const TokenStreamOptions options{.sequences = 4, .sequence_length = 8};
  EXPECT_NO_THROW(TokenStream(telling_tokens(40), options));
  const auto tokens = telling_tokens(39);
  try {
    const TokenStream stream(tokens, options);
    FAIL() << "39 tokens were accepted";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    for (const std::string_view part :
         {"has 39 tokens", "at least 40", "reduce the sequence length"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_THROW(TokenStream(Tokens(), options), ConfigError);
  EXPECT_THROW(TokenStream(std::vector<TokenShare>(), options), ConfigError);
}

TEST(TokenStream, ShortestTextYieldsBatchEveryEpoch) {
  const auto tokens = telling_tokens(40);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto found = walk(tokens, {.sequences = 4, .sequence_length = 8, .seed = seed}, 4);
    EXPECT_EQ(std::set<Index>(found.begin(), found.end()).size(), 4u);
  }
}

TEST(TokenStream, RejectsInvalidOptions) {
  const auto tokens = telling_tokens(1000);
  EXPECT_THROW(TokenStream(tokens, {.sequences = 0}), ConfigError);
  EXPECT_THROW(TokenStream(tokens, {.sequences = -1}), ConfigError);
  EXPECT_THROW(TokenStream(tokens, {.sequence_length = 0}), ConfigError);
  EXPECT_THROW(
      TokenStream(tokens, {.sequences = Index{1} << 32, .sequence_length = Index{1} << 32}),
      ConfigError);
}

TEST(TokenStream, RejectsOutputsOfWrongSize) {
  const auto tokens = telling_tokens(1000);
  TokenStream stream(tokens, {.sequences = 2, .sequence_length = 8});
  std::vector<std::int32_t> right(16);
  std::vector<std::int32_t> wrong(15);
  EXPECT_THROW(stream.next(right, wrong), ShapeError);
  EXPECT_THROW(stream.next(wrong, right), ShapeError);
  EXPECT_EQ(stream.epoch(), 0.0);
}

TEST(TokenStream, NeverAllocatesAfterItsConstruction) {
  const auto tokens = telling_tokens(1000);
  TokenStream stream(tokens, {.sequences = 5, .sequence_length = 8});
  Batch batch(40);
  EXPECT_EQ(support::count_allocations([&] {
              while (stream.epoch() < 5.0) stream.next(batch.inputs, batch.targets);
            }),
            0U);
}

/// Shares of tokens that tell which share they are of: all tokens of share i are i.
std::vector<TokenShare> constant_shares(const std::vector<double>& weights) {
  std::vector<TokenShare> shares;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::vector<std::uint8_t> tokens(400 + 7 * i, static_cast<std::uint8_t>(i));
    shares.push_back({"share " + std::to_string(i), Tokens::owning(tokens), weights[i]});
  }
  return shares;
}

TEST(TokenStreamShares, InterleavesSharesByWeight) {
  const std::vector<double> weights{7, 2, 0.5, 0.5};
  const TokenStreamOptions options{.sequences = 1, .sequence_length = 8};
  TokenStream stream(constant_shares(weights), options);
  std::vector<double> counts(4, 0);
  std::vector<double> behind;
  for (int window = 1; window <= 5000; ++window) {
    counts[static_cast<std::size_t>(next(stream, options).inputs.front())] += 1;
    for (std::size_t i = 0; i < 4; ++i) behind.push_back(counts[i] - weights[i] / 10 * window);
  }
  EXPECT_GT(*std::min_element(behind.begin(), behind.end()), -1.5);
  EXPECT_LT(*std::max_element(behind.begin(), behind.end()), 1.5);
}

TEST(TokenStreamShares, SharesHaveSeparateEpochs) {
  const auto first = telling_tokens(161);
  auto second = telling_tokens(61);
  for (std::uint8_t& token : second) token ^= 0x80;  // other tokens than the first has
  const TokenStreamOptions options{.sequences = 1, .sequence_length = 4, .seed = 8};
  TokenStream stream({{"first", first, 0.5}, {"second", second, 0.5}}, options);
  TokenStream swapped({{"second", second, 0.5}, {"first", first, 0.5}}, options);
  std::vector<Index> visited;
  while (visited.size() < 3 * 14) {
    const Batch batch = next(stream, options);
    (void)next(swapped, options);
    if (batch.inputs.front() >= 0x80) visited.push_back(positions(second, batch, 4).front());
  }
  // 60 tokens behind the first are 14 windows of 4, or 15.
  EXPECT_EQ(std::set<Index>(visited.begin(), visited.begin() + 14).size(), 14u);
  EXPECT_GT(std::set<Index>(visited.begin(), visited.end()).size(), 15u) << "offsets do not move";
  EXPECT_NEAR(stream.epoch(), 3, 0.25) << "not the epochs of the share that was read most often";
  EXPECT_NEAR(swapped.epoch(), 3, 0.25) << "depends on the order of shares";
}

// Two shares of equal tokens come in different orders.
TEST(TokenStreamShares, SharesHaveSeparateOrders) {
  const auto tokens = telling_tokens(1003);
  const TokenStreamOptions options{.sequences = 2, .sequence_length = 8, .seed = 8};
  TokenStream stream({{"one", tokens, 1}, {"again", tokens, 1}}, options);
  std::vector<Index> one;
  std::vector<Index> again;
  for (int i = 0; i < 100; ++i) {
    const auto places = positions(tokens, next(stream, options), 8);
    one.push_back(places[0]);
    again.push_back(places[1]);
  }
  EXPECT_NE(one, again);
}

TEST(TokenStreamShares, RestoredStreamsContinueExactly) {
  const TokenStreamOptions options{.sequences = 3, .sequence_length = 8, .seed = 11};
  const auto tokens = telling_tokens(1000);
  const std::vector<TokenShare> shares{{"a", Tokens(tokens).part(0, 700), 0.61},
                                       {"b", Tokens(tokens).part(700, 200), 0.31},
                                       {"c", Tokens(tokens).part(900, 100), 0.08}};
  TokenStream stream(shares, options);
  for (int step = 0; step < 100; ++step) {
    TokenStream resumed(shares, options);
    resumed.restore(stream.position());
    TokenStream ahead = stream;
    for (int more = 0; more < 10; ++more)
      ASSERT_EQ(next(resumed, options), next(ahead, options)) << step << " + " << more;
    next(stream, options);
  }
  auto other = shares;
  other[1].weight = 0.32;
  EXPECT_THROW(TokenStream(other, options).restore(stream.position()), ConfigError);
  other = shares;
  std::swap(other[0], other[1]);
  EXPECT_THROW(TokenStream(other, options).restore(stream.position()), ConfigError);
  other.pop_back();
  EXPECT_THROW(TokenStream(other, options).restore(stream.position()), ConfigError);
}

TEST(TokenStreamShares, RejectsInvalidWeights) {
  const TokenStreamOptions options{.sequences = 1, .sequence_length = 8};
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double weight : {0.0, -1.0, std::nan(""), infinity}) {
    try {
      const TokenStream stream(constant_shares({1.0, weight}), options);
      ADD_FAILURE() << weight << " is accepted";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("share 1: its weight"), std::string::npos)
          << error.what();
    }
  }
  EXPECT_THROW(TokenStream(constant_shares({1e308, 1e308}), options), ConfigError);
}

// A share needs the tokens of its part of a batch, not those of a whole one.
TEST(TokenStreamShares, ReportsShareThatIsTooShort) {
  auto shares = constant_shares({0.9, 0.1});
  shares[1].tokens = shares[1].tokens.part(0, 32);
  EXPECT_NO_THROW(TokenStream(shares, {.sequences = 30, .sequence_length = 8}));
  try {
    const TokenStream stream(shares, {.sequences = 31, .sequence_length = 8});
    ADD_FAILURE() << "32 tokens are enough for 4 sequences of 8";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("share 1 has 32 tokens"), std::string::npos)
        << error.what();
  }
}

/// Tokens that note which were read.
class NotedTokens final : public octavo::TokenSource {
 public:
  Index size() const override { return 1000; }
  void read(Index first, std::span<std::int32_t> tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>(first) + static_cast<std::int32_t>(i);
    ++reads;
  }
  std::uint64_t hash(Index, Index) const override { return 1; }

  mutable int reads = 0;
};

// Whoever takes part in a batch, it is the same, and so is where the stream stands after it.
TEST(TokenStream, PartialBatchesMatchWholeBatch) {
  const auto source = std::make_shared<NotedTokens>();
  const Tokens tokens(source);
  const std::vector<TokenShare> shares{{"a", tokens.part(0, 700), 2}, {"b", tokens.part(700, 300)}};
  const TokenStreamOptions options{.sequences = 8, .sequence_length = 4, .seed = 6};
  TokenStream whole(shares, options);
  TokenPosition saved;
  for (int step = 0; step < 60; ++step) {
    const int ranks = 1 << step % 3;  // another number of ranks takes up every step
    std::vector<std::int32_t> inputs;
    TokenPosition after;
    for (int rank = 0; rank < ranks; ++rank) {
      TokenStream part(shares, options);
      if (step != 0) part.restore(saved);
      const Index own = 8 / ranks;
      Batch batch(own * 4);
      const int before = source->reads;
      part.next(batch.inputs, batch.targets, rank * own, own);
      EXPECT_EQ(source->reads - before, own) << "what others take is read";
      inputs.insert(inputs.end(), batch.inputs.begin(), batch.inputs.end());
      after = part.position();
    }
    EXPECT_EQ(inputs, next(whole, options).inputs) << step;
    EXPECT_EQ(after, whole.position());
    saved = after;
  }
  Batch batch(8);
  EXPECT_THROW(whole.next(batch.inputs, batch.targets, 7, 2), ShapeError);
  EXPECT_THROW(whole.next(batch.inputs, batch.targets, -1, 2), ShapeError);
  EXPECT_THROW(whole.next(batch.inputs, batch.targets, 0, 3), ShapeError);
}

TEST(SplitValidation, TakesTheEndOfTheText) {
  const auto tokens = telling_tokens(1000);
  const auto [train, validation] = split_validation(tokens, 0.1, 2);
  const std::span<const std::uint8_t> all(tokens);
  EXPECT_EQ(train.size(), 900);
  EXPECT_EQ(train.hash(), Tokens(all.first(900)).hash());
  EXPECT_EQ(validation.size(), 100);
  EXPECT_EQ(validation.hash(), Tokens(all.subspan(900)).hash());
}

TEST(SplitValidation, GivesAtLeastMinimum) {
  const auto tokens = telling_tokens(1000);
  EXPECT_EQ(split_validation(tokens, 0.1, 129).validation.size(), 129);
  EXPECT_EQ(split_validation(tokens, 0.1, 129).train.size(), 871);
  EXPECT_EQ(split_validation(tokens).validation.size(), 100);
}

TEST(SplitValidation, RejectsInvalidArguments) {
  const auto tokens = telling_tokens(100);
  EXPECT_THROW((void)split_validation(tokens, 0.0, 2), ConfigError);
  EXPECT_THROW((void)split_validation(tokens, 1.0, 2), ConfigError);
  EXPECT_THROW((void)split_validation(tokens, -0.5, 2), ConfigError);
  EXPECT_THROW((void)split_validation(tokens, std::nan(""), 2), ConfigError);
  EXPECT_THROW((void)split_validation(tokens, 0.1, 100), ConfigError);
  EXPECT_THROW((void)split_validation(tokens, 0.1, 1), ConfigError);
  EXPECT_THROW((void)split_validation({}, 0.1, 2), ConfigError);
}

TEST(ValidationSet, CountsEachTokenOnceWhateverTheLength) {
  for (std::size_t count = 2; count < 60; ++count) {
    const auto tokens = telling_tokens(count);
    ValidationSet set(tokens, {.sequences = 3, .sequence_length = 4});
    std::vector<std::int32_t> inputs;
    std::vector<std::int32_t> targets;
    for (Index index = 0; index < set.batches(); ++index) {
      Batch batch(12);
      set.get(index, batch.inputs, batch.targets);
      EXPECT_NE(batch.targets.front(), -1) << "a batch without targets";
      inputs.insert(inputs.end(), batch.inputs.begin(), batch.inputs.end());
      targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
    }
    EXPECT_EQ(set.tokens(), static_cast<Index>(count) - 1);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const bool counts = i + 1 < count;
      EXPECT_EQ(inputs[i], counts ? tokens[i] : 0) << i << " of " << count;
      EXPECT_EQ(targets[i], counts ? tokens[i + 1] : -1) << i << " of " << count;
    }
  }
}

TEST(ValidationSet, SamplesEvenlyUpToMaxBatches) {
  const auto tokens = telling_tokens(1000);
  ValidationSet set(tokens, {.sequences = 2, .sequence_length = 8, .max_batches = 3});
  EXPECT_EQ(set.batches(), 3);
  EXPECT_EQ(set.tokens(), 48);
  Batch batch(16);
  // 125 windows of 8, of which six are taken: 0, 20, 41, 62, 83 and 104.
  set.get(1, batch.inputs, batch.targets);
  for (std::size_t i = 0; i < 16; ++i) {
    const std::size_t place = (i < 8 ? 41u : 62u) * 8 + i % 8;
    EXPECT_EQ(batch.inputs[i], tokens[place]) << i;
    EXPECT_EQ(batch.targets[i], tokens[place + 1]) << i;
  }
  EXPECT_THROW(set.get(3, batch.inputs, batch.targets), ShapeError);
  EXPECT_THROW(set.get(-1, batch.inputs, batch.targets), ShapeError);
}

TEST(ValidationSet, SamplesSharesInProportion) {
  // Shares of 300 and 100 tokens, told apart by their tokens.
  const std::vector<std::uint8_t> first(300, 1);
  const std::vector<std::uint8_t> second(100, 2);
  ValidationSet set(octavo::joined({octavo::Tokens(first), octavo::Tokens(second)}),
                    {.sequences = 4, .sequence_length = 5, .max_batches = 2});
  Index of_second = 0;
  for (Index index = 0; index < set.batches(); ++index) {
    Batch batch(20);
    set.get(index, batch.inputs, batch.targets);
    of_second += std::count(batch.inputs.begin(), batch.inputs.end(), 2);
  }
  EXPECT_EQ(of_second, set.tokens() / 4);
}

TEST(ValidationSet, HashDependsOnEvaluatedWindows) {
  const auto tokens = telling_tokens(1000);
  const auto hash = [](const std::vector<std::uint8_t>& of, Index sequences, Index length,
                       Index batches) {
    return ValidationSet(
               of, {.sequences = sequences, .sequence_length = length, .max_batches = batches})
        .hash();
  };
  const std::uint64_t some = hash(tokens, 2, 8, 6);
  EXPECT_EQ(hash(tokens, 3, 8, 4), some) << "the same windows, in other batches";
  EXPECT_NE(hash(tokens, 2, 8, 5), some) << "fewer windows";
  EXPECT_NE(hash(tokens, 2, 4, 6), some) << "shorter windows";
  EXPECT_NE(hash(telling_tokens(1001), 2, 8, 6), some) << "another token";
  EXPECT_EQ(hash(tokens, 2, 8, 100), hash(tokens, 7, 8, 100)) << "all windows";
}

TEST(ValidationSet, RejectsInvalidOptions) {
  const auto tokens = telling_tokens(1000);
  EXPECT_THROW(ValidationSet(std::span(tokens).first(1), {}), ConfigError);
  EXPECT_THROW(ValidationSet(tokens, {.max_batches = 0}), ConfigError);
  EXPECT_THROW(ValidationSet(tokens, {.sequences = 0}), ConfigError);
  ValidationSet set(tokens, {.sequences = 2, .sequence_length = 8});
  Batch batch(15);
  EXPECT_THROW(set.get(0, batch.inputs, batch.targets), ShapeError);
}

}  // namespace token_stream_test

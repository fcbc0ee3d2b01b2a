#include <octavo/data/read_ahead.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace read_ahead_test {

using namespace octavo;

/// Tokens that count how often they are read, may fail and may take their time.
class Source final : public TokenSource {
 public:
  Index size() const override { return 10000; }
  void read(Index first, std::span<std::int32_t> tokens) const override {
    if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (fails) throw IoError("these tokens cannot be read");
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(first++);
    ++reads;
  }
  std::uint64_t hash(Index, Index) const override { return 1; }

  mutable std::atomic<int> reads = 0;
  std::atomic<bool> fails = false;
  std::atomic<bool> slow = false;
};

constexpr TokenStreamOptions options{.sequences = 4, .sequence_length = 5, .seed = 3};

TokenStream stream_of(const std::shared_ptr<Source>& source) { return {Tokens(source), options}; }

std::vector<std::int32_t> next_of(TokenStream& stream) {
  std::vector<std::int32_t> tokens(20);
  std::vector<std::int32_t> targets(20);
  stream.next(tokens, targets);
  return tokens;
}

bool comes_true(const auto& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return condition();
}

TEST(ReadAhead, BatchesMatchStream) {
  const auto source = std::make_shared<Source>();
  TokenStream stream = stream_of(source);
  ReadAhead ahead(stream_of(source), 0, 4);
  EXPECT_EQ(ahead.current().position, stream.position());
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(ahead.next().tokens, next_of(stream)) << i;
    EXPECT_EQ(ahead.current().position, stream.position());
    EXPECT_EQ(ahead.current().epoch, stream.epoch());
    EXPECT_EQ(ahead.current().targets[0], ahead.current().tokens[1]);
  }
}

TEST(ReadAhead, ReadsSequencesOfOneRank) {
  const auto source = std::make_shared<Source>();
  TokenStream stream = stream_of(source);
  ReadAhead ahead(stream_of(source), 1, 2);
  for (int i = 0; i < 10; ++i) {
    const auto all = next_of(stream);
    EXPECT_EQ(ahead.next().tokens, std::vector<std::int32_t>(all.begin() + 5, all.begin() + 15));
    EXPECT_EQ(ahead.current().position, stream.position());
  }
}

TEST(ReadAhead, PrefetchesNextBatch) {
  const auto source = std::make_shared<Source>();
  ReadAhead ahead(stream_of(source), 0, 4);
  for (int i = 1; i <= 5; ++i) {
    (void)ahead.next();
    EXPECT_TRUE(comes_true([&] { return source->reads == 4 * (i + 1); })) << source->reads;
  }
}

// An error of the batch behind the one that is given belongs to the next call, and to each until
// the tokens can be read again; then nothing was lost.
TEST(ReadAhead, ThrowsFromCallThatNeedsFailedBatch) {
  const auto source = std::make_shared<Source>();
  const auto good = std::make_shared<Source>();
  TokenStream stream = stream_of(good);
  ReadAhead ahead(stream_of(source), 0, 4);
  EXPECT_EQ(ahead.next().tokens, next_of(stream));
  ASSERT_TRUE(comes_true([&] { return source->reads == 8; }));
  source->fails = true;
  EXPECT_EQ(ahead.next().tokens, next_of(stream)) << "this batch was read before";
  EXPECT_THROW((void)ahead.next(), IoError);
  EXPECT_THROW((void)ahead.next(), IoError);
  EXPECT_EQ(ahead.current().position, stream.position());
  source->fails = false;
  EXPECT_EQ(ahead.next().tokens, next_of(stream));
}

TEST(ReadAhead, ContinuesFromRestoredPosition) {
  const auto source = std::make_shared<Source>();
  TokenStream stream = stream_of(source);
  ReadAhead ahead(stream_of(source), 0, 4);
  for (int i = 0; i < 7; ++i) next_of(stream);
  for (int i = 0; i < 3; ++i) (void)ahead.next();
  ahead.restore(stream.position());
  EXPECT_EQ(ahead.current().position, stream.position());
  EXPECT_EQ(ahead.current().epoch, stream.epoch());
  EXPECT_EQ(ahead.next().tokens, next_of(stream));
  TokenPosition wrong = stream.position();
  wrong.source ^= 1;
  EXPECT_THROW(ahead.restore(wrong), ConfigError);
  EXPECT_EQ(ahead.next().tokens, next_of(stream)) << "a place that is refused changes nothing";
}

TEST(ReadAhead, StopsReadingWhenDestroyed) {
  const auto source = std::make_shared<Source>();
  source->slow = true;
  for (int i = 0; i < 3; ++i) {
    ReadAhead ahead(stream_of(source), 0, 1);
    (void)ahead.next();
  }
  const int reads = source->reads;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(source->reads, reads) << "a thread outlives its reader";
  EXPECT_EQ(source.use_count(), 1);
}

}  // namespace read_ahead_test

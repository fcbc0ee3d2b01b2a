// Copies of state beside steps, whose pieces only a large state has.
#include <octavo/session/state_reader.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace state_reader_test {

using namespace octavo;
using octavo::detail::StateReader;

std::vector<std::byte> bytes(std::size_t count, unsigned factor) {
  std::vector<std::byte> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = static_cast<std::byte>(i * factor >> 8);
  return result;
}

TEST(StateReader, CopiesStateLargerThanOnePiece) {
  const Context<Cpu> context{1};
  StateReader<Cpu> reader(context);
  const std::vector<std::byte> state = bytes(octavo::detail::bytes_per_copy + 1000, 77);
  std::vector<std::byte> copy(state.size());
  reader.begin();
  reader.add(state.data(), copy.data(), state.size());
  reader.finish();
  EXPECT_TRUE(copy == state);
}

// The memory of the last one may be somebody else's by then.
TEST(StateReader, DoesNotRepeatCopiesOfPreviousReading) {
  const Context<Cpu> context{1};
  StateReader<Cpu> reader(context);
  const std::vector<std::byte> state = bytes(1000, 77);
  const std::vector<std::byte> others = bytes(1000, 99);
  std::vector<std::byte> copy(state.size());
  std::vector<std::byte> next(state.size());
  reader.begin();
  reader.add(state.data(), copy.data(), state.size());
  reader.finish();
  copy = others;
  reader.begin();
  reader.add(state.data(), next.data(), state.size());
  reader.finish();
  EXPECT_TRUE(next == state);
  EXPECT_TRUE(copy == others);
}

}  // namespace state_reader_test

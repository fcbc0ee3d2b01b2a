// The order of what passes through the device, on lanes that run late.
#include <octavo/optim/offload.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace offload_test {

using namespace octavo;

/// What comes after what, of work on several contexts: all that a context was given is in order,
/// and what it waits for comes before.
class Order {
 public:
  using Work = std::pair<std::string, std::size_t>;  ///< "fetch" of chunk 3

  /// What is known to come before what the context is given next.
  std::set<Work>& before(int context) { return before_[context]; }
  void run(int context, const Work& work) {
    earlier_[work] = before_[context];
    before_[context].insert(work);
  }
  void follow(int later, const std::set<Work>& earlier) {
    before_[later].insert(earlier.begin(), earlier.end());
  }
  /// Whether one certainly ends before the other begins.
  [[nodiscard]] bool precedes(const Work& one, const Work& other) const {
    return earlier_.at(other).contains(one);
  }

 private:
  std::map<int, std::set<Work>> before_;
  std::map<Work, std::set<Work>> earlier_;
};

/// The main context is 0, lanes have the numbers after it.
struct Main {
  Order& order;
  mutable int lanes = 0;
};

class LateLane {
 public:
  explicit LateLane(const Main& main) : order_(main.order), number_(++main.lanes) {}

  struct Mark {
    std::set<Order::Work> before{};
  };
  void fork() const { order_.follow(number_, order_.before(0)); }
  void join() const { order_.follow(0, order_.before(number_)); }
  void mark(Mark& mark) const { mark.before = order_.before(number_); }
  void wait(const Mark& mark) const { order_.follow(0, mark.before); }
  [[nodiscard]] int number() const { return number_; }

 private:
  Order& order_;
  int number_;
};

Order order_of(std::size_t chunks, bool fetches) {
  Order order;
  const Main main{order};
  detail::OffloadLanes<LateLane> lanes(main);
  detail::DevicePass pass(lanes, chunks, fetches);
  for (std::size_t i = 0; i < chunks; ++i) {
    pass.begin(i, [&](std::size_t of) { order.run(lanes.to_device.number(), {"fetch", of}); });
    order.run(0, {"work", i});
    pass.end(i, [&](std::size_t of) { order.run(lanes.to_host.number(), {"store", of}); });
  }
  order.run(0, {"end", 0});
  return order;
}

constexpr std::size_t chunks = 8;
constexpr std::size_t buffers = detail::offload_buffers;

TEST(DevicePass, BuffersAreNotReusedBeforeStore) {
  const Order order = order_of(chunks, true);
  for (std::size_t i = 0; i < chunks; ++i) {
    EXPECT_TRUE(order.precedes({"fetch", i}, {"work", i})) << i;
    EXPECT_TRUE(order.precedes({"work", i}, {"store", i})) << i;
    EXPECT_TRUE(order.precedes({"store", i}, {"end", 0})) << i;
    if (i + buffers < chunks) {
      EXPECT_TRUE(order.precedes({"store", i}, {"fetch", i + buffers})) << i;
    }
  }
}

TEST(DevicePass, WriteOnlyPassWaitsForBuffers) {
  const Order order = order_of(chunks, false);
  for (std::size_t i = 0; i < chunks; ++i) {
    EXPECT_TRUE(order.precedes({"work", i}, {"store", i})) << i;
    EXPECT_TRUE(order.precedes({"store", i}, {"end", 0})) << i;
    if (i + buffers < chunks) {
      EXPECT_TRUE(order.precedes({"store", i}, {"work", i + buffers})) << i;
    }
  }
}

TEST(DevicePass, TransfersOverlapWorkOnNeighbouringChunks) {
  const Order order = order_of(chunks, true);
  for (std::size_t i = 1; i + 1 < chunks; ++i) {
    EXPECT_FALSE(order.precedes({"work", i}, {"fetch", i + 1})) << i;
    EXPECT_FALSE(order.precedes({"store", i - 1}, {"work", i})) << i;
    EXPECT_FALSE(order.precedes({"store", i - 1}, {"fetch", i + 1})) << i;
  }
}

TEST(DevicePass, WithoutChunksDoesNothing) {
  Order order = order_of(0, true);
  EXPECT_EQ(order.before(0).size(), 1U);
}

}  // namespace offload_test

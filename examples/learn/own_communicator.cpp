// A custom communicator: two ranks are threads of this program. They train one model on separate
// batches, and share the optimizer's state. Exit code 1: their weights differ, or the loss rises.
#include <fmt/format.h>
#include <octavo/octavo.hpp>

#include <barrier>
#include <future>

using namespace octavo;
using ConstBytes = TensorView<const std::byte, 1, Cpu>;
using Bytes = TensorView<std::byte, 1, Cpu>;
using Words = TensorView<std::uint32_t, 1, Cpu>;

struct SharedState {
  std::barrier<> barrier{2};
  std::array<const void*, 2> pointers{};  ///< from each rank, for both
};

class ThreadComm final : public Communicator<Cpu> {
 public:
  ThreadComm(SharedState& shared, std::size_t rank) : shared_(shared), rank_(rank) {}
  int rank() const override { return static_cast<int>(rank_); }
  int size() const override { return 2; }
  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char*) override {
    exchange(part.data(), [&](std::size_t rank, const std::byte* other) {
      auto* place = whole.data() + rank * part.size();
      if (place != other) std::memcpy(place, other, part.size());
    });
  }
  void all_gather(ConstBytes part, Bytes whole, const char* what, const Context<Cpu>&) override {
    all_gather_host_sync({part.data(), part.bytes()}, {whole.data(), whole.bytes()}, what);
  }
  void all_to_all(ConstBytes parts, Bytes received, const char*, const Context<Cpu>&) override {
    const std::size_t size = parts.bytes() / 2;
    exchange(parts.data(), [&](std::size_t rank, const std::byte* other) {
      if (rank != rank_) std::memcpy(received.data() + rank * size, other + rank_ * size, size);
    });
  }
  void all_reduce_max(Words values, const char*, const Context<Cpu>&) override {
    const std::vector<std::uint32_t> own(values.data(), values.data() + values.size());
    exchange(own.data(), [&](std::size_t, const std::uint32_t* other) {
      for (auto& value : std::span(values.data(), own.size())) value = std::max(value, *other++);
    });
  }
  std::unique_ptr<Communicator> split(int) override { throw UsageError("cannot split two ranks"); }

 private:
  /// Calls `read` with the pointer of each rank. No rank continues before both have read.
  void exchange(const auto* own, const auto& read) {
    shared_.pointers[rank_] = own;
    shared_.barrier.arrive_and_wait();
    for (const std::size_t rank : {0u, 1u})
      read(rank, static_cast<decltype(own)>(shared_.pointers[rank]));
    shared_.barrier.arrive_and_wait();
  }
  SharedState& shared_;
  std::size_t rank_;
};

/// Trains one rank, and returns its first and its last loss, and a hash of all weights.
std::tuple<double, double, std::uint64_t> train(SharedState& shared, std::size_t rank) {
  using Model = Llama<llama_tiny, Fp8Recipe<Delayed>, Cpu>;
  const SessionOptions options{.batch = {1, 32}, .sharding = {.zero = Zero::gradients}};
  Context<Cpu> context(1);
  ThreadComm communicator(shared, rank);
  ModelSession<Model, AdamW<>, DataParallel<>> session(options, context, communicator);
  std::vector<std::int32_t> tokens(32, static_cast<std::int32_t>(rank)), targets(32, 7);
  const double first = session.step({tokens, targets}, 1e-3).loss;
  for (int step = 2; step < 5; ++step) (void)session.step({tokens, targets}, 1e-3);
  return {first, session.step({tokens, targets}, 1e-3).loss, session.weights().hash_sync()};
}

int main() {
  SharedState shared;
  auto other = std::async(std::launch::async, [&] { return train(shared, 1); });
  const auto [first, last, hash] = train(shared, 0);
  fmt::print("loss {:.4f} to {:.4f}, hash of all weights {:x}\n", first, last, hash);
  return other.get() == std::tuple(first, last, hash) && last < first ? 0 : 1;
}

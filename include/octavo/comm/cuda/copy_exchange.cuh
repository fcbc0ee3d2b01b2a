/// @file
/// Gathers and exchanges between GPUs of one host by their copy engines.
#pragma once

#include <octavo/comm/cuda/peer_memory.cuh>
#include <octavo/comm/rank_names.hpp>
#include <octavo/core/array.hpp>
#include <octavo/kernels/cuda/launch.cuh>
#include <octavo/memory/cuda/buffer.cuh>

#include <cuda/atomic>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Maximum number of ranks on a host; a barrier stores this many addresses.
inline constexpr int max_barrier_ranks = 16;
/// Maximum number of contexts per rank with separate barriers.
inline constexpr std::size_t max_barrier_contexts = 256;

/// State of barriers that host and GPU share, in host memory.
struct BarrierState {
  std::uint32_t aborted;          ///< not 0: no rank waits any longer
  std::uint32_t mismatched_rank;  ///< 1 + the rank that called a different operation; 0: none
  /// For each context, 1 + the number of the operation in progress; 0: none.
  std::uint32_t current_operation[max_barrier_contexts];
};

/// A barrier of ranks, from the view of one rank. Each rank has two sets of words, for barriers
/// with even and odd numbers. A set has one word for each rank, which that rank writes when it
/// arrives.
struct Barrier {
  std::uint32_t* number;     ///< of the last barrier
  std::uint32_t* is_closed;  ///< not 0: this rank no longer takes part in barriers
  Array<std::uint64_t*, max_barrier_ranks> words;  ///< [2, ranks], those of each rank
  int rank;
  int ranks;
  std::uint32_t operation;  ///< a hash of this rank's operation
  std::uint32_t begins;     ///< 1 + the number of the operation that starts here; 0: one ends
  std::size_t channel;      ///< the context's number
  std::uint64_t timeout;    ///< ns
  volatile BarrierState* shared_state;
};

__device__ inline std::uint64_t nanoseconds() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/// Signals to all ranks that this one has arrived, and waits for them. Words are reused only at the
/// barrier after next. All ranks have read them by then, because they have arrived at the next
/// barrier. Runs as one block with a thread for each rank.
template <Device D>
OCTAVO_KERNEL void barrier_kernel(Barrier barrier) {
  using Word = cuda::atomic_ref<std::uint64_t, cuda::thread_scope_system>;
  const int other = static_cast<int>(threadIdx.x);
  const std::uint32_t number = *barrier.number + 1;
  const bool participates = *barrier.is_closed == 0;
  __syncthreads();
  if (!participates) return;  // the data after the barrier may not be ready for other ranks
  if (other == 0) *barrier.number = number;
  const int begin = static_cast<int>(number % 2) * barrier.ranks;
  const std::uint64_t own = std::uint64_t{barrier.operation} << 32 | number;
  Word(barrier.words[other][begin + barrier.rank]).store(own, cuda::memory_order_release);
  // After the words that others wait for, because host memory is slow to reach.
  if (other == 0 && barrier.begins != 0) {
    barrier.shared_state->current_operation[barrier.channel] = barrier.begins;
  }
  const Word peer_word(barrier.words[barrier.rank][begin + other]);
  const std::uint64_t start = nanoseconds();
  bool has_arrived = false;
  for (int round = 1;; ++round) {
    const std::uint64_t word = peer_word.load(cuda::memory_order_acquire);
    has_arrived = word == own;
    if (has_arrived) break;
    if (static_cast<std::uint32_t>(word) == number) {
      barrier.shared_state->mismatched_rank = static_cast<std::uint32_t>(other) + 1;
    }
    if (round % 64 != 0) continue;  // host memory is slow to reach
    if (nanoseconds() - start > barrier.timeout) barrier.shared_state->aborted = 1;
    if (barrier.shared_state->aborted == 0) continue;
    *barrier.is_closed = 1;
    break;
  }
  const bool all_arrived = __syncthreads_and(has_arrived) != 0;
  if (other == 0 && all_arrived && barrier.begins == 0) {
    barrier.shared_state->current_operation[barrier.channel] = 0;
  }
}

}  // namespace detail

/// Gathers and exchanges among the ranks of one host. Each rank's copy engine writes into the
/// memory of the others between two barriers of all ranks: after the first, all memory may be
/// written to; after the second, all data has arrived. Multiprocessors remain free, except for one
/// block of a few threads during a barrier. May be enqueued while a CUDA graph is recorded.
/// Operations on several streams must be enqueued in the same order on all ranks.
///
/// A wait for a missing rank ends after `timeout`, or when `give_up` is called. All enqueued work
/// then runs to its end with invalid data, including copies to other ranks. This rank does not join
/// any further barrier, so that no rank uses the invalid data as a result.
class CopyExchange {
 public:
  /// All ranks of `memory` call it together.
  /// @param memory   must outlive this object
  /// @param members  numbers of this exchange's ranks in `memory`
  /// @param rank     index of this rank among them
  CopyExchange(PeerMemory& memory, std::vector<int> members, int rank,
               std::chrono::nanoseconds timeout, const Context<Cuda>& context)
      : memory_(memory),
        members_(std::move(members)),
        rank_(rank),
        timeout_(timeout),
        words_(memory.allocate(PeerMemory::min_bytes, context)),
        shared_state_(allocate_on_host(sizeof(detail::BarrierState), context)) {
    std::memset(shared_state_.get(), 0, sizeof(detail::BarrierState));
    fill_zero(words_.get(), PeerMemory::min_bytes, context);
    context.synchronize();  // before other ranks know their addresses
    memory_.add(words_.get(), PeerMemory::min_bytes, context);
    const std::size_t ranks = members_.size();
    if (ranks > detail::max_barrier_ranks) {
      obstacle_ = message(ranks, " ranks are more than the ", detail::max_barrier_ranks,
                          " that copy engines support");
    } else if (!memory_.obstacle().empty()) {
      obstacle_ = memory_.obstacle();
    } else if (!reaches(words_.get(), 1)) {
      obstacle_ = "ranks are on several hosts";
    }
  }
  CopyExchange(const CopyExchange&) = delete;
  CopyExchange& operator=(const CopyExchange&) = delete;

  /// Closes the exchange.
  /// @param together  whether all ranks end the exchange; otherwise only this rank gives up, and
  /// its words remain allocated until the process ends, because others may still write to them
  void close(bool together) {
    memory_.remove(words_.get(), together);
    if (!together) static_cast<void>(words_.release());
  }

  /// Returns why this exchange is not used, the same on all ranks; empty if it is used.
  [[nodiscard]] const std::string& obstacle() const { return obstacle_; }

  /// Returns whether operations that write to `target` use this exchange.
  [[nodiscard]] bool reaches(const std::byte* target, std::size_t bytes) const {
    return obstacle_.empty() && std::ranges::all_of(members_, [&](int member) {
             return memory_.address_on_rank(member, target, bytes) != nullptr;
           });
  }

  /// Writes this rank's part to its place on all ranks.
  /// @param bytes  of a part
  /// @param whole [ranks · bytes], in memory that this exchange reaches
  /// @param what   see `current_operation`
  void all_gather(const std::byte* part, std::byte* whole, std::size_t bytes, const char* what,
                  const Context<Cuda>& context) {
    exchange(Kind::gather, whole, bytes, what, context, [&](std::size_t) { return part; });
  }

  /// Writes part p to rank p, at the place of this rank; this rank's part is not moved.
  /// @param bytes     of a part
  /// @param received [ranks · bytes], in memory that this exchange reaches
  /// @param what      see `current_operation`
  void all_to_all(const std::byte* parts, std::byte* received, std::size_t bytes, const char* what,
                  const Context<Cuda>& context) {
    exchange(Kind::exchange, received, bytes, what, context,
             [&](std::size_t to) { return parts + to * bytes; });
  }

  /// Releases the waits on the GPU.
  void give_up() const { shared_state()->aborted = 1; }
  /// Returns whether a wait on this rank's GPU was given up.
  [[nodiscard]] bool has_given_up() const { return shared_state()->aborted != 0; }
  /// Returns a rank that called a different operation, as a number of `memory`; -1: none.
  [[nodiscard]] int mismatched_rank() const {
    const std::uint32_t place = shared_state()->mismatched_rank;
    return place == 0 ? -1 : members_[place - 1];
  }
  /// Returns the operation that this rank's GPU is running, including in a recorded graph, such as
  /// "the all-gather 'weights'", or one for each of several streams. Empty if it runs none.
  [[nodiscard]] std::string current_operation() const {
    std::string text;
    for (std::size_t channel = 0; channel < contexts_.size(); ++channel) {
      const std::uint32_t number = shared_state()->current_operation[channel];
      if (number != 0) text += (text.empty() ? "" : " and ") + operations_[number - 1];
    }
    return text;
  }

 private:
  static constexpr std::size_t max_contexts = detail::max_barrier_contexts;

  /// Identifies a context. Unlike a stream's address, a number is never reused.
  struct ContextNumber {
    std::uint64_t value = next();
    static std::uint64_t next() {
      static std::atomic<std::uint64_t> last{0};
      return ++last;
    }
  };

  [[nodiscard]] volatile detail::BarrierState* shared_state() const {
    return reinterpret_cast<volatile detail::BarrierState*>(shared_state_.get());
  }

  enum class Kind : std::uint32_t { gather, exchange };

  /// @param part_for  returns the part for a member
  template <class PartFor>
  void exchange(Kind kind, std::byte* target, std::size_t bytes, const char* what,
                const Context<Cuda>& context, const PartFor& part_for) {
    const std::size_t ranks = members_.size();
    const auto own = static_cast<std::size_t>(rank_);
    detail::Barrier barrier = make_barrier(kind, target, bytes, context);
    barrier.begins = 1 + number_of(kind, what);
    enqueue_barrier(barrier, context);
    // Each rank starts with a different target, so that a rank does not receive from all others at
    // the same time.
    const std::size_t count = kind == Kind::gather ? ranks : ranks - 1;  // the last one is this
                                                                         // rank itself
    for (std::size_t i = 1; i <= count; ++i) {
      const std::size_t to = (own + i) % ranks;
      const std::byte* part = part_for(to);
      std::byte* place = memory_.address_on_rank(members_[to], target, ranks * bytes) + own * bytes;
      if (place == part) continue;
      check(cudaMemcpyAsync(place, part, bytes, cudaMemcpyDeviceToDevice, context.stream()),
            "cudaMemcpyAsync between GPUs");
    }
    barrier.begins = 0;
    enqueue_barrier(barrier, context);
  }

  std::uint32_t number_of(Kind kind, const char* what) {
    const char* name = kind == Kind::gather ? "all-gather" : "all-to-all";
    const std::string operation = detail::operation_text(name, what);
    const auto found = std::ranges::find(operations_, operation);
    const auto number = static_cast<std::uint32_t>(found - operations_.begin());
    if (found == operations_.end()) operations_.push_back(operation);
    return number;
  }

  [[nodiscard]] detail::Barrier make_barrier(Kind kind, const std::byte* target, std::size_t bytes,
                                             const Context<Cuda>& context) {
    const std::size_t ranks = members_.size();
    const std::size_t channel = channel_of(context);
    const std::size_t word = sizeof(std::uint64_t);
    std::byte* words = words_.get() + channel * 2 * ranks * word;
    detail::Barrier result{};
    auto* numbers =
        reinterpret_cast<std::uint32_t*>(words_.get() + max_contexts * 2 * ranks * word);
    result.number = numbers + channel;
    result.is_closed = numbers + max_contexts;
    for (std::size_t i = 0; i < ranks; ++i) {
      result.words[i] = reinterpret_cast<std::uint64_t*>(
          memory_.address_on_rank(members_[i], words, 2 * ranks * word));
    }
    result.rank = rank_;
    result.ranks = static_cast<int>(ranks);
    result.channel = channel;
    const PeerMemory::Place place = memory_.place_of(target);
    result.operation = hash_of({static_cast<std::uint64_t>(kind), place.run, place.offset, bytes});
    result.timeout = static_cast<std::uint64_t>(timeout_.count());
    result.shared_state = shared_state();
    return result;
  }

  /// The channel of a context. Barriers are ordered within one context, not between several, so
  /// each context has its own channel, numbered in the order of first use: all ranks must first use
  /// their contexts in the same order. A rank with another order is reported as calling a different
  /// operation, or waits until its timeout ends.
  std::size_t channel_of(const Context<Cuda>& context) {
    const std::uint64_t number = context.state<ContextNumber>().value;
    const auto found = std::ranges::find(contexts_, number);
    const auto channel = static_cast<std::size_t>(found - contexts_.begin());
    if (found != contexts_.end()) return channel;
    require<UsageError>(
        channel < max_contexts, "one communicator supports at most ", max_contexts,
        " contexts, including lanes of sessions; create another communicator for more");
    contexts_.push_back(number);
    return channel;
  }

  static std::uint32_t hash_of(const std::array<std::uint64_t, 4>& words) {
    std::uint64_t hash = 14695981039346656037u;  // FNV-1a
    for (const std::uint64_t word : words) hash = (hash ^ word) * 1099511628211u;
    return static_cast<std::uint32_t>(hash ^ hash >> 32);
  }

  static void enqueue_barrier(const detail::Barrier& barrier, const Context<Cuda>& context) {
    kernels::launch("barrier of ranks", detail::barrier_kernel<Cuda>, dim3(1), barrier.ranks, 0,
                    context, barrier);
  }

  PeerMemory& memory_;
  std::vector<int> members_;
  int rank_;
  std::chrono::nanoseconds timeout_;
  /// [max_contexts, 2, ranks] words of barriers, a number for each context, and whether this has
  /// ended.
  OwnedBytes words_;
  OwnedBytes shared_state_;
  std::vector<std::uint64_t> contexts_;  ///< numbers of the contexts that have met others
  std::vector<std::string> operations_;  ///< names of the operations so far, by number
  std::string obstacle_;
};

}  // namespace octavo

#pragma once

#include <octavo/comm/communicator.hpp>
#include <octavo/core/cuda/context.cuh>
#include <octavo/memory/buffer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "take_larger.cuh"

/// Ranks on one GPU whose exchanges come late, as those between machines do.
namespace octavo::support {

/// Waits on the GPU for so many nanoseconds.
static __global__ void spin_kernel(std::uint64_t time) {
  std::uint64_t begin = 0;
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    __nanosleep(10'000);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < time);
}

/// A rank that is a thread of the program. What it exchanges is only enqueued, behind a wait: who
/// reads it, or writes over it, without being ordered behind it has other bits than who was.
/// Cannot be recorded, because streams of ranks wait for each other.
class LateRank final : public Communicator<Cuda> {
 public:
  using Bytes = TensorView<std::byte, 1, Cuda>;
  using ConstBytes = TensorView<const std::byte, 1, Cuda>;

  /// @param ranks  tells ranks of each other in the host's memory; outlives this
  explicit LateRank(Communicator<Cuda>& ranks) : ranks_(ranks) {
    for (cudaEvent_t* event : {&data_ready_, &read_done_}) {
      check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    }
  }
  explicit LateRank(std::unique_ptr<Communicator<Cuda>> ranks) : LateRank(*ranks) {
    owned_ = std::move(ranks);
  }
  ~LateRank() override {
    // Others may have yet to enqueue their waits for this one's events. If a rank fails, they stay.
    if (std::uncaught_exceptions() != 0) return;
    try {
      std::vector<char> all(static_cast<std::size_t>(size()));
      ranks_.all_gather_host_sync(std::as_bytes(std::span("", 1)),
                                  std::as_writable_bytes(std::span(all)), "end of late ranks");
    } catch (const CommError&) {
      return;
    }
    cudaEventDestroy(data_ready_);
    cudaEventDestroy(read_done_);
  }

  /// The next step begins later, on the GPU, than all of its exchanges take: what ranks send is not
  /// there yet when they are told to. From the first thing that it asks of ranks on, because a
  /// timeline waits for what was enqueued before.
  /// @param context  the session's; outlives this
  void delay_next_step(const Context<Cuda>& context) { late_ = &context; }

  [[nodiscard]] int rank() const override { return ranks_.rank(); }
  [[nodiscard]] int size() const override { return ranks_.size(); }

  void all_gather(ConstBytes part, Bytes whole, const char*,
                  const Context<Cuda>& context) override {
    exchange(part.data(), context, [&](std::size_t rank, const std::byte* source) {
      std::byte* place = whole.data() + rank * part.bytes();
      if (place != source) copy_on_device(place, source, part.bytes(), context);
    });
  }
  void all_to_all(ConstBytes parts, Bytes received, const char*,
                  const Context<Cuda>& context) override {
    const std::size_t part = parts.bytes() / static_cast<std::size_t>(size());
    const auto own = static_cast<std::size_t>(rank());
    exchange(parts.data(), context, [&](std::size_t rank, const std::byte* source) {
      if (rank == own) return;
      copy_on_device(received.data() + rank * part, source + own * part, part, context);
    });
  }
  void all_reduce_max(TensorView<std::uint32_t, 1, Cuda> values, const char*,
                      const Context<Cuda>& context) override {
    const auto part = static_cast<std::size_t>(values.size());
    auto& buffer = others_[part];  // to allocate one in each step would have each wait for the GPU
    if (buffer == nullptr) {
      const std::size_t bytes = values.bytes() * static_cast<std::size_t>(size());
      buffer = std::make_unique<Buffer<Cuda>>(bytes, context);
    }
    auto* others = reinterpret_cast<std::uint32_t*>(buffer->data());
    exchange(reinterpret_cast<const std::byte*>(values.data()), context,
             [&](std::size_t rank, const std::byte* source) {
               copy_on_device(others + rank * part, source, values.bytes(), context);
             });
    take_larger(values, others, size(), context);
  }
  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char* what) override {
    if (const Context<Cuda>* context = std::exchange(late_, nullptr); context != nullptr) {
      spin_kernel<<<1, 1, 0, context->stream()>>>(200'000'000);
      check(cudaGetLastError(), "spin_kernel");
    }
    ranks_.all_gather_host_sync(part, whole, what);
  }
  [[nodiscard]] std::unique_ptr<Communicator<Cuda>> split(int group) override {
    return std::make_unique<LateRank>(ranks_.split(group));
  }

 private:
  /// What a rank shows the others.
  struct Published {
    const std::byte* data;
    cudaEvent_t event;
  };

  /// Enqueues `take(rank, sent)` for what every rank sends, behind what has to be there before.
  template <class Take>
  void exchange(const std::byte* sends, const Context<Cuda>& context, const Take& take) {
    spin_kernel<<<1, 1, 0, context.stream()>>>(2'000'000);  // a small model's whole step is shorter
    check(cudaGetLastError(), "spin_kernel");
    const std::vector<Published> sent = publish({sends, data_ready_}, context);
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      check(cudaStreamWaitEvent(context.stream(), sent[rank].event, 0), "cudaStreamWaitEvent");
      take(rank, sent[rank].data);
    }
    // A rank may write over what it has sent when all have read it.
    for (const Published& reader : publish({nullptr, read_done_}, context)) {
      check(cudaStreamWaitEvent(context.stream(), reader.event, 0), "cudaStreamWaitEvent");
    }
  }
  /// Shows all ranks the data, and an event behind what the context was given.
  std::vector<Published> publish(Published own, const Context<Cuda>& context) {
    check(cudaEventRecord(own.event, context.stream()), "cudaEventRecord");
    std::vector<Published> all(static_cast<std::size_t>(size()));
    ranks_.all_gather_host_sync(std::as_bytes(std::span(&own, 1)),
                                std::as_writable_bytes(std::span(all)), "what ranks publish");
    return all;
  }

  std::unique_ptr<Communicator<Cuda>> owned_;  ///< of a group
  Communicator<Cuda>& ranks_;
  const Context<Cuda>* late_ = nullptr;  ///< whose step is to be late
  cudaEvent_t data_ready_ = nullptr;
  cudaEvent_t read_done_ = nullptr;
  std::map<std::size_t, std::unique_ptr<Buffer<Cuda>>> others_;  ///< by the number of values
};

}  // namespace octavo::support

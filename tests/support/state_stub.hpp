#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "session_stub.hpp"
#include "thread_ranks.hpp"

namespace support {

/// A session that is nothing but a state, perhaps a rank's part of it: for each entry, bytes that
/// follow from its name, their place in the whole and the number of the step.
class StateStub : public SessionStub, private octavo::SessionState {
 public:
  /// Elements of FP32 weights and of 8-bit moments.
  static constexpr octavo::Index elements = 1024;

  /// @param ranks  null: the only one
  explicit StateStub(ThreadComm* ranks = nullptr, int tensor_ranks = 1)
      : sharding_(octavo::sharding_of_rank({}, ranks == nullptr ? 0 : ranks->rank(),
                                           ranks == nullptr ? 1 : ranks->size(), tensor_ranks)),
        ranks_(sharding_, ranks) {
    facts_.name = "stub";
    facts_.sharding = sharding_;
    facts_.precision = "fp8 of a stub";
    facts_.optimizer = "AdamW of a stub";
    const octavo::Index share = elements / sharding_.ranks;
    const octavo::Index begin = share * sharding_.rank;
    add("model.weight", "fp32", 4, {32, elements / 32}, {32, elements / 32}, 0);
    if (sharding_.ranks == 1) {
      add("optimizer.moment.weight", "8-bit", 1, {32, elements / 32}, {32, elements / 32}, 0);
    } else {
      add("optimizer.moment.weight", "8-bit", 1, {share}, {32, elements / 32}, begin);
    }
    add("norm.weight", "bf16", 2, {16}, {16}, 0);
    if (tensor_ranks > 1) {
      const int place = sharding_.tensor_rank;
      entries_[0].part = octavo::ParameterPart::columns(tensor_ranks, place, 32);
      entries_[1].part = entries_[0].part;
    }
    add("optimizer.steps", "int64", 8, {}, {}, 0);
    set(0);
  }

  /// Makes all bytes those of a step.
  void set(std::int64_t step) {
    is_reading_.wait(true);
    for (std::size_t i = 0; i < entries_.size(); ++i) memory_[i] = expected(i, step);
  }
  /// The step whose bytes these are; −1: of none, or of several.
  [[nodiscard]] std::int64_t step_of_state() const {
    std::int64_t step = 0;
    std::memcpy(&step, memory_.back().data(), sizeof(step));
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (memory_[i] != expected(i, step)) return -1;
    }
    return step;
  }

  octavo::SessionState& state() override { return *this; }
  octavo::SessionRanks& ranks() override { return ranks_; }
  /// How often `begin_reading` was called.
  [[nodiscard]] int readings() const { return readings_; }

  std::vector<octavo::GemmPlanRecord> gemm_plans() const override { return plans; }

  void fail(bool fails) { fails_ = fails; }
  void fail_allocations() { fails_allocations_ = true; }
  void set_model(const std::string& name) { facts_.name = name; }
  /// To be changed before a test uses the session.
  octavo::SessionFacts& own_facts() { return facts_; }

  std::vector<octavo::GemmPlanRecord> plans;

 private:
  class Ranks final : public octavo::SessionRanks {
   public:
    Ranks(const octavo::Sharding& sharding, ThreadComm* ranks)
        : SessionRanks(sharding), ranks_(ranks) {}
    void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                              const char* what) override {
      if (ranks_ == nullptr) return SessionRanks::all_gather_host_sync(part, whole, what);
      ranks_->all_gather_host_sync(part, whole, what);
    }

   private:
    ThreadComm* ranks_;
  };

  std::vector<octavo::StateEntry> entries() override {
    std::vector<octavo::StateEntry> all = entries_;
    for (std::size_t i = 0; i < all.size(); ++i) {
      auto& memory = memory_[i];
      all[i].read_sync = [this, &memory](std::byte* target) {
        octavo::require<octavo::IoError>(!fails_, "the state cannot be read");
        std::memcpy(target, memory.data(), memory.size());
      };
      if (!all[i].shape.empty()) {
        all[i].read_async = [this, &memory](std::byte* target) {
          octavo::require<octavo::IoError>(!fails_, "the state cannot be read");
          octavo::require<octavo::UsageError>(is_reading_, "it is read, but nobody waits for that");
          std::memcpy(target, memory.data(), memory.size());
        };
      }
      all[i].write_sync = [&memory](const std::byte* source) {
        std::memcpy(memory.data(), source, memory.size());
      };
    }
    return all;
  }
  void begin_reading() override {
    is_reading_ = true;
    ++readings_;
  }
  void end_reading() override {
    is_reading_ = false;
    is_reading_.notify_all();
  }
  octavo::OwnedBytes allocate_for_reading(std::size_t bytes) override {
    octavo::require<octavo::MemoryError>(!fails_allocations_, "no memory");
    return SessionState::allocate_for_reading(bytes);
  }

  void add(const std::string& name, const std::string& format, std::size_t size,
           const std::vector<octavo::Index>& shape, const std::vector<octavo::Index>& whole,
           octavo::Index begin) {
    octavo::StateEntry entry;
    entry.name = name;
    entry.format = format;
    entry.shape = shape;
    entry.whole = whole;
    entry.begin = begin;
    entry.bytes = size;
    for (const octavo::Index extent : shape) entry.bytes *= static_cast<std::size_t>(extent);
    entries_.push_back(entry);
    memory_.emplace_back();
  }

  [[nodiscard]] std::vector<std::byte> expected(std::size_t number, std::int64_t step) const {
    const octavo::StateEntry& entry = entries_[number];
    std::vector<std::byte> bytes(entry.bytes);
    if (entry.shape.empty()) {
      std::memcpy(bytes.data(), &step, sizeof(step));
      return bytes;
    }
    std::size_t count = 1;
    for (const octavo::Index extent : entry.shape) count *= static_cast<std::size_t>(extent);
    const std::size_t first = static_cast<std::size_t>(entry.begin) * (entry.bytes / count);
    const auto place = static_cast<std::size_t>(entry.part.rank);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const std::size_t value = (first + i) * 31 + number * 7 + place * 101;
      bytes[i] = static_cast<std::byte>((value ^ value >> 8) + static_cast<std::size_t>(step) * 13);
    }
    return bytes;
  }

  octavo::Sharding sharding_;
  Ranks ranks_;
  std::vector<octavo::StateEntry> entries_;
  std::vector<std::vector<std::byte>> memory_;
  bool fails_ = false;
  bool fails_allocations_ = false;
  std::atomic<bool> is_reading_{false};
  int readings_ = 0;
};

}  // namespace support

/// @file
/// The ranks that train a session's model, for exchanges outside of its steps.
#pragma once

#include <octavo/comm/all_gather_texts.hpp>
#include <octavo/comm/all_gather_values.hpp>
#include <octavo/comm/sharding.hpp>
#include <octavo/core/device.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Sum of losses and number of tokens of an evaluation.
struct LossSum {
  double sum = 0;
  Index tokens = 0;

  /// NaN without a token: the loss is then unknown, not 0.
  [[nodiscard]] double mean() const {
    return tokens == 0 ? std::nan("") : sum / static_cast<double>(tokens);
  }
};

/// The ranks that train a session's model. All ranks call the members that exchange values, which
/// wait for the other ranks. The base class is a single rank.
class SessionRanks {
 public:
  explicit SessionRanks(Sharding sharding = {}) : sharding_(sharding) {}
  SessionRanks(const SessionRanks&) = delete;
  SessionRanks& operator=(const SessionRanks&) = delete;
  virtual ~SessionRanks() = default;

  [[nodiscard]] int size() const { return sharding_.world_size(); }

  /// Returns the sum over all ranks, on each of them. Ranks that share layers count once.
  [[nodiscard]] LossSum sum(const LossSum& own) {
    LossSum total;
    const std::vector<LossSum> all = gather(own, "sums of losses");
    const auto degree = static_cast<std::size_t>(sharding_.tensor_ranks);
    for (std::size_t rank = 0; rank < all.size(); rank += degree) {
      total.sum += all[rank].sum;
      total.tokens += all[rank].tokens;
    }
    return total;
  }
  /// Returns the maximum over all ranks, on each of them.
  [[nodiscard]] std::int64_t largest(std::int64_t own) {
    const std::vector<std::int64_t> all = gather(own, "signals");
    return *std::max_element(all.begin(), all.end());
  }
  /// Returns the texts of all ranks, in rank order, on each of them.
  /// @param what  names the exchange in errors; must stay valid until the program ends
  [[nodiscard]] std::vector<std::string> texts(const std::string& own, const char* what) {
    return all_gather_texts(*this, own, what);
  }
  /// Returns the values of all ranks, in rank order, on each of them.
  template <class T>
  [[nodiscard]] std::vector<T> gather(const T& own, const char* what) {
    return all_gather_values(*this, own, what);
  }
  /// See Communicator.
  virtual void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                                    const char* what) {
    (void)what;
    std::copy(part.begin(), part.end(), whole.begin());
  }

 private:
  Sharding sharding_;
};

}  // namespace octavo

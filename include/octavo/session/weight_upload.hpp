/// @file
/// Copies weights from the host into a session.
#pragma once

#include <octavo/memory/buffer.hpp>
#include <octavo/session/weights.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Maximum number of threads that prepare weights: this many saturate the bus to a device.
inline constexpr int max_weight_threads = 16;

/// Copies floats, and their rounded values, to the device. Threads prepare pieces while earlier
/// ones are copied.
/// @tparam T  format of the weights
template <class T, Device D>
class WeightUpload {
 public:
  /// A prepared piece, in memory that the device copies from.
  struct Piece {
    Index begin = 0;
    std::span<float> values;
    std::span<T> rounded;
  };

  /// @param context  must outlive this object
  explicit WeightUpload(const Context<D>& context)
      : context_(context), host_(std::min(host_threads(context), max_weight_threads)) {}

  /// Calls `make` for pieces of `count` elements, on several threads at a time, and then `copy` in
  /// order, which enqueues. All copies have completed when it returns.
  /// @throws  the exception of the first `make` that failed; pieces before it have been copied
  void run_sync(Index count, const std::function<void(const Piece&)>& make,
                const std::function<void(const Piece&)>& copy) {
    const Index pieces = ceil_divide(count, weights_at_once);
    const Index at_once = std::min<Index>(host_.threads(), pieces);
    take_slots(2 * at_once, std::min(count, weights_at_once));
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(at_once));
    for (Index first = 0; first < pieces; first += at_once) {
      // The other slots are being copied meanwhile.
      const Index slot = first / at_once % 2 * at_once;
      const Index ready = std::min(at_once, pieces - first);
      const auto piece = [&](Index i) {
        const Index begin = (first + i) * weights_at_once;
        const auto size = static_cast<std::size_t>(std::min(weights_at_once, count - begin));
        const Piece& all = slots_[static_cast<std::size_t>(slot + i)];
        return Piece{begin, all.values.first(size), all.rounded.first(size)};
      };
      parallel_for(ready, many_elements, host_, [&](Index i) {
        try {
          make(piece(i));
        } catch (...) {
          errors[static_cast<std::size_t>(i)] = std::current_exception();
        }
      });
      context_.synchronize();
      for (Index i = 0; i < ready; ++i) {
        if (const auto& error = errors[static_cast<std::size_t>(i)]; error != nullptr) {
          context_.synchronize();
          std::rethrow_exception(error);
        }
        copy(piece(i));
      }
    }
    context_.synchronize();
  }

 private:
  /// Returns the number of threads that prepare pieces.
  static int host_threads(const Context<D>& context) {
    if constexpr (std::is_same_v<D, Cpu>) {
      return context.threads();
    } else {
      return Context<Cpu>(0).threads();
    }
  }

  /// Allocates this many slots of this many elements, unless they are already large enough.
  void take_slots(Index count, Index elements) {
    if (static_cast<Index>(slots_.size()) >= count && elements_ >= elements) return;
    elements_ = std::max(elements_, elements);
    const std::size_t slots = std::max(slots_.size(), static_cast<std::size_t>(count));
    const auto size = static_cast<std::size_t>(elements_);
    slots_.clear();
    memory_.reset();
    memory_ = allocate_on_host(slots * size * (sizeof(float) + sizeof(T)), context_);
    auto* values = reinterpret_cast<float*>(memory_.get());
    auto* rounded = reinterpret_cast<T*>(values + slots * size);
    for (std::size_t i = 0; i < slots; ++i) {
      slots_.push_back({0, {values + i * size, size}, {rounded + i * size, size}});
    }
  }

  const Context<D>& context_;
  Context<Cpu> host_;
  Index elements_ = 0;  ///< per slot
  OwnedBytes memory_;
  std::vector<Piece> slots_;  ///< two for each preparing thread
};

}  // namespace octavo OCTAVO_ABI::detail

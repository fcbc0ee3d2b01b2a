/// @file
/// The interface through which ranks communicate.
#pragma once

#include <octavo/comm/all_gather_values.hpp>
#include <octavo/memory/buffer.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The ranks that train one model, seen from one of them. All ranks make the same calls in the same
/// order. No operation adds numbers: the caller determines the order of a sum, and therefore its
/// bits.
///
/// This is a run-time interface because the number of ranks is known only at run time. It
/// transports bytes; the types of models, recipes and sharding determine which data are sent and in
/// which format.
///
/// Functions with a context are asynchronous; on the `Cpu` device they complete before they return.
/// `what` names the operation in errors, such as "weights of blocks.3"; it must stay valid until
/// the call returns.
/// @throws CommError  naming ranks and operation, if others do not respond within the time-out of
///                    the communicator; the program must end then
template <Device D>
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// Allocates device memory that operations may access faster than other memory, if the data are
  /// at the same offset on all ranks. All ranks (of all groups) call it together, with the same
  /// number of bytes. They free it together, after all enqueued work that uses it, and before the
  /// communicator is destroyed. A rank that frees it during an exception ends the communicator,
  /// because others may still write to this memory.
  /// @throws MemoryError  see Buffer
  [[nodiscard]] virtual Buffer<D> allocate(std::size_t bytes, const Context<D>& context) {
    return Buffer<D>(bytes, context);
  }

  /// Describes how data in that memory are transferred, such as "copy engines". Empty if there is
  /// only one method.
  [[nodiscard]] virtual std::string transport() const { return {}; }

  /// Gathers the parts of all ranks, in rank order.
  /// @param part   of this rank; may alias its place in `whole`
  /// @param whole  [size() · part's bytes]
  virtual void all_gather(TensorView<const std::byte, 1, D> part, TensorView<std::byte, 1, D> whole,
                          const char* what, const Context<D>& context) = 0;

  /// Sends the p-th part to rank p, for every other rank, and receives one part from it. This
  /// rank's own part is not copied.
  /// @param parts     [size() · a part's bytes]
  /// @param received  [size() · a part's bytes], the parts from the other ranks in rank order; must
  ///                  not overlap `parts`. This rank's place is not written
  virtual void all_to_all(TensorView<const std::byte, 1, D> parts,
                          TensorView<std::byte, 1, D> received, const char* what,
                          const Context<D>& context) = 0;

  /// Replaces each value by its maximum over all ranks.
  virtual void all_reduce_max(TensorView<std::uint32_t, 1, D> values, const char* what,
                              const Context<D>& context) = 0;

  /// All-gather in host memory. Waits for the other ranks, not for the device.
  virtual void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                                    const char* what) = 0;

  /// Splits the ranks: ranks with the same number get a separate communicator, in the order of this
  /// one. All ranks of the program call it together. The same is true of the result's
  /// `all_gather_host_sync`: all groups call it together, with parts of the same size.
  /// @param group  0 or more
  /// @return       a communicator, which must not outlive this one
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int group) = 0;

  /// Waits until everything enqueued on the context has run, including operations of this
  /// communicator.
  /// @param what  describes the wait in errors, such as "step"
  virtual void wait_sync(const Context<D>& context, const char* what) {
    (void)what;
    context.synchronize();
  }

 protected:
  /// Returns the ranks that passed the same number as this one, in ascending order.
  [[nodiscard]] std::vector<int> ranks_of_group(int group) {
    const std::vector<int> groups = all_gather_values(*this, group, "groups of ranks");
    std::vector<int> members;
    for (int other = 0; other < size(); ++other) {
      if (groups[static_cast<std::size_t>(other)] == group) members.push_back(other);
    }
    return members;
  }
};

}  // namespace octavo

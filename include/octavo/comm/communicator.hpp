/// @file
/// What ranks that train one model send each other.
#pragma once

#include <octavo/memory/buffer.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The ranks that train one model, as one of them sees them. All ranks make the same calls in the
/// same order. Nothing here adds numbers up: a sum's order, and so its bits, is the caller's.
///
/// An interface, because how a program was launched is known when it runs, and one that runs alone
/// is the same program: the types of models, recipes and sharding say what is sent and in which
/// format, this only carries bytes.
///
/// What takes a context enqueues; on the `Cpu` device that is to do it. `what` names the operation
/// in errors, such as "weights of blocks.3"; it lives until the call returns.
/// @throws CommError  naming ranks and operation, where others do not answer within the time that
///                    the communicator was made with; whoever catches it ends the program
template <Device D>
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// Memory of the device, which operations may reach in faster ways than other memory: what lies
  /// in it at one place on all ranks. All ranks call it together, of groups those of all groups,
  /// with as many bytes, and free it together before the communicator, when nothing uses it that
  /// was enqueued. A rank that frees it while an exception is on its way ends the communicator:
  /// others may be writing there.
  /// @throws MemoryError  see Buffer
  [[nodiscard]] virtual Buffer<D> allocate(std::size_t bytes, const Context<D>& context) {
    return Buffer<D>(bytes, context);
  }

  /// By which way what lies in that memory travels, for people: such as "copy engines". Empty where
  /// there is one way only.
  [[nodiscard]] virtual std::string transport() const { return {}; }

  /// Gives each rank the parts of all, in the order of ranks.
  /// @param part   this rank's; may be its own place in `whole`
  /// @param whole  [size() · part's bytes]
  virtual void all_gather(TensorView<const std::byte, 1, D> part, TensorView<std::byte, 1, D> whole,
                          const char* what, const Context<D>& context) = 0;

  /// Sends the p-th part to rank p, for every other rank, and receives one from it. What is for
  /// this rank stays where it is.
  /// @param parts     [size() · a part's bytes]
  /// @param received  likewise, the parts from the other ranks in their order, no part of `parts`;
  ///                  the place of this one's is left as it was
  virtual void all_to_all(TensorView<const std::byte, 1, D> parts,
                          TensorView<std::byte, 1, D> received, const char* what,
                          const Context<D>& context) = 0;

  /// Makes each value the largest of all ranks'.
  virtual void all_reduce_max(TensorView<std::uint32_t, 1, D> values, const char* what,
                              const Context<D>& context) = 0;

  /// As all_gather, in the host's memory. Waits for the other ranks, not for the device.
  virtual void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                                    const char* what) = 0;

  /// Divides the ranks: those that give the same number get a communicator of their own, with their
  /// order in this one. All ranks of the program call it together, and the result's
  /// `all_gather_host_sync`, too, in all groups, with parts of one size.
  /// @param group  from 0 on
  /// @return       which this one outlives
  [[nodiscard]] virtual std::unique_ptr<Communicator> split(int group) = 0;

  /// Waits until all that was enqueued on the context has run, operations of this among it.
  /// @param what  what is waited for, such as "step"
  virtual void wait_sync(const Context<D>& context, const char* what) {
    (void)what;
    context.synchronize();
  }

 protected:
  /// The ranks that gave the same number as this one, ascending.
  [[nodiscard]] std::vector<int> ranks_of_group(int group) {
    std::vector<int> groups(static_cast<std::size_t>(size()));
    all_gather_host_sync(std::as_bytes(std::span(&group, 1)),
                         std::as_writable_bytes(std::span(groups)), "groups of ranks");
    std::vector<int> members;
    for (int other = 0; other < size(); ++other) {
      if (groups[static_cast<std::size_t>(other)] == group) members.push_back(other);
    }
    return members;
  }
};

}  // namespace octavo

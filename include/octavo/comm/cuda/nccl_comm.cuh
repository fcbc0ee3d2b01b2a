/// @file
/// Ranks on the `Cuda` device that communicate through NCCL. Not part of cuda.cuh: a program that
/// includes this needs NCCL's header and library.
#pragma once

#include <octavo/comm/communicator.hpp>
#include <octavo/comm/cuda/copy_exchange.cuh>
#include <octavo/comm/cuda/nccl_start.cuh>
#include <octavo/comm/no_answer.hpp>
#include <octavo/comm/rendezvous.hpp>
#include <octavo/comm/wait_note.hpp>
#include <octavo/core/cuda/context.cuh>
#include <octavo/core/error.hpp>

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// A communicator with one process per GPU. If all ranks are on one host and reach each other's
/// memory, copy engines run gathers and exchanges to memory of `allocate` (CopyExchange), so these
/// occupy no multiprocessors that overlapping work needs. All other operations use NCCL's kernels.
///
/// Every wait has a deadline: NCCL's calls return before they are done and are supervised here; use
/// `wait_sync` to wait for a stream that has operations on it. All operations may be enqueued while
/// a CUDA graph is recorded, if they have been enqueued once outside of it; graphs with them must
/// be destroyed before the communicator. For one thread; contexts may differ from call to call, but
/// must be of one GPU.
/// @throws CommError  from every member, naming ranks and operation: if another rank is lost or
///                    does not respond within the time-out of the rendezvous, or if NCCL fails.
///                    Enqueued operations are then abandoned, also on the GPU
class NcclComm final : public Communicator<Cuda> {
 public:
  /// Which implementations operations may use.
  enum class Ways { all, nccl_only };

  /// All ranks call it together.
  /// @param rendezvous  must outlive this object, or the process aborts
  /// @param context     of the GPU on which this rank's operations run
  /// @param ways        the same on all ranks
  /// @throws ConfigError  naming ranks that have the same GPU
  NcclComm(Rendezvous& rendezvous, const Context<Cuda>& context, Ways ways = Ways::all)
      : rendezvous_(rendezvous), gpu_(context.gpu()), world_(*this), rank_(rendezvous.rank()) {
    // NVLink multicast is off unless the user sets NCCL_NVLS_ENABLE: NCCL trusts the driver's
    // report of support. On a fabric that is only partly set up, as in virtual machines with some
    // of a host's GPUs, creating multicast groups fails or hangs. Gathers and exchanges gain little
    // from it.
    ::setenv("NCCL_NVLS_ENABLE", "0", 0);
    ::setenv("NCCL_COMM_BLOCKING", "0", 1);  // the environment overrides `config`
    version_ = checked_nccl_version();
    for (int member = 0; member < rendezvous_.size(); ++member) members_.push_back(member);
    context.make_current();
    detail::require_distinct_gpus(rendezvous_, gpu_);
    begin();
    if (size() == 1 || ways == Ways::nccl_only) return;
    const auto gather = [this](auto part, auto whole, const char* what) {
      rendezvous_.all_gather_sync(part, whole, what);
    };
    try {
      memory_.emplace(rank_, size(), gather);
      copy_exchange_.emplace(*memory_, members_, rank_, gpu_timeout(), context);
    } catch (...) {
      abort();
      end_abort();
      throw;
    }
  }
  ~NcclComm() override {
    if (std::uncaught_exceptions() != 0) abort();
    try {
      if (copy_exchange_.has_value()) {
        wait_for_gpu();
        copy_exchange_->close(communicator_ != nullptr);
      }
    } catch (const Error&) {  // another rank has ended
      abort();
    }
    std::erase(world_.communicators_, this);
    end_abort();
    if (communicator_ == nullptr) return;
    try {
      wait_until_enqueued(ncclCommFinalize(communicator_), "end", "of NCCL");
      ncclCommDestroy(communicator_);
    } catch (const Error&) {  // it was aborted
      end_abort();
    }
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(members_.size()); }
  /// Returns the version of the library, such as 22809.
  [[nodiscard]] int version() const { return version_; }

  [[nodiscard]] Buffer<Cuda> allocate(std::size_t bytes, const Context<Cuda>& context) override {
    if (!world_.memory_.has_value() || bytes == 0) return Buffer<Cuda>(bytes, context);
    return world_.allocate_shared(bytes, context);
  }

  [[nodiscard]] std::string transport() const override {
    if (size() == 1) return {};
    const std::string nccl = "NCCL " + nccl_version_text(version_);
    if (!copy_exchange_.has_value()) return nccl;
    const std::string& memory_obstacle = world_.memory_->obstacle();
    const std::string& obstacle =
        memory_obstacle.empty() ? copy_exchange_->obstacle() : memory_obstacle;
    return obstacle.empty() ? "copy engines, and " + nccl + " for small operations"
                            : nccl + ", because " + obstacle;
  }

  void all_gather(TensorView<const std::byte, 1, Cuda> part, TensorView<std::byte, 1, Cuda> whole,
                  const char* what, const Context<Cuda>& context) override {
    require<ShapeError>(whole.bytes() == part.bytes() * ranks(), "all_gather '", what,
                        "': ", size(), " parts of ", part.bytes(), " bytes do not add up to ",
                        whole.bytes());
    enqueue("all-gather", what, part.bytes(), context, [&](cudaStream_t stream) {
      if (uses_copy_engines(whole.data(), part.bytes())) {
        check_copy_exchange(detail::operation_text("all-gather", what));
        copy_exchange_->all_gather(part.data(), whole.data(), part.bytes(), what, context);
        return ncclSuccess;
      }
      return ncclAllGather(part.data(), whole.data(), part.bytes(), ncclUint8, communicator_,
                           stream);
    });
  }

  void all_to_all(TensorView<const std::byte, 1, Cuda> parts,
                  TensorView<std::byte, 1, Cuda> received, const char* what,
                  const Context<Cuda>& context) override {
    const std::size_t bytes = parts.bytes() / ranks();
    require<ShapeError>(bytes * ranks() == parts.bytes() && received.bytes() == parts.bytes(),
                        "all_to_all '", what, "': ", parts.bytes(), " bytes to send and ",
                        received.bytes(), " to receive; both must be ", size(),
                        " parts of one size");
    if (size() == 1) return;
    enqueue("all-to-all", what, bytes, context, [&](cudaStream_t stream) {
      if (uses_copy_engines(received.data(), bytes)) {
        check_copy_exchange(detail::operation_text("all-to-all", what));
        copy_exchange_->all_to_all(parts.data(), received.data(), bytes, what, context);
        return ncclSuccess;
      }
      return exchange(parts.data(), received.data(), bytes, stream);
    });
  }

  void all_reduce_max(TensorView<std::uint32_t, 1, Cuda> values, const char* what,
                      const Context<Cuda>& context) override {
    enqueue("maximum", what, values.bytes(), context, [&](cudaStream_t stream) {
      return ncclAllReduce(values.data(), values.data(), static_cast<std::size_t>(values.size()),
                           ncclUint32, ncclMax, communicator_, stream);
    });
  }

  /// Sends through rank 0's host, not through the GPUs. Also for groups: all groups gather at the
  /// same time.
  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char* what) override {
    std::vector<std::byte> all_parts(part.size() * static_cast<std::size_t>(rendezvous_.size()));
    try {
      rendezvous_.all_gather_sync(part, all_parts, what);
    } catch (const CommError&) {
      abort();
      throw;
    }
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const std::size_t begin = static_cast<std::size_t>(members_[i]) * part.size();
      std::copy_n(all_parts.begin() + static_cast<std::ptrdiff_t>(begin), part.size(),
                  whole.begin() + static_cast<std::ptrdiff_t>(i * part.size()));
    }
  }

  [[nodiscard]] std::unique_ptr<Communicator<Cuda>> split(int group) override {
    std::vector<int> members = ranks_of_group(group);
    const auto own = std::find(members.begin(), members.end(), rank());
    const auto place = static_cast<int>(own - members.begin());
    for (int& member : members) member = members_[static_cast<std::size_t>(member)];
    std::unique_ptr<NcclComm> result(new NcclComm(*this, std::move(members), place));
    if (world_.memory_.has_value()) {
      result->copy_exchange_.emplace(*world_.memory_, result->members_, place, gpu_timeout(),
                                     Context<Cuda>(gpu_));
    }
    return result;
  }

  /// Waits until all enqueued work of the context has run. Call it instead of
  /// `context.synchronize()` wherever the work may contain operations between ranks, recorded or
  /// not. The time-out applies, so it must be longer than the longest step.
  /// @param what  names the awaited work, such as "step 12"
  /// @throws CudaError  if any enqueued work failed
  void wait_sync(const Context<Cuda>& context, const char* what) override;

 private:
  using Clock = std::chrono::steady_clock;

  /// Creates a communicator of some of another one's ranks. All of its ranks create one at the same
  /// time.
  NcclComm(NcclComm& other, std::vector<int> members, int rank)
      : rendezvous_(other.rendezvous_),
        gpu_(other.gpu_),
        world_(other.world_),
        members_(std::move(members)),
        rank_(rank),
        version_(other.version_) {
    check(cudaSetDevice(gpu_), "cudaSetDevice");
    begin();
  }

  void begin() {
    const ncclUniqueId id = detail::agree_on_nccl(rendezvous_, rank_ == 0, members_[0], version_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    rendezvous_.set_operation("start", "of NCCL");
    world_.communicators_.push_back(this);
    try {
      wait_until_enqueued(ncclCommInitRankConfig(&communicator_, size(), id, rank(), &config),
                          "start", "of NCCL");
    } catch (...) {
      abort();
      std::erase(world_.communicators_, this);
      end_abort();
      throw;
    }
  }

  /// The supervision of a wait.
  class Watchdog {
   public:
    Watchdog(NcclComm& communicator, const char* kind, const char* what)
        : communicator_(communicator), operation_(detail::operation_text(kind, what)) {
      WaitNote::set(message("rank ", communicator.rendezvous_.rank(), " is in ", operation_));
    }

    /// Throws if the other ranks or NCCL failed or the time-out has passed; then sleeps briefly.
    void poll(int round) const {
      if (round % 16 == 0) {
        communicator_.check_for_errors(operation_);
        if (Clock::now() - start_ > communicator_.rendezvous_.timeout())
          communicator_.fail_with_timeout(operation_);
      }
      if (Clock::now() - start_ < std::chrono::milliseconds(1)) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
    [[nodiscard]] const std::string& operation() const { return operation_; }

   private:
    NcclComm& communicator_;
    std::string operation_;
    Clock::time_point start_ = Clock::now();
  };

  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  /// Smaller parts are limited by latency, and NCCL's kernels are faster for them.
  static constexpr std::size_t min_copy_bytes = std::size_t{64} << 10;

  [[nodiscard]] bool uses_copy_engines(const std::byte* target, std::size_t bytes) const {
    return copy_exchange_.has_value() && bytes >= min_copy_bytes &&
           copy_exchange_->reaches(target, bytes * ranks());
  }
  /// Returns the time-out of waits on the GPU: the host, which has more information, gives up
  /// first.
  [[nodiscard]] std::chrono::nanoseconds gpu_timeout() const { return 2 * rendezvous_.timeout(); }

  Buffer<Cuda> allocate_shared(std::size_t bytes, const Context<Cuda>& context) {
    const std::size_t taken = std::max(bytes, PeerMemory::min_bytes);
    OwnedBytes owned = memory_->allocate(taken, context);
    std::byte* memory = owned.get();
    memory_->add(memory, taken, context);
    shared_.push_back(std::move(owned));
    const auto release = [](std::byte* given, void* owner) {
      static_cast<NcclComm*>(owner)->free_shared(given);
    };
    return {OwnedBytes(memory, OwnedBytesRelease{release, this}), bytes};
  }
  /// Waits for copies into the memory of other ranks; operations that wait for these have a
  /// time-out.
  void wait_for_gpu() const noexcept {
    cudaSetDevice(gpu_);
    cudaDeviceSynchronize();
    cudaGetLastError();
  }
  /// Frees memory of `allocate` once all ranks have closed it. If this rank has given up, others
  /// may still write to the memory, so it remains allocated until the process ends.
  void free_shared(std::byte* memory) noexcept {
    if (std::uncaught_exceptions() != 0) abort();
    wait_for_gpu();
    try {
      memory_->remove(memory, communicator_ != nullptr);
    } catch (const Error&) {  // another rank has ended
      abort();
    }
    const auto own = std::ranges::find(shared_, memory, &OwnedBytes::get);
    if (communicator_ == nullptr) static_cast<void>(own->release());
    shared_.erase(own);
  }

  void require_begun() const {
    require<CommError>(communicator_ != nullptr,
                       "an operation between the ranks failed before; end the program");
  }

  /// The only implementation of all-to-all.
  ncclResult_t exchange(const std::byte* parts, std::byte* received, std::size_t bytes,
                        cudaStream_t stream) {
    ncclResult_t status = ncclGroupStart();
    for (int peer = 0; status == ncclSuccess && peer < size(); ++peer) {
      if (peer == rank()) continue;
      const std::size_t begin = static_cast<std::size_t>(peer) * bytes;
      status = ncclSend(parts + begin, bytes, ncclUint8, peer, communicator_, stream);
      if (status == ncclSuccess || status == ncclInProgress)
        status = ncclRecv(received + begin, bytes, ncclUint8, peer, communicator_, stream);
      if (status == ncclInProgress) status = ncclSuccess;  // ncclGroupEnd returns it
    }
    const ncclResult_t end = ncclGroupEnd();
    return status == ncclSuccess ? end : status;
  }

  template <class Call>
  void enqueue(const char* kind, const char* what, std::size_t bytes, const Context<Cuda>& context,
               const Call& call) {
    require_begun();
    require<UsageError>(context.gpu() == gpu_, kind, " '", what, "' on GPU ", context.gpu(),
                        " of a communicator for GPU ", gpu_);
    if (bytes == 0) return;
    rendezvous_.set_operation(kind, what);
    wait_until_enqueued(call(context.stream()), kind, what);
  }

  /// Waits until the work of a call is enqueued; NCCL enqueues it in a separate thread.
  void wait_until_enqueued(ncclResult_t status, const char* kind, const char* what);

  /// @name Failures: see nccl_supervision.cuh
  /// @{
  void require_no_fault(const std::string& operation);
  void check_for_errors(const std::string& operation);
  void check_copy_exchange(const std::string& operation);
  /// Returns an operation of the host, and those that the GPU has reached, if known.
  [[nodiscard]] std::string with_gpu(const std::string& operation) const;
  [[noreturn]] void fail_with_timeout(const std::string& operation);
  [[nodiscard]] std::string nccl_text(ncclResult_t status, const std::string& operation) const;
  [[noreturn]] void fail(const std::string& reason);
  /// Ends the waits for other ranks on the GPU, in all groups. All ranks must end theirs, so they
  /// are notified.
  void abort() noexcept;
  /// NCCL cancels its kernels immediately, but its abort returns only after recorded graphs with
  /// its operations are destroyed together with the caller's objects. Therefore a thread calls it.
  void abort_own() noexcept;
  /// A stuck thread of NCCL must not block the end of the process.
  void end_abort() noexcept;
  /// @}

  Rendezvous& rendezvous_;
  Rendezvous::User user_{rendezvous_};
  int gpu_;
  NcclComm& world_;                       ///< of all ranks of the program
  std::vector<NcclComm*> communicators_;  ///< of `world_`: itself and its groups
  std::vector<int> members_;  ///< numbers of this communicator's ranks in the rendezvous
  int rank_;                  ///< index of this process among these
  int version_ = 0;
  ncclComm_t communicator_ = nullptr;  ///< null: none, or aborted
  std::string reason_;                 ///< of `world_`: why it was aborted
  std::thread aborting_;               ///< ends after all graphs with operations are destroyed
  std::future<void> aborted_;
  std::optional<PeerMemory> memory_;           ///< of `world_`; none: all operations use NCCL
  std::vector<OwnedBytes> shared_;             ///< of `world_`: the memory that `allocate` returned
  std::optional<CopyExchange> copy_exchange_;  ///< if there is `memory_`
};

}  // namespace octavo

#include <octavo/comm/cuda/nccl_supervision.cuh>

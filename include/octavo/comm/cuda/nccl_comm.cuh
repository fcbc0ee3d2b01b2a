/// @file
/// Ranks on the `Cuda` device that exchange through NCCL. Not part of cuda.cuh: a program that
/// includes this needs NCCL's header and library.
#pragma once

#include <octavo/comm/communicator.hpp>
#include <octavo/comm/rank_names.hpp>
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
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

/// "2.28.9" of 22809.
[[nodiscard]] inline std::string nccl_version_text(int version) {
  return message(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

/// Whether this NCCL gives wrong bytes where operations on symmetric windows stand in a group, or
/// are of a few bytes; 2.28.7 mended it.
[[nodiscard]] constexpr bool nccl_corrupts_symmetric_groups(int version) {
  return 22803 <= version && version <= 22806;
}

/// The version of NCCL's library.
/// @throws ConfigError  if it is older than the header that the program was compiled with, or of
///                      another major version
[[nodiscard]] inline int checked_nccl_version() {
  int version = 0;
  const ncclResult_t status = ncclGetVersion(&version);
  require<CommError>(status == ncclSuccess, "ncclGetVersion failed: ", ncclGetErrorString(status));
  const bool is_known = version / 10000 == NCCL_MAJOR && version / 100 >= NCCL_VERSION_CODE / 100;
  require<ConfigError>(is_known, "this program was compiled with NCCL ",
                       nccl_version_text(NCCL_VERSION_CODE), ", but finds the library ",
                       nccl_version_text(version), "; put one of that version or a later ",
                       NCCL_MAJOR, ".x before it in LD_LIBRARY_PATH, or compile with its header");
  return version;
}

/// One process a GPU. Nothing in it waits without a deadline: NCCL's calls return before they are
/// done and are looked after here, and what waits for a stream that has operations on it does so by
/// `wait_sync`. All operations may be enqueued while a CUDA graph is recorded, after they have been
/// enqueued once outside of it; graphs with them are to be destroyed before the communicator. For
/// one thread; contexts may differ from call to call, all of one GPU.
/// @throws CommError  from every member, naming ranks and operation: if another rank is lost, does
///                    not answer within the time-out of the rendezvous, or NCCL fails. What was
///                    enqueued is then given up, on the GPU too
class NcclComm final : public Communicator<Cuda> {
 public:
  /// All ranks call it together.
  /// @param rendezvous  outlives this
  /// @param context     of the GPU that this rank's operations are to run on
  /// @throws ConfigError  naming ranks that have the same GPU
  NcclComm(Rendezvous& rendezvous, const Context<Cuda>& context)
      : rendezvous_(rendezvous), gpu_(context.gpu()), whole_(*this), rank_(rendezvous.rank()) {
    // NVLink multicast is off, whatever the environment says: NCCL finds it by what the driver
    // claims, and where the fabric is set up for it in part, as in virtual machines with some of a
    // host's GPUs, making its groups fails or hangs. Gathers and exchanges gain little by it.
    ::setenv("NCCL_NVLS_ENABLE", "0", 1);
    ::setenv("NCCL_COMM_BLOCKING", "0", 1);  // the environment's word goes before that of `config`
    version_ = checked_nccl_version();
    for (int member = 0; member < rendezvous_.size(); ++member) members_.push_back(member);
    context.make_current();
    require_gpus_of_their_own();
    begin();
  }
  ~NcclComm() override {
    std::erase(whole_.all_, this);
    if (communicator_ == nullptr) return;
    if (std::uncaught_exceptions() != 0) {
      abort();
      return;
    }
    try {
      settle(ncclCommFinalize(communicator_), "end", "of NCCL");
      ncclCommDestroy(communicator_);
    } catch (const Error&) {  // it was aborted
    }
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(members_.size()); }
  /// Of the library, such as 22809.
  [[nodiscard]] int version() const { return version_; }

  void all_gather(TensorView<const std::byte, 1, Cuda> part, TensorView<std::byte, 1, Cuda> whole,
                  const char* what, const Context<Cuda>& context) override {
    require<ShapeError>(whole.bytes() == part.bytes() * ranks(), "all_gather '", what,
                        "': ", size(), " parts of ", part.bytes(), " bytes do not make ",
                        whole.bytes());
    enqueue("all-gather", what, part.bytes(), context, [&](cudaStream_t stream) {
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
                        received.bytes(), " to receive; both have to be ", size(),
                        " parts of one size");
    enqueue("all-to-all", what, bytes, context, [&](cudaStream_t stream) {
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

  /// Goes through rank 0's host, not through the GPUs; of a group's, too: all groups gather at
  /// once.
  void all_gather_host_sync(std::span<const std::byte> part, std::span<std::byte> whole,
                            const char* what) override {
    std::vector<std::byte> of_all(part.size() * static_cast<std::size_t>(rendezvous_.size()));
    try {
      rendezvous_.all_gather_sync(part, of_all, what);
    } catch (const CommError&) {
      abort();
      throw;
    }
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const std::size_t begin = static_cast<std::size_t>(members_[i]) * part.size();
      std::copy_n(of_all.begin() + static_cast<std::ptrdiff_t>(begin), part.size(),
                  whole.begin() + static_cast<std::ptrdiff_t>(i * part.size()));
    }
  }

  [[nodiscard]] std::unique_ptr<Communicator<Cuda>> split(int group) override {
    std::vector<int> members = ranks_of_group(group);
    const auto own = std::find(members.begin(), members.end(), rank());
    const auto place = static_cast<int>(own - members.begin());
    for (int& member : members) member = members_[static_cast<std::size_t>(member)];
    return std::unique_ptr<Communicator<Cuda>>(new NcclComm(*this, std::move(members), place));
  }

  /// Waits until all that was enqueued on the context has run; to be called in place of
  /// `context.synchronize()` wherever operations between ranks may be among it, recorded or not.
  /// Within the time-out: that has to be longer than the longest step.
  /// @param what  what is waited for, such as "step 12"
  /// @throws CudaError  if anything that was enqueued failed
  void wait_sync(const Context<Cuda>& context, const char* what) override {
    require_begun();
    rendezvous_.set_operation("wait for", what);
    const Watch watch(*this, "wait for", what);
    for (int round = 0;; ++round) {
      const cudaError_t state = cudaStreamQuery(context.stream());
      if (state == cudaSuccess) return;
      if (state != cudaErrorNotReady) {
        abort();
        check(state, "cudaStreamQuery", " in ", detail::operation_text("wait for", what));
      }
      watch.look(round);
    }
  }

 private:
  void require_gpus_of_their_own() {
    cudaDeviceProp card{};
    check(cudaGetDeviceProperties(&card, gpu_), "cudaGetDeviceProperties");
    const auto own = std::as_bytes(std::span(card.uuid.bytes));
    std::vector<std::byte> all(own.size() * ranks());
    rendezvous_.all_gather_sync(own, all, "GPUs");
    const auto of = [&](std::size_t rank) {
      return std::span(all).subspan(rank * own.size(), own.size());
    };
    for (std::size_t rank = 1; rank < ranks(); ++rank) {
      for (std::size_t other = 0; other < rank; ++other) {
        require<ConfigError>(!std::ranges::equal(of(rank), of(other)), "ranks ", other, " and ",
                             rank,
                             " have the same GPU; give each its own, by --gpu or "
                             "CUDA_VISIBLE_DEVICES, or start fewer ranks on a host");
      }
    }
  }

  using Clock = std::chrono::steady_clock;

  /// Some of another one's ranks. All of its ranks make one at the same time.
  NcclComm(NcclComm& other, std::vector<int> members, int rank)
      : rendezvous_(other.rendezvous_),
        gpu_(other.gpu_),
        whole_(other.whole_),
        members_(std::move(members)),
        rank_(rank),
        version_(other.version_) {
    check(cudaSetDevice(gpu_), "cudaSetDevice");
    begin();
  }

  void begin() {
    const ncclUniqueId id = agree_on_id();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    rendezvous_.set_operation("start", "of NCCL");
    whole_.all_.push_back(this);
    try {
      settle(ncclCommInitRankConfig(&communicator_, size(), id, rank(), &config), "start",
             "of NCCL");
    } catch (...) {
      abort();
      std::erase(whole_.all_, this);
      throw;
    }
  }

  /// What is looked at while something is awaited.
  class Watch {
   public:
    Watch(NcclComm& communicator, const char* kind, const char* what)
        : communicator_(communicator), operation_(detail::operation_text(kind, what)) {
      WaitNote::set(message("rank ", communicator.rendezvous_.rank(), " is in ", operation_));
    }

    /// Throws if the other ranks or NCCL failed, or the time is over; then waits for a moment.
    void look(int round) const {
      if (round % 16 == 0) {
        communicator_.require_sound(operation_);
        if (Clock::now() - start_ > communicator_.rendezvous_.time_out())
          communicator_.fail(message("the other ranks have not answered for ",
                                     detail::seconds_text(communicator_.rendezvous_.time_out()),
                                     " in ", operation_,
                                     "; all of them are there: see what each of them does"));
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

  /// The id that the first of the ranks made, and one version for all.
  [[nodiscard]] ncclUniqueId agree_on_id() const {
    struct Offer {
      ncclUniqueId id;
      int version;
    };
    Offer offer{};
    offer.version = version_;
    if (rank_ == 0) {
      const ncclResult_t status = ncclGetUniqueId(&offer.id);
      require<CommError>(status == ncclSuccess,
                         "ncclGetUniqueId failed: ", ncclGetErrorString(status), " (",
                         ncclGetLastError(nullptr), "); NCCL_DEBUG=INFO says more");
    }
    std::vector<Offer> offers(static_cast<std::size_t>(rendezvous_.size()));
    rendezvous_.all_gather_sync(std::as_bytes(std::span(&offer, 1)),
                                std::as_writable_bytes(std::span(offers)), "start of NCCL");
    for (int other = 0; other < rendezvous_.size(); ++other) {
      const int version = offers[static_cast<std::size_t>(other)].version;
      require<CommError>(version == offers[0].version, "rank 0 has NCCL ",
                         nccl_version_text(offers[0].version), " and rank ", other, " has ",
                         nccl_version_text(version), "; give all ranks the same library");
    }
    return offers[static_cast<std::size_t>(members_[0])].id;
  }

  void require_begun() const {
    require<CommError>(communicator_ != nullptr,
                       "an operation between the ranks failed before; the program has to end");
  }

  /// The one way of all-to-all.
  ncclResult_t exchange(const std::byte* parts, std::byte* received, std::size_t bytes,
                        cudaStream_t stream) {
    ncclResult_t status = ncclGroupStart();
    for (int peer = 0; status == ncclSuccess && peer < size(); ++peer) {
      const std::size_t begin = static_cast<std::size_t>(peer) * bytes;
      status = ncclSend(parts + begin, bytes, ncclUint8, peer, communicator_, stream);
      if (status == ncclSuccess || status == ncclInProgress)
        status = ncclRecv(received + begin, bytes, ncclUint8, peer, communicator_, stream);
      if (status == ncclInProgress) status = ncclSuccess;  // the group's end has the answer
    }
    const ncclResult_t end = ncclGroupEnd();
    return status == ncclSuccess ? end : status;
  }

  template <class Call>
  void enqueue(const char* kind, const char* what, std::size_t bytes, const Context<Cuda>& context,
               const Call& call) {
    require_begun();
    require<UsageError>(context.gpu() == gpu_, kind, " '", what, "' on GPU ", context.gpu(),
                        " of a communicator that was made for GPU ", gpu_);
    if (bytes == 0) return;
    rendezvous_.set_operation(kind, what);
    settle(call(context.stream()), kind, what);
  }

  /// Waits until what a call began is enqueued; NCCL does that in a thread of its own.
  void settle(ncclResult_t status, const char* kind, const char* what) {
    const Watch watch(*this, kind, what);
    for (int round = 0; status == ncclInProgress; ++round) {
      watch.look(round);
      const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &status);
      if (asked != ncclSuccess) status = asked;
    }
    if (status != ncclSuccess) fail(nccl_text(status, watch.operation()));
  }

  void require_sound(const std::string& operation) {
    const std::string fault = rendezvous_.fault();
    if (!fault.empty()) fail(message(fault, "; rank ", rendezvous_.rank(), " was in ", operation));
    for (const NcclComm* each : whole_.all_) {
      if (each->communicator_ == nullptr) continue;  // it is being made
      ncclResult_t status = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(each->communicator_, &status);
      if (asked != ncclSuccess) status = asked;
      if (status != ncclSuccess && status != ncclInProgress) fail(nccl_text(status, operation));
    }
  }

  [[nodiscard]] std::string nccl_text(ncclResult_t status, const std::string& operation) const {
    return message("NCCL failed on rank ", rendezvous_.rank(), " in ", operation, ": ",
                   ncclGetErrorString(status), " (", ncclGetLastError(communicator_),
                   "); another rank may have ended, and NCCL_DEBUG=INFO says more");
  }

  [[noreturn]] void fail(const std::string& reason) {
    abort();
    throw CommError(reason);
  }

  /// Lets go of what waits on the GPU for other ranks, of groups and of all; all ranks have to, so
  /// they are told.
  void abort() noexcept {
    for (NcclComm* each : whole_.all_) each->abort_own();
    abort_own();
  }
  void abort_own() noexcept {
    ncclComm_t communicator = communicator_;
    communicator_ = nullptr;
    if (communicator == nullptr) return;
    // It waits for its threads and kernels: a stuck one must not keep the process.
    std::promise<void> ended;
    std::future<void> end = ended.get_future();
    std::thread aborting([communicator, gpu = gpu_, &ended] {
      cudaSetDevice(gpu);
      ncclCommAbort(communicator);
      ended.set_value();
    });
    if (end.wait_for(rendezvous_.time_out()) != std::future_status::ready) {
      std::cerr << message("rank ", rank(), ": ncclCommAbort has not returned in ",
                           detail::seconds_text(rendezvous_.time_out()), "; the process ends\n")
                << std::flush;
      std::_Exit(EXIT_FAILURE);
    }
    aborting.join();
  }

  Rendezvous& rendezvous_;
  int gpu_;
  NcclComm& whole_;             ///< of all ranks of the program
  std::vector<NcclComm*> all_;  ///< of `whole_`: itself and its groups
  std::vector<int> members_;    ///< numbers of this one's ranks in the rendezvous
  int rank_;                    ///< of this process among these
  int version_ = 0;
  ncclComm_t communicator_ = nullptr;  ///< null: none, or aborted
};

}  // namespace octavo

/// @file
/// How a communicator of NCCL waits, detects failures, and gives up.
#pragma once

#include <octavo/comm/cuda/nccl_comm.cuh>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace octavo OCTAVO_ABI {

inline void NcclComm::wait_sync(const Context<Cuda>& context, const char* what) {
  require_begun();
  rendezvous_.set_operation("wait for", what);
  const Watchdog watchdog(*this, "wait for", what);
  for (int round = 0;; ++round) {
    const cudaError_t state = cudaStreamQuery(context.stream());
    if (state == cudaSuccess) {
      for (NcclComm* each : world_.communicators_) {
        if (each->copy_exchange_.has_value()) each->check_copy_exchange(watchdog.operation());
      }
      rendezvous_.set_operation("end of the wait for", what);
      return;
    }
    if (state != cudaErrorNotReady) {
      require_no_fault(watchdog.operation());  // an error may result from it
      abort();
      check(state, "cudaStreamQuery", " in ", detail::operation_text("wait for", what));
    }
    watchdog.poll(round);
  }
}

inline void NcclComm::wait_until_enqueued(ncclResult_t status, const char* kind, const char* what) {
  const Watchdog watchdog(*this, kind, what);
  for (int round = 0; status == ncclInProgress; ++round) {
    watchdog.poll(round);
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &status);
    if (asked != ncclSuccess) status = asked;
  }
  if (status != ncclSuccess) fail(nccl_text(status, watchdog.operation()));
}

inline void NcclComm::require_no_fault(const std::string& operation) {
  const std::string fault = rendezvous_.fault();
  if (fault.empty()) return;
  fail(message(fault, "; rank ", rendezvous_.rank(), " was in ", with_gpu(operation)));
}

inline void NcclComm::check_for_errors(const std::string& operation) {
  require_no_fault(operation);
  for (NcclComm* each : world_.communicators_) {
    if (each->communicator_ == nullptr) continue;  // it is being created
    ncclResult_t status = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(each->communicator_, &status);
    if (asked != ncclSuccess) status = asked;
    if (status != ncclSuccess && status != ncclInProgress) fail(nccl_text(status, operation));
    if (each->copy_exchange_.has_value()) each->check_copy_exchange(operation);
  }
}

inline void NcclComm::check_copy_exchange(const std::string& operation) {
  const int rank = rendezvous_.rank();
  if (const int other = copy_exchange_->mismatched_rank(); other >= 0) {
    fail(message("ranks ", std::min(rank, other), " and ", std::max(rank, other),
                 " exchange different data, or in a different order; rank ", rank, " is in ",
                 with_gpu(operation), "; start all ranks with the same program and options"));
  }
  if (copy_exchange_->has_given_up()) {
    fail(message("the other ranks have not reached the operation that rank ", rank,
                 " has been waiting in for ", detail::seconds_text(2 * rendezvous_.timeout()), ": ",
                 with_gpu(operation)));
  }
}

inline std::string NcclComm::with_gpu(const std::string& operation) const {
  std::string text = operation;
  for (const NcclComm* each : world_.communicators_) {
    if (!each->copy_exchange_.has_value()) continue;
    const std::string current_operation = each->copy_exchange_->current_operation();
    if (!current_operation.empty()) text += ", its GPU in " + current_operation;
  }
  return text;
}

inline void NcclComm::fail_with_timeout(const std::string& operation) {
  const std::optional<std::string> absent = rendezvous_.absent_sync();
  require_no_fault(operation);  // that occurred meanwhile
  fail(message("rank ", rendezvous_.rank(), " has waited for the others for ",
               detail::seconds_text(rendezvous_.timeout()), " in ", with_gpu(operation), ": ",
               detail::absent_text(absent)));
}

inline std::string NcclComm::nccl_text(ncclResult_t status, const std::string& operation) const {
  return message("NCCL failed on rank ", rendezvous_.rank(), " in ", operation, ": ",
                 ncclGetErrorString(status), " (", ncclGetLastError(communicator_),
                 "); another rank may have ended; set NCCL_DEBUG=INFO for details");
}

inline void NcclComm::fail(const std::string& reason) {
  if (world_.reason_.empty()) world_.reason_ = reason;
  abort();
  throw CommError(reason);
}

inline void NcclComm::abort() noexcept {
  for (NcclComm* each : world_.communicators_) each->abort_own();
  abort_own();
}

inline void NcclComm::abort_own() noexcept {
  if (copy_exchange_.has_value()) copy_exchange_->give_up();
  ncclComm_t communicator = std::exchange(communicator_, nullptr);
  if (communicator == nullptr) return;
  std::promise<void> ended;
  aborted_ = ended.get_future();
  aborting_ = std::thread([communicator, gpu = gpu_, ended = std::move(ended)]() mutable {
    cudaSetDevice(gpu);
    ncclCommAbort(communicator);
    ended.set_value();
  });
  aborted_.wait_for(std::chrono::seconds(1));
}

inline void NcclComm::end_abort() noexcept {
  if (!aborting_.joinable()) return;
  if (aborted_.wait_for(rendezvous_.timeout()) != std::future_status::ready) {
    std::cerr << message("rank ", rank(), ": ", world_.reason_, "; and ncclCommAbort has not ",
                         "returned in ", detail::seconds_text(rendezvous_.timeout()),
                         ": the process ends\n")
              << std::flush;
    std::_Exit(EXIT_FAILURE);
  }
  aborting_.join();
}

}  // namespace octavo

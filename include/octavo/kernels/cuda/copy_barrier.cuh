/// @file
/// Barriers in shared memory that count the bytes of asynchronous copies, on GPUs of compute
/// capability 9.0 or later.
/// Source: PTX ISA 9.0, sections on mbarrier and cp.async.bulk.
#pragma once

#include <octavo/core/version.hpp>

#include <cuda_runtime.h>

#include <cstdint>

namespace octavo OCTAVO_ABI::detail {

/// A barrier in shared memory that counts arrivals and copied bytes. Its phases are numbered from
/// 0.
struct CopyBarrier {
  std::uint32_t address;

  __device__ void initialize(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals)
                 : "memory");
  }
  /// Makes the initialisation of barriers visible to copies and to the blocks of the cluster. The
  /// thread that initialised them calls it once.
  static __device__ void publish() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __device__ void arrive() const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
  }
  /// Arrives at the barrier at the same address of another block of the cluster.
  __device__ void arrive_at(int block) const {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(address),
        "r"(block)
        : "memory");
  }
  /// Arrives, and lets the phase end only after this many bytes have been copied.
  __device__ void arrive_and_expect(int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
                 : "memory");
  }
  /// Waits for the end of phase number `phase`, or of any phase of the same parity.
  __device__ void wait(int phase) const {
    asm volatile(
        "{\n.reg .pred p;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@p bra done;\nbra again;\ndone:\n}\n" ::"r"(address),
        "r"(phase % 2)
        : "memory");
  }
  /// Starts a copy from global memory whose bytes this barrier counts.
  __device__ void copy(std::uint32_t target, const void* source, int bytes) const {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(target),
        "l"(__cvta_generic_to_global(source)), "r"(bytes), "r"(address)
        : "memory");
  }
};

/// Waits for all threads of the cluster's blocks.
__device__ inline void synchronize_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;\n" ::
          : "memory");
}

}  // namespace octavo::detail

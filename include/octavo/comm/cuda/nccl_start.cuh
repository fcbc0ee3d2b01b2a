/// @file
/// Agreements between ranks before NCCL connects them.
#pragma once

#include <octavo/comm/rendezvous.hpp>
#include <octavo/core/cuda/context.cuh>
#include <octavo/core/error.hpp>

#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Returns "2.28.9" for 22809.
[[nodiscard]] inline std::string nccl_version_text(int version) {
  return message(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

/// Returns the version of NCCL's library.
/// @throws ConfigError  if it is older than the header that the program was compiled with, or has a
///                      different major version
[[nodiscard]] inline int checked_nccl_version() {
  int version = 0;
  const ncclResult_t status = ncclGetVersion(&version);
  require<CommError>(status == ncclSuccess, "ncclGetVersion failed: ", ncclGetErrorString(status));
  const bool is_known = version / 10000 == NCCL_MAJOR && version / 100 >= NCCL_VERSION_CODE / 100;
  require<ConfigError>(is_known, "this program was compiled with NCCL ",
                       nccl_version_text(NCCL_VERSION_CODE), ", but the loaded library is ",
                       nccl_version_text(version), "; put a library of that version or a later ",
                       NCCL_MAJOR, ".x before it in LD_LIBRARY_PATH, or compile with its header");
  return version;
}

namespace detail {

/// @throws ConfigError  naming ranks that have the same GPU
inline void require_distinct_gpus(Rendezvous& rendezvous, int gpu) {
  cudaDeviceProp card{};
  check(cudaGetDeviceProperties(&card, gpu), "cudaGetDeviceProperties");
  const auto own = std::as_bytes(std::span(card.uuid.bytes));
  const auto ranks = static_cast<std::size_t>(rendezvous.size());
  std::vector<std::byte> all(own.size() * ranks);
  rendezvous.all_gather_sync(own, all, "GPUs");
  const auto of = [&](std::size_t rank) {
    return std::span(all).subspan(rank * own.size(), own.size());
  };
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    for (std::size_t other = 0; other < rank; ++other) {
      require<ConfigError>(!std::ranges::equal(of(rank), of(other)), "ranks ", other, " and ", rank,
                           " have the same GPU; pass a different --gpu to each, set "
                           "CUDA_VISIBLE_DEVICES, or start fewer ranks on a host");
    }
  }
}

/// Returns the id that the first of a communicator's ranks created, and checks that all have the
/// same version. All ranks of the program call it together.
/// @param is_first  whether this rank creates the id
/// @param first     number of the creating rank in the rendezvous
[[nodiscard]] inline ncclUniqueId agree_on_nccl(Rendezvous& rendezvous, bool is_first, int first,
                                                int version) {
  struct Offer {
    ncclUniqueId id;
    int version;
  };
  Offer offer{};
  offer.version = version;
  if (is_first) {
    const ncclResult_t status = ncclGetUniqueId(&offer.id);
    require<CommError>(status == ncclSuccess,
                       "ncclGetUniqueId failed: ", ncclGetErrorString(status), " (",
                       ncclGetLastError(nullptr), "); set NCCL_DEBUG=INFO for details");
  }
  std::vector<Offer> offers(static_cast<std::size_t>(rendezvous.size()));
  rendezvous.all_gather_sync(std::as_bytes(std::span(&offer, 1)),
                             std::as_writable_bytes(std::span(offers)), "start of NCCL");
  for (std::size_t other = 0; other < offers.size(); ++other) {
    require<CommError>(offers[other].version == offers[0].version, "rank 0 has NCCL ",
                       nccl_version_text(offers[0].version), " and rank ", other, " has ",
                       nccl_version_text(offers[other].version),
                       "; use the same library on all ranks");
  }
  return offers[static_cast<std::size_t>(first)].id;
}

}  // namespace detail
}  // namespace octavo

/// @file
/// What ranks have to agree on before NCCL connects them.
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

/// "2.28.9" of 22809.
[[nodiscard]] inline std::string nccl_version_text(int version) {
  return message(version / 10000, ".", version / 100 % 100, ".", version % 100);
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

namespace detail {

/// @throws ConfigError  naming ranks that have the same GPU
inline void require_gpus_of_their_own(Rendezvous& rendezvous, int gpu) {
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
                           " have the same GPU; give each its own, by --gpu or "
                           "CUDA_VISIBLE_DEVICES, or start fewer ranks on a host");
    }
  }
}

/// The id that the first of a communicator's ranks made, and one version for all. All ranks of the
/// program call it together.
/// @param is_first  this rank makes the id
/// @param first     number of the rank that does, of the rendezvous
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
                       ncclGetLastError(nullptr), "); NCCL_DEBUG=INFO says more");
  }
  std::vector<Offer> offers(static_cast<std::size_t>(rendezvous.size()));
  rendezvous.all_gather_sync(std::as_bytes(std::span(&offer, 1)),
                             std::as_writable_bytes(std::span(offers)), "start of NCCL");
  for (std::size_t other = 0; other < offers.size(); ++other) {
    require<CommError>(offers[other].version == offers[0].version, "rank 0 has NCCL ",
                       nccl_version_text(offers[0].version), " and rank ", other, " has ",
                       nccl_version_text(offers[other].version),
                       "; give all ranks the same library");
  }
  return offers[static_cast<std::size_t>(first)].id;
}

}  // namespace detail
}  // namespace octavo

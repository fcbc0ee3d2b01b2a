/// @file
/// Facts of a session.
#pragma once

#include <octavo/comm/sharding.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/models/model.hpp>

#include <cstddef>
#include <optional>
#include <string>

namespace octavo OCTAVO_ABI {

/// Facts of a session, which do not change after its construction: those of its model, and more.
struct SessionFacts : ModelFacts {
  std::string precision{};
  std::string optimizer{};  ///< its name and the formats of its state
  std::string card{};       ///< name of the GPU, such as "NVIDIA H200"; "" on `Cpu`
  std::string bus_id{};     ///< PCI bus id of the GPU, such as "0000:3b:00.0"; "" on `Cpu`
  /// The GPU and the libraries that run the computation; "" on `Cpu`. See `libraries_text`.
  std::string libraries{};
  Sharding sharding{};      ///< how ranks share the work, and the index of this rank
  std::string transport{};  ///< see Communicator
  /// The adapters of a model of which only the adapters are trained; empty if all weights are
  /// trained.
  std::optional<LoraOptions> lora{};
  /// The shape in which micro-batches run: sequences may be longer than in the options' batch,
  /// padded with rows without targets; see `Decoder::run_shape`.
  BatchShape run_shape{};
  Index micro_batches = 1;  ///< per step
  Index head_chunks = 1;
  Index parameters_gathered_in_fp8 = 0;  ///< how many of `parameters` ranks exchange in FP8
  MemoryPlan memory{};
  std::size_t allocated_bytes = 0;
  std::size_t allocated_host_bytes = 0;  ///< in addition to device memory
};

}  // namespace octavo

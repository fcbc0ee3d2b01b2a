// The models that a program was compiled with, one for each preset, precision and device.
#pragma once

#include <octavo/comm/rendezvous.hpp>
#include <octavo/inference/inferring.hpp>
#include <octavo/models/model_description.hpp>
#include <octavo/octavo.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

/// Formats of the optimizer's state: "fp32", "bf16", of moments "8bit", or "auto".
struct StateFormats {
  std::string master_weights = "auto";
  std::string moments = "auto";
};

/// What gradients can travel in between ranks, as --reduce has it.
inline const std::vector<std::string> reductions = {
    "stored",
#if defined(OCTAVO_PROGRAM_REDUCES_FP32)
    "fp32",
#endif
#if defined(OCTAVO_PROGRAM_REDUCES_E4M3)
    "e4m3",
#endif
};

/// Everything that a session is made from.
struct SessionRequest {
  octavo::SessionOptions options;
  StateFormats formats;
  int threads = 0;  ///< of the `Cpu` device; 0: all
  int gpu = 0;      ///< of the `Cuda` device
  /// Among the ranks of its host; then it has the GPU that the launcher meant for it.
  std::optional<int> local_rank{};
  bool gathers_fp8 = false;       ///< weights travel in FP8 where they are multiplied with so
  std::string reduce = "stored";  ///< what gradients travel in, of `reductions`
  bool only_nccl = false;         ///< ranks on the `Cuda` device do not copy
  bool deterministic = false;     ///< the `Cuda` device gives the same bits in every run
  std::vector<octavo::GemmPlanRecord> gemm_plans;      ///< algorithms that earlier runs chose
  octavo::Communicator<octavo::Cpu>* ranks = nullptr;  ///< of the `Cpu` device; null: one rank
  octavo::Rendezvous* rendezvous = nullptr;            ///< of the `Cuda` device; null: one rank
};

/// Everything that an inference is made from.
struct InferenceRequest {
  octavo::InferenceShape shape;
  int threads = 0;  ///< of the `Cpu` device; 0: all
  int gpu = 0;      ///< of the `Cuda` device
};

/// One preset in one precision on one device, of layers that so many ranks share.
struct Instance {
  int number;  ///< in the order that the build lists them
  std::string model;
  std::string precision;
  std::string device;
  /// Null in programs that do not train.
  std::shared_ptr<octavo::TrainingSession> (*make)(const SessionRequest&) = nullptr;
  /// Null in those that do not generate.
  std::shared_ptr<octavo::Inferring> (*infer)(const InferenceRequest&) = nullptr;
  int tensor_parallel = 1;
  octavo::ModelDescription shape{};
  bool has_adapters = false;  ///< nothing else is trained: see Lora
};

/// All instances in order; each translation unit of an instance adds its own.
inline std::vector<Instance>& instances() {
  static std::vector<Instance> all;
  return all;
}

/// Adds an instance at program start.
struct Registration {
  explicit Registration(Instance instance) {
    const auto comes_later = [&](const Instance& other) { return other.number > instance.number; };
    const auto place = std::find_if(instances().begin(), instances().end(), comes_later);
    instances().insert(place, std::move(instance));
  }
};

}  // namespace trainer

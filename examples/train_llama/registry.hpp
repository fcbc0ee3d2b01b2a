// The compiled models, one for each preset, precision and device.
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

/// Formats of the optimizer state: "fp32", "bf16", for moments also "8bit", or "auto"; and the
/// optimizer, "adamw" or "muon".
struct StateFormats {
  std::string master_weights = "auto";
  std::string moments = "auto";
  std::string optimizer = "adamw";
};

/// Compiled formats of --reduce for gradients between ranks.
inline const std::vector<std::string> reductions = {
    "stored",
#if defined(OCTAVO_PROGRAM_REDUCES_FP32)
    "fp32",
#endif
#if defined(OCTAVO_PROGRAM_REDUCES_E4M3)
    "e4m3",
#endif
};

/// Everything that a session is created from.
struct SessionRequest {
  octavo::SessionOptions options;
  StateFormats formats;
  int threads = 0;  ///< for the `Cpu` device; 0 means all
  int gpu = 0;      ///< for the `Cuda` device
  /// Index among the ranks of its host, which selects the GPU.
  std::optional<int> local_rank{};
  bool gathers_fp8 = false;       ///< weights that FP8 GEMMs use with one scale per tensor are
                                  ///< gathered in FP8
  std::string reduce = "stored";  ///< format of gradients, one of `reductions`
  bool only_nccl = false;         ///< ranks on the `Cuda` device use no copy engines
  bool deterministic = false;     ///< bitwise reproducible results on the `Cuda` device
  std::vector<octavo::GemmPlanRecord> gemm_plans;      ///< algorithms that earlier runs chose
  octavo::Communicator<octavo::Cpu>* ranks = nullptr;  ///< for the `Cpu` device; null for one rank
  octavo::Rendezvous* rendezvous = nullptr;            ///< for the `Cuda` device; null for one rank
};

/// Everything that an inference session is created from.
struct InferenceRequest {
  octavo::InferenceShape shape;
  int threads = 0;  ///< for the `Cpu` device; 0 means all
  int gpu = 0;      ///< for the `Cuda` device
};

/// One preset in one precision on one device, with one tensor-parallel degree.
struct Instance {
  int number;  ///< in the order of the build's lists
  std::string model;
  std::string precision;
  std::string device;
  /// Null in programs that do not train.
  std::shared_ptr<octavo::TrainingSession> (*make)(const SessionRequest&) = nullptr;
  /// Null in programs that do not generate.
  std::shared_ptr<octavo::Inferring> (*infer)(const InferenceRequest&) = nullptr;
  int tensor_parallel = 1;
  octavo::ModelDescription shape{};
  bool has_adapters = false;  ///< only adapters are trained, see Lora
};

/// Returns all instances in order; the translation unit of each instance adds it.
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

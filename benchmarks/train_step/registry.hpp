// The models that the benchmark was compiled with, one for each preset and precision.
#pragma once

#include <octavo/comm/launch.hpp>
#include <octavo/comm/rendezvous.hpp>
#include <octavo/octavo.hpp>

#include <memory>
#include <string>
#include <vector>

namespace benchmarks {

/// The rule that updates the parameters and the format of its moments. All use BF16 master weights.
enum class OptimizerKind { adamw, adamw_8bit, muon };

/// Everything that a session is made from.
struct Request {
  octavo::SessionOptions options;
  std::vector<octavo::GemmPlanRecord> gemm_plans;  ///< algorithms that earlier runs chose
  OptimizerKind optimizer = OptimizerKind::adamw;
  bool deterministic = false;
  int local_rank = 0;                        ///< among those of its host
  octavo::Rendezvous* rendezvous = nullptr;  ///< of several ranks
  bool only_nccl = false;                    ///< nothing travels by copy engines
};

/// One preset in one precision on the Cuda device.
struct Instance {
  std::string model;
  std::string precision;
  std::string reduce;  ///< empty: of one rank
  std::string gather;
  std::shared_ptr<octavo::TrainingSession> (*make)(const Request&);
};

/// All instances; each translation unit of an instance adds its own.
inline std::vector<Instance>& instances() {
  static std::vector<Instance> all;
  return all;
}

/// Adds an instance at program start.
struct Registration {
  explicit Registration(Instance instance) { instances().push_back(std::move(instance)); }
};

}  // namespace benchmarks

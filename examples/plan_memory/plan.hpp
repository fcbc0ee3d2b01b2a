// The memory plans of presets, as the program asks for them.
#pragma once

#include <octavo/octavo.hpp>

#include <string>
#include <vector>

namespace planner {

/// What a plan depends on beside model and precision.
struct Request {
  octavo::SessionOptions session;
  std::string device;
  std::string master_weights;
  std::string moments;
  std::string gather;
  std::string reduce;
  octavo::DeviceLimits<octavo::Cpu> cpu;
  octavo::DeviceLimits<octavo::Cuda> cuda;
};

/// What of a model's shape counts where ranks share its layers.
struct SharedShape {
  octavo::Index layers = 0;
  octavo::Index hidden = 0;
  int divisor = 1;  ///< a multiple of each degree that can share the layers; 1: they are not shared
};

/// One preset in one precision, of layers that so many ranks share, or that have adapters.
struct Plan {
  octavo::ModelFacts facts;
  SharedShape shape;
  std::string precision;
  int tensor_parallel = 1;
  bool has_adapters = false;  ///< and nothing else is trained: see Lora
  octavo::MemoryPlan (*make)(const Request&);
  /// What the model's manifest announces on `Cuda`.
  std::vector<octavo::GemmEntry> (*gemms)(const Request&);
  /// See octavo::TrainingSession.
  octavo::BatchShape (*run_shape)(const Request&);
};

/// The plans of one preset in every precision. One translation unit for each preset makes them.
template <auto Config>
std::vector<Plan> plans();

/// The plan of one preset in the precision of that name, or in `Lora<…>` of it, of layers that
/// `Degree` ranks share; likewise.
template <auto Config, class Precision, int Degree>
Plan plan_of(const std::string& precision);

/// The plans of all presets that the program was compiled with.
std::vector<Plan> all_plans();

}  // namespace planner

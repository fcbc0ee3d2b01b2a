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
  octavo::DeviceLimits<octavo::Cpu> cpu;
  octavo::DeviceLimits<octavo::Cuda> cuda;
};

/// One preset in one precision.
struct Plan {
  octavo::ModelFacts facts;
  std::string precision;
  octavo::MemoryPlan (*make)(const Request&);
  /// What the model's manifest announces on `Cuda`.
  std::vector<octavo::GemmEntry> (*gemms)(const Request&);
};

/// The plans of one preset in every precision. One translation unit for each preset makes them.
template <auto Config>
std::vector<Plan> plans();

/// The plans of all presets that the program was compiled with.
std::vector<Plan> all_plans();

}  // namespace planner

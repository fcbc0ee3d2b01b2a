// The memory plan of a model of any shape.
#pragma once

#include <octavo/octavo.hpp>
#include <plan_memory/shape.hpp>

#include <string>
#include <vector>

namespace planner {

/// Settings of a plan other than the model and its precision.
struct Request {
  octavo::SessionOptions session;
  std::string device;
  std::string master_weights;
  std::string moments;
  std::string optimizer = "adamw";
  std::string gather;
  std::string reduce;
  Index tensor_parallel = 1;  ///< tensor-parallel degree
  bool has_adapters = false;  ///< only adapters are trained, see octavo::Lora
  octavo::DeviceLimits<octavo::Cpu> cpu;
  octavo::DeviceLimits<octavo::Cuda> cuda;
};

/// Plans of one precision on one device.
struct PrecisionPlans {
  std::string precision;
  bool has_adapters = false;
  octavo::MemoryPlan (*memory)(const Shape&, const Request&);
  /// Returns the GEMMs of a micro-batch, as in the model's manifest.
  std::vector<octavo::GemmEntry> (*gemms)(const Shape&, const Request&);
  /// See octavo::TrainingSession.
  octavo::BatchShape (*run_shape)(const Shape&, const Request&);
  octavo::AttentionForward attention_forward;
};

std::vector<PrecisionPlans> plans_on_cpu();
std::vector<PrecisionPlans> plans_on_cuda();
/// Appends the plans of the types in OCTAVO_PRECISIONS and OCTAVO_CUDA_PRECISIONS.
void append_added_plans(std::vector<PrecisionPlans>& on_cpu, std::vector<PrecisionPlans>& on_cuda);

/// The plans of all precisions.
struct KnownPlans {
  KnownPlans() { append_added_plans(on_cpu, on_cuda); }
  std::vector<PrecisionPlans> on_cpu = plans_on_cpu();
  std::vector<PrecisionPlans> on_cuda = plans_on_cuda();
};

/// Plans of one model in one precision.
class Plan {
 public:
  Plan(Shape shape, std::string precision)
      : shape_(std::move(shape)), precision_(std::move(precision)) {}

  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] const std::string& precision() const { return precision_; }
  [[nodiscard]] octavo::ModelFacts facts() const { return shape_.facts(); }

  /// @throws ConfigError  if these options are not supported
  [[nodiscard]] octavo::MemoryPlan memory(const Request& request) const {
    return plans(request).memory(shape_, request);
  }
  [[nodiscard]] std::vector<octavo::GemmEntry> gemms(const Request& request) const {
    return plans(request).gemms(shape_, request);
  }
  [[nodiscard]] octavo::BatchShape run_shape(const Request& request) const {
    return plans(request).run_shape(shape_, request);
  }
  [[nodiscard]] octavo::AttentionForward attention_forward(const Request& request) const {
    return plans(request).attention_forward;
  }

 private:
  [[nodiscard]] const PrecisionPlans& plans(const Request& request) const {
    static const KnownPlans known;
    const bool is_on_cpu = request.device == octavo::Cpu::name;
    for (const PrecisionPlans& plans : is_on_cpu ? known.on_cpu : known.on_cuda) {
      if (plans.precision == precision_ && plans.has_adapters == request.has_adapters) return plans;
    }
    throw octavo::ConfigError(
        "the cuda device does not multiply these blocks; choose --precision fp8-blockwise, or "
        "--device cpu");
  }

  Shape shape_;
  std::string precision_;
};

}  // namespace planner

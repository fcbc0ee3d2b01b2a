/// @file
/// The weights of a session in device memory, without their format.
#pragma once

#include <octavo/session/session_weights.hpp>
#include <octavo/session/state_entry.hpp>

#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// The name of a parameter and the number of its elements that are visible to users.
struct ParameterFacts {
  std::string name;
  Index elements = 0;    ///< of the whole, without padding rows
  ParameterPart part{};  ///< the part that this rank has
  Index columns = 0;     ///< of the whole
  std::string format{};  ///< of its weight
  bool is_adapter = false;
  bool is_frozen = false;
};

/// The weights of a session, without their format: the public interface, and functions that only
/// the session calls.
template <Device D>
class WeightsOnDevice : public SessionWeights {
 public:
  [[nodiscard]] std::vector<WeightInfo> list() const override {
    std::vector<WeightInfo> all;
    for (const ParameterFacts& parameter : parameters_) {
      const Index columns = parameter.columns;
      all.push_back({parameter.name, parameter.format, parameter.elements / columns, columns,
                     parameter.is_adapter});
    }
    return all;
  }

  [[nodiscard]] const std::vector<ParameterFacts>& parameters() const { return parameters_; }

  /// Visits the weights that are not frozen and that this rank updates.
  virtual void visit_state(StateCollector<D>& collector) = 0;
  /// Frees memory that is not kept across steps.
  virtual void begin_step() = 0;

 protected:
  explicit WeightsOnDevice(std::vector<ParameterFacts> parameters)
      : parameters_(std::move(parameters)) {}

 private:
  std::vector<ParameterFacts> parameters_;
};

}  // namespace octavo OCTAVO_ABI::detail

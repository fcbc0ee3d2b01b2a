/// @file
/// Detects quantised operands whose format no longer suits them, from their records.
#pragma once

#include <octavo/layers/scaling_table.hpp>

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Operands that newly have the same problem.
struct OperandTrouble {
  std::string kind;                     ///< "saturated", "flushed" or "drifting"
  std::vector<std::string> operands{};  ///< their names
  std::string text{};                   ///< a sentence about the first, and how many more there are
};

/// Examines the records of a run's operands in order, and reports each operand whose format no
/// longer suits it, once for each kind of problem.
class OperandHealth {
 public:
  /// Minimum shares of values that justify a warning.
  static constexpr double max_saturated = 0.01;
  static constexpr double max_flushed = 0.5;
  /// Maximum factor by which an amax may differ from its usual value, in either direction.
  static constexpr double max_drift = 32;
  /// Number of records of an operand before it is examined: amaxes change most in the first steps,
  /// and the usual amax must be known.
  static constexpr int min_records = 4;

  /// @param operands  the same operands in the same order in every call; of a step that was not
  ///                  skipped
  /// @return problems that are new since the last call, of each kind
  [[nodiscard]] std::vector<OperandTrouble> examine(const std::vector<OperandReport>& operands) {
    histories_.resize(operands.size());
    Trouble saturated{"saturated"};
    Trouble flushed{"flushed"};
    Trouble drifting{"drifting"};
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const OperandReport& operand = operands[i];
      History& history = histories_[i];
      const bool is_examined = history.records++ >= min_records;
      if (is_examined && operand.saturated > max_saturated &&
          !std::exchange(history.saturated, true)) {
        saturated.add(operand.name,
                      message(percent(operand.saturated),
                              " of its values saturated to the maximum of ", operand.format));
      }
      if (is_examined && operand.flushed > max_flushed && !std::exchange(history.flushed, true)) {
        flushed.add(operand.name, message(percent(operand.flushed),
                                          " of its values became zero in ", operand.format));
      }
      if (!(operand.amax > 0) || !std::isfinite(operand.amax)) continue;
      const double log2_amax = std::log2(static_cast<double>(operand.amax));
      const double deviation =
          history.nonzero_records == 0 ? 0 : log2_amax - history.mean_log2_amax;
      if (history.nonzero_records >= min_records && std::abs(deviation) > std::log2(max_drift) &&
          !std::exchange(history.drifted, true)) {
        drifting.add(
            operand.name,
            message("its amax is ", operand.amax, ", ", std::exp2(std::abs(deviation)),
                    deviation > 0 ? " times its usual value" : " times smaller than usual"));
      }
      // A moving mean, because gradients become smaller as a model learns.
      history.mean_log2_amax += history.nonzero_records == 0 ? log2_amax : deviation / 4;
      ++history.nonzero_records;
    }
    std::vector<OperandTrouble> troubles;
    for (const Trouble* trouble : {&saturated, &flushed, &drifting}) {
      if (!trouble->operands.empty()) troubles.push_back(trouble->summary());
    }
    return troubles;
  }

 private:
  struct History {
    double mean_log2_amax = 0;
    int records = 0;
    int nonzero_records = 0;  ///< records of an amax above zero
    bool saturated = false;
    bool flushed = false;
    bool drifted = false;
  };

  /// One kind of problem, and the operands that newly have it.
  struct Trouble {
    explicit Trouble(std::string_view what) : kind(what) {}

    void add(const std::string& name, const std::string& what) {
      if (operands.empty()) first = message(name, ": ", what);
      operands.push_back(name);
    }
    [[nodiscard]] OperandTrouble summary() const {
      const std::size_t more = operands.size() - 1;
      return {std::string(kind), operands,
              more == 0 ? first
                        : message(first, "; ", more, " more ", more == 1 ? "is " : "are ", kind)};
    }

    std::string_view kind;
    std::string first{};
    std::vector<std::string> operands{};
  };

  static std::string percent(double share) { return message(100 * share, " %"); }

  std::vector<History> histories_;
};

}  // namespace octavo

#pragma once

#include <array>
#include <limits>

/// Delayed scaling followed for 20 steps, as literals that share no code with the library:
/// tests/golden/make_delayed_trace.py computed them in numpy float32 and states the rules.
namespace reference {

inline constexpr int delayed_history_length = 4;
inline constexpr int delayed_step_count = 20;

/// Which entry of the history gives the scale.
enum class DelayedReduction { max, most_recent };

/// One step: what was observed, and the state that must hold after it.
struct DelayedRow {
  int step;        ///< 1 to 20
  float observed;  ///< largest magnitude of the unscaled tensor; may be 0, Inf or NaN
  std::array<float, delayed_history_length> history;  ///< after the step, newest first, 0 if unused
  float scale;                                        ///< after the step; 1 before the first
  int dropped;  ///< non-finite observations so far, this one included
};

/// Twenty steps of one operand, from scale 1 and a history of zeros.
struct DelayedTrace {
  const char* format;  ///< "e4m3" or "e5m2"
  float format_max;    ///< 448 or 57344
  DelayedReduction reduction;
  int margin;  ///< the scale is multiplied by 2^-margin
  std::array<DelayedRow, delayed_step_count> rows;
};

namespace delayed_detail {

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

inline constexpr std::array<DelayedTrace, 12> traces{{
#include "delayed_trace.inc"
}};

}  // namespace delayed_detail

/// Every pair of format and reduction with margins 0, 1 and 2; all observe the same 20 values.
inline constexpr const std::array<DelayedTrace, 12>& delayed_traces = delayed_detail::traces;

// Three rows by hand, so that the table cannot drift unnoticed: E4M3, margin 0. An amax of 1e-40
// overflows to FLT_MAX; of history {3, 1e-40} the largest is 3; the newest of step 19 is 448.
static_assert(delayed_traces[0].rows[1].scale == std::numeric_limits<float>::max());
static_assert(delayed_traces[0].rows[2].scale == 448.0F / 3.0F);
static_assert(delayed_traces[3].rows[18].scale == 1.0F);

}  // namespace reference

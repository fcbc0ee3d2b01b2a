/// @file
/// Training, evaluation and recomputation as types.
#pragma once

namespace octavo {

/// What a forward pass is for. Evaluation cannot touch an amax history or save for a backward,
/// because the type says so.
struct Mode {
  /// Saves what the backward needs; records amax and statistics.
  struct train {
    static constexpr bool saves = true;
    static constexpr bool records = true;
    static constexpr bool finds_scales = true;
  };
  /// Saves and records nothing.
  struct evaluate {
    static constexpr bool saves = false;
    static constexpr bool records = false;
    static constexpr bool finds_scales = true;
  };
  /// Makes again, inside the backward, what the forward did not keep; records nothing twice, and
  /// casts with the forward's scales.
  struct recompute {
    static constexpr bool saves = true;
    static constexpr bool records = false;
    static constexpr bool finds_scales = false;
  };
};

/// What a block makes again in the backward instead of keeping it. Each level includes those
/// before it; none changes a bit of the result.
enum class Recompute {
  none,    ///< everything is kept
  norms,   ///< outputs of RMSNorm
  swiglu,  ///< and of SwiGLU
  ffn,     ///< and of the gate and up projection
  block,   ///< everything but the block's input
};

}  // namespace octavo

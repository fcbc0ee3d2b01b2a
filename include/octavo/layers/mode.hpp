/// @file
/// Training, evaluation and recomputation as types.
#pragma once

#include <octavo/core/version.hpp>

namespace octavo OCTAVO_ABI {

/// What a forward pass is for. Evaluation cannot touch an amax history or save for a backward,
/// because the type says so; and nothing but generation knows a text's earlier tokens.
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
  /// Saves and records nothing; attends to the keys and values of earlier tokens, which are cached,
  /// and caches those of its own.
  struct generate {
    static constexpr bool saves = false;
    static constexpr bool records = false;
    static constexpr bool finds_scales = true;
  };
};

/// What a block makes again in the backward instead of keeping it. Each level includes those
/// before it; none changes a bit of the result.
enum class Recompute {
  none,    ///< everything is kept
  norms,   ///< outputs of norms: RMSNorm, LayerNorm
  swiglu,  ///< and of the MLP's activation: SwiGLU, GELU or one's own
  ffn,     ///< and of the MLP's first projection: gate and up, or up alone
  block,   ///< everything but the block's input
};

/// What a part of a block makes again: by the policy, and by its place.
///
/// Under `Recompute::block` a block first runs every branch but the last once more, whole, in
/// `Mode::recompute`: the branch behind it reads its output. That saves what their backwards need.
/// The last branch's output is not needed again, so the part's own backward makes what is missing.
struct Recomputation {
  Recompute policy = Recompute::none;
  bool is_last = true;  ///< of the block's branches

  /// Whether what is dropped from policy `from` on is made twice, by the block or by the part's
  /// backward: what the manifest is told of the GEMMs that make it.
  [[nodiscard]] constexpr bool drops(Recompute from) const { return policy >= from; }
  /// Whether the block runs the part's forward once more, with the GEMM that ends it.
  [[nodiscard]] constexpr bool runs_forward_again() const {
    return policy == Recompute::block && !is_last;
  }
  /// Whether the part's backward has to make what is dropped from policy `from` on.
  [[nodiscard]] constexpr bool in_backward(Recompute from) const {
    return drops(from) && !runs_forward_again();
  }
};

}  // namespace octavo

/// @file
/// Training, evaluation and recomputation as types.
#pragma once

#include <octavo/core/version.hpp>

#include <cstddef>

namespace octavo OCTAVO_ABI {

/// Modes of a forward pass. They are types, so that evaluation cannot change an amax history or
/// save data for a backward, and only generation reads a text's earlier tokens.
struct Mode {
  /// Saves activations for the backward; records amax and statistics.
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
  /// Recomputes, inside the backward, activations that the forward did not keep. Does not record
  /// again, and casts with the forward's scales.
  struct recompute {
    static constexpr bool saves = true;
    static constexpr bool records = false;
    static constexpr bool finds_scales = false;
  };
  /// Saves no activations and records no amaxes; attends to the cached keys and values of earlier
  /// tokens, and caches those of the new tokens.
  struct generate {
    static constexpr bool saves = false;
    static constexpr bool records = false;
    static constexpr bool finds_scales = true;
  };
};

/// Policies of recomputation: the activations that the backward recomputes instead of keeping. Each
/// policy also drops those of the policies before it. Results are bitwise identical for all.
enum class Recompute {
  none,    ///< everything is kept
  norms,   ///< outputs of norms: RMSNorm, LayerNorm
  swiglu,  ///< also the MLP's activation: SwiGLU, GELU or a custom one
  ffn,     ///< also the MLP's first projection: gate and up, or up alone
  block,   ///< everything except the block's input
};

/// Stands for the first policy that drops an activation if none does.
inline constexpr auto kept_by_all_policies =
    static_cast<Recompute>(static_cast<int>(Recompute::block) + 1);

/// Number of device buffers that the offloaded activations of blocks use in turn.
inline constexpr std::size_t activation_buffers = 2;

/// The recomputation that a part of a block performs, by policy and position.
///
/// Under `Recompute::block`, a block first runs every branch except the last again as a whole, in
/// `Mode::recompute`, because the next branch reads its output. This also saves the activations for
/// their backwards. The output of the last branch is not needed again, so its backward recomputes
/// only the missing activations.
struct Recomputation {
  Recompute policy = Recompute::none;
  bool is_last = true;  ///< the last of the block's branches

  /// Whether the policy drops data that `from` and all later policies drop. The block or the part's
  /// backward then recomputes the data, and the manifest counts the corresponding GEMMs twice.
  [[nodiscard]] constexpr bool drops(Recompute from) const { return policy >= from; }
  /// Whether the block runs the part's forward again, including its last GEMM.
  [[nodiscard]] constexpr bool runs_forward_again() const {
    return policy == Recompute::block && !is_last;
  }
  /// Whether the part's backward must recompute data that `from` and all later policies drop.
  [[nodiscard]] constexpr bool in_backward(Recompute from) const {
    return drops(from) && !runs_forward_again();
  }
};

}  // namespace octavo

/// @file
/// Cross-entropy of logits against target tokens.
#pragma once

#include <octavo/tensor/tensor.hpp>

namespace octavo OCTAVO_ABI {

/// Computes losses[t] = log Σ exp(logits[t, :]) − logits[t, targets[t]] over the first `vocabulary`
/// columns. A negative target is ignored: its loss and gradient are 0. A target beyond the
/// vocabulary results in a NaN loss and gradient, because checking targets would require
/// synchronisation. Unless `gradient_scale` is empty, the logits are overwritten with the gradient
/// of their loss times this scale, and with 0 in padding columns.
/// @param logits          [tokens, padded vocabulary]
/// @param targets         [tokens], below `vocabulary`
/// @param losses          [tokens]
/// @param vocabulary      number of columns without padding
/// @param gradient_scale  [1], for a mean over n tokens 1/n; on the device, so that a recorded step
/// is valid for any number of targets; empty in evaluation
/// @note enqueues; does not synchronise
template <class T, Device D>
void cross_entropy(TensorView<T, 2, D> logits, TensorView<const std::int32_t, 1, D> targets,
                   TensorView<float, 1, D> losses, Index vocabulary,
                   TensorView<const float, 1, D> gradient_scale, const Context<D>& context) {
  check_shape("cross_entropy", "targets", targets, {logits.extent(0)});
  check_shape("cross_entropy", "losses", losses, {logits.extent(0)});
  require<ShapeError>(vocabulary > 0 && vocabulary <= logits.extent(1),
                      "cross_entropy: a vocabulary of ", vocabulary, " does not fit logits of ",
                      logits.extent(1), " columns");
  if (!gradient_scale.empty()) check_shape("cross_entropy", "gradient_scale", gradient_scale, {1});
  cross_entropy_body(logits, targets, losses, vocabulary, gradient_scale, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/cross_entropy.hpp>

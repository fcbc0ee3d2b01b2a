/// @file
/// The elementwise parts of Muon: momentum, normalisation, and the change of the weights.
#pragma once

#include <octavo/kernels/adamw_formula.hpp>
#include <octavo/kernels/step_status.hpp>
#include <octavo/tensor/bf16_element.hpp>

namespace octavo OCTAVO_ABI {

/// Elements of a parameter that Muon updates, and their state.
/// @tparam W       format of the weight
/// @tparam G       format of the gradient
/// @tparam Moment  format of the momentum: `Fp32`, or `Bf16` or `EightBit` with stochastic rounding
template <class W, class G, class Moment, Device D>
struct MuonElements {
  TensorView<W, 1, D> weight;          ///< [elements]
  TensorView<const G, 1, D> gradient;  ///< [elements]
  /// [elements], the FP32 master weight; empty: the weight itself is updated, with stochastic
  /// rounding unless it is FP32
  TensorView<float, 1, D> master;
  TensorView<Moment, 1, D> momentum;  ///< [elements]
  /// [⌈elements / 128⌉], one for each 128 adjacent elements; empty unless momentum is `EightBit`
  TensorView<E8M0, 1, D> momentum_scale;
  TensorView<Bf16, 1, D> direction;  ///< [elements], before or after orthogonalisation
  std::uint64_t random_stream = 0;   ///< differs between parameters
  Index first_element = 0;           ///< index of the first element in the parameter
};

/// The conversion of momentum to a direction.
struct MuonMomentum {
  float momentum = 0.95f;
  bool nesterov = true;
};

/// Factors of the learning rate for the matrices that are stacked in a parameter.
struct MuonRates {
  Array<Index, 3> ends{};  ///< element of the parameter at which each matrix ends
  Array<float, 3> factors{};
  float weight_decay = 0;
  Index period = 0;  ///< elements after which the matrices repeat with other factors; 0: never

  [[nodiscard]] OCTAVO_HOST_DEVICE float of(Index element) const {
    if (period != 0) element %= period;
    if (element < ends[0]) return factors[0];
    return element < ends[1] ? factors[1] : factors[2];
  }
};

/// A matrix within the directions that ranks exchange. The exchanged data has a row for each rank,
/// with that rank's shard of a flat buffer. If ranks share layers, the flat buffer of each of them
/// contains its part of the matrix.
struct ExchangedMatrix {
  Index offset = 0;              ///< of the first element in a rank's flat buffer
  Array<Index, 2> shape{};       ///< of the whole matrix
  Index shard = 0;               ///< elements of a row
  Index degree = 1;              ///< ranks that share each layer
  Index parts = 1;               ///< `degree`, or 1 if each of these ranks has the whole matrix
  bool divides_columns = false;  ///< whether parts are columns instead of rows

  /// Returns the rows and columns of a part.
  [[nodiscard]] OCTAVO_HOST_DEVICE Array<Index, 2> part() const {
    return divides_columns ? Array<Index, 2>{shape[0], shape[1] / parts}
                           : Array<Index, 2>{shape[0] / parts, shape[1]};
  }
  /// Returns the index of an element in all rows.
  /// @param copy  0 to `degree` / `parts` − 1: selects one of the ranks that store this element
  [[nodiscard]] OCTAVO_HOST_DEVICE Index place(Index row, Index column, Index copy = 0) const {
    const Array<Index, 2> size = part();
    const Index of_group = row / size[0] + column / size[1] + copy;
    const Index element = offset + row % size[0] * size[1] + column % size[1];
    return (element / shard * degree + of_group) * shard + element % shard;
  }
};

namespace detail {

template <class W, class G, class Moment, Device D>
void check_muon(const char* operation, const MuonElements<W, G, Moment, D>& elements) {
  check_shape(operation, "gradient", elements.gradient, elements.weight.shape());
  check_shape(operation, "momentum", elements.momentum, elements.weight.shape());
  check_shape(operation, "direction", elements.direction, elements.weight.shape());
  const Index groups =
      has_moment_scales<Moment> ? ceil_divide(elements.weight.size(), moment_group) : 0;
  check_shape(operation, "momentum scale", elements.momentum_scale, {groups});
  require<ShapeError>(elements.first_element % adamw_multiple<Moment> == 0, operation,
                      ": a part begins at element ", elements.first_element, "; use a multiple of ",
                      adamw_multiple<Moment>);
}

/// Updates the momentum with one gradient, and returns the direction.
/// @param moment  rounded
template <class Moment>
OCTAVO_HOST_DEVICE float muon_direction(float gradient, Moment& moment,
                                        const MuonMomentum& settings, std::uint32_t bits) {
  const float old = static_cast<float>(moment);
  const float moved = old + (1.0f - settings.momentum) * (gradient - old);
  moment = round_stochastic<Moment>(moved, bits);
  if (!settings.nesterov) return moved;
  return moved - (moved - gradient) * (1.0f - settings.momentum);
}

/// Returns the weight after the step.
/// @param rate  the learning rate
OCTAVO_HOST_DEVICE inline float muon_weight(float weight, float direction, float rate, float factor,
                                            float decay) {
  return weight * (1.0f - rate * decay) - rate * factor * direction;
}

/// Returns the factor that normalises a matrix: the inverse of its norm, which is rounded to BF16.
OCTAVO_HOST_DEVICE inline float muon_norm(double squared_norm, float epsilon) {
  const float norm = static_cast<float>(Bf16(sqrtf(static_cast<float>(squared_norm))));
  return norm < epsilon ? epsilon : norm;
}

}  // namespace detail

/// Computes m ← m + (1 − momentum) · (g − m), with gradients multiplied by the clip coefficient,
/// and direction = m, or g + momentum · (m − g) with Nesterov's momentum. Changes nothing if the
/// step is skipped. Rounding as in `adamw_update`; the momentum is the first moment.
/// @param step    [1]; its learning rate is not read
/// @param status  [1]
/// @note enqueues; does not synchronise
/// Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon.
template <class W, class G, class Moment, Device D>
void muon_momentum(const MuonElements<W, G, Moment, D>& elements, const MuonMomentum& settings,
                   TensorView<const AdamWStep, 1, D> step,
                   TensorView<const StepStatus, 1, D> status, const Context<D>& context) {
  detail::check_muon("muon_momentum", elements);
  if (elements.weight.size() == 0) return;
  muon_momentum_body(elements, settings, step, status, context);
}

/// Computes target = source / max(norm, epsilon), rounded to BF16.
/// @param source  [elements]
/// @param norm    [1]; its `squared_norm` is that of the source
/// @param target  [elements]; may be the source
/// @note enqueues; does not synchronise
template <Device D>
void muon_normalize(TensorView<const Bf16, 1, D> source, TensorView<const StepStatus, 1, D> norm,
                    float epsilon, TensorView<Bf16Element<D>, 1, D> target,
                    const Context<D>& context) {
  check_shape("muon_normalize", "target", target, source.shape());
  if (source.size() == 0) return;
  muon_normalize_body(source, norm, epsilon, target, context);
}

/// Computes w ← w · (1 − lr · decay) − lr · factor · direction; changes nothing if the step is
/// skipped.
/// @param step    [1]
/// @param status  [1]
/// @note enqueues; does not synchronise
template <class W, class G, class Moment, Device D>
void muon_update(const MuonElements<W, G, Moment, D>& elements, const MuonRates& rates,
                 TensorView<const AdamWStep, 1, D> step, TensorView<const StepStatus, 1, D> status,
                 const Context<D>& context) {
  detail::check_muon("muon_update", elements);
  if (elements.weight.size() == 0) return;
  muon_update_body(elements, rates, step, status, context);
}

/// Copies a matrix from the rows of all ranks.
/// @param rows    [ranks · elements of a shard]
/// @param matrix  [rows, columns]
/// @note enqueues; does not synchronise
template <Device D>
void collect_matrix(TensorView<const Bf16, 1, D> rows, const ExchangedMatrix& place,
                    TensorView<Bf16, 2, D> matrix, const Context<D>& context) {
  check_shape("collect_matrix", "matrix", matrix, place.shape);
  collect_matrix_body(rows, place, matrix, context);
}

/// Copies a matrix to the rows of all ranks that have some of its elements; see collect_matrix.
template <Device D>
void distribute_matrix(TensorView<const Bf16, 2, D> matrix, const ExchangedMatrix& place,
                       TensorView<Bf16, 1, D> rows, const Context<D>& context) {
  check_shape("distribute_matrix", "matrix", matrix, place.shape);
  distribute_matrix_body(matrix, place, rows, context);
}

}  // namespace octavo

#include <octavo/kernels/cpu/muon.hpp>

/// @file
/// Rows of a mixture of experts on the `Cpu` device.
#pragma once

#include <octavo/kernels/activation_formula.hpp>
#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/kernels/experts.hpp>

#include <algorithm>
#include <array>

namespace octavo OCTAVO_ABI::detail {

/// See order_by_expert.
inline void order_by_expert_body(TensorView<const std::int32_t, 2, Cpu> experts,
                                 const ExpertRows<Cpu>& rows, const Context<Cpu>& context) {
  const Index pairs = experts.size();
  const auto bytes = static_cast<std::size_t>(rows.experts()) * sizeof(std::int32_t);
  auto* next = workspace_of<std::int32_t>(context, std::max(bytes, expert_order_workspace(pairs)),
                                          "order_by_expert");
  std::fill_n(next, rows.experts(), 0);
  for (Index i = 0; i < pairs; ++i) ++next[experts.data()[i]];
  std::fill_n(rows.tiles.data(), rows.tiles.size(), -1);
  std::fill_n(rows.pairs.data(), rows.rows(), -1);
  Index begin = 0;
  for (Index e = 0; e < rows.experts(); ++e) {
    const Index end = begin + round_up(next[e], expert_tile);
    rows.offsets.data()[e] = next[e] = static_cast<std::int32_t>(begin);
    for (Index tile = begin / expert_tile; tile < end / expert_tile; ++tile) {
      rows.tiles.data()[tile] = static_cast<std::int32_t>(e);
    }
    begin = end;
  }
  rows.offsets.data()[rows.experts()] = static_cast<std::int32_t>(begin);
  for (Index i = 0; i < pairs; ++i) {
    const std::int32_t row = next[experts.data()[i]]++;
    rows.places.data()[i] = row;
    rows.pairs.data()[row] = static_cast<std::int32_t>(i);
  }
}

/// See copy_to_experts.
template <LinearPrecision P, OperandKind Kind, class T>
void copy_to_experts_body(TensorView<const T, 2, Cpu> x, const ExpertRows<Cpu>& rows,
                          const Operand<P, Kind, Cpu>& y, const Context<Cpu>& context) {
  const Index columns = x.extent(1);
  parallel_for(rows.rows(), columns, context, [&](Index row) {
    const std::int32_t pair = rows.pairs.data()[row];
    T* target = y.values.row(row);
    if (pair < 0) {
      std::fill_n(target, columns, T(0.0f));
    } else {
      std::copy_n(x.row(pair / rows.choices()), columns, target);
    }
  });
  quantize(y, context);
}

/// See sum_of_experts.
template <class T>
void sum_of_experts_body(TensorView<const T, 2, Cpu> x, const ExpertRows<Cpu>& rows,
                         TensorView<const T, 2, Cpu> addend, TensorView<T, 2, Cpu> y,
                         const Context<Cpu>& context) {
  const Index columns = y.extent(1);
  parallel_for(y.extent(0), columns * rows.choices(), context, [&](Index t) {
    const std::int32_t* places = rows.places.row(t);
    for (Index i = 0; i < columns; ++i) {
      float sum = 0;
      for (Index j = 0; j < rows.choices(); ++j) sum += static_cast<float>(x.row(places[j])[i]);
      if (!addend.empty()) sum += static_cast<float>(addend.row(t)[i]);
      y.row(t)[i] = T(sum);
    }
  });
}

/// Returns the weight of a row's pair; 0 in padding and unused rows.
inline float weight_of_row(TensorView<const float, 2, Cpu> weights, const ExpertRows<Cpu>& rows,
                           Index row) {
  const std::int32_t pair = rows.pairs.data()[row];
  return pair < 0 ? 0.0f : weights.data()[pair];
}

/// See experts_swiglu_forward.
template <LinearPrecision P, OperandKind Kind, class T>
void experts_swiglu_forward_body(TensorView<const T, 2, Cpu> gate_up,
                                 TensorView<const float, 2, Cpu> weights,
                                 const ExpertRows<Cpu>& rows, const Operand<P, Kind, Cpu>& y,
                                 const Context<Cpu>& context) {
  const Index ffn = y.values.extent(1);
  parallel_for(rows.rows(), 2 * ffn, context, [&](Index row) {
    const float weight = weight_of_row(weights, rows, row);
    const T* gate = gate_up.row(row);
    const T* up = gate + ffn;
    T* result = y.values.row(row);
    for (Index i = 0; i < ffn; ++i) {
      result[i] =
          T(SiluGate::gated(static_cast<float>(gate[i]), static_cast<float>(up[i])) * weight);
    }
  });
  quantize(y, context);
}

/// See experts_swiglu_backward.
template <LinearPrecision P, OperandKind Kind, class T>
void experts_swiglu_backward_body(TensorView<const T, 2, Cpu> y_gradient,
                                  TensorView<const T, 2, Cpu> gate_up,
                                  TensorView<const float, 2, Cpu> weights,
                                  const ExpertRows<Cpu>& rows,
                                  const Operand<P, Kind, Cpu>& gate_up_gradient,
                                  TensorView<float, 2, Cpu> weight_gradient,
                                  const Context<Cpu>& context) {
  const Index ffn = y_gradient.extent(1);
  parallel_for(rows.rows(), 4 * ffn, context, [&](Index row) {
    const float weight = weight_of_row(weights, rows, row);
    const T* gate = gate_up.row(row);
    const T* up = gate + ffn;
    const T* dy = y_gradient.row(row);
    T* gate_gradient = gate_up_gradient.values.row(row);
    T* up_gradient = gate_gradient + ffn;
    for (Index i = 0; i < ffn; ++i) {
      const GateGradients gradients =
          SiluGate::gradients(static_cast<float>(dy[i]) * weight, static_cast<float>(gate[i]),
                              static_cast<float>(up[i]));
      gate_gradient[i] = T(gradients.gate);
      up_gradient[i] = T(gradients.up);
    }
    const std::int32_t pair = rows.pairs.data()[row];
    if (pair < 0) return;
    weight_gradient.data()[pair] = lane_sum(ffn, [&](Index i) {
      return static_cast<float>(dy[i]) *
             SiluGate::gated(static_cast<float>(gate[i]), static_cast<float>(up[i]));
    });
  });
  quantize(gate_up_gradient, context);
}

}  // namespace octavo::detail

/// @file
/// A trained tensor and its gradient.
#pragma once

#include <octavo/kernels/initialize.hpp>
#include <octavo/layers/parameter_part.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <string>

namespace octavo OCTAVO_ABI {

/// A weight and its gradient; vectors have one row. Can be moved, but not copied: a gradient that
/// is taken later would be missing in the copy.
/// @tparam W  format of the weight
/// @tparam G  format of the gradient
template <class W, class G, Device D>
struct Parameter {
  std::string name;              ///< such as "blocks.0.qkv.weight"
  TensorView<W, 2, D> weight;    ///< [rows, columns]
  TensorView<G, 2, D> gradient;  ///< [rows, columns]
  Initial initial{};             ///< what it starts from
  Index initialised_rows = 0;    ///< rows from here on pad the tensor and stay 0
  ParameterPart part{};          ///< that this rank has, where ranks share layers
  Index offset = 0;              ///< of the first element in its `FlatParameters`, if it is in one
  /// Its number among the operands of the scaling table, where a linear layer casts all of it from
  /// BF16 by one scale; else below 0.
  Index operand = -1;
  /// [rows, columns], its FP8 values where ranks cast it, in its run: see `RunLayout::fp8_values`;
  /// else empty, and of no size.
  TensorView<E4M3, 2, D> fp8_values;
  /// Nothing is kept of it but what its linear layer casts: it has no memory in its run, and passes
  /// through a `WeightStage` on its way to the layer, behind `offset` elements.
  bool is_cast_only = false;
  /// Its gradient counts in the norm: of a parameter that several ranks have, it is one's.
  bool is_counted = true;
  /// The first GEMM of a step writes over the gradient, as that of a `Linear` does. Without, layers
  /// add to it and the run clears it before: see `FlatParameters::clear_gradients`.
  bool is_overwritten = false;
  /// It belongs to an adapter beside a frozen layer, and not to the model itself.
  bool is_adapter = false;
  /// It is not trained: it has no gradient. Its run says so.
  bool is_frozen = false;

  Parameter() = default;
  Parameter(Parameter&&) noexcept = default;
  Parameter& operator=(Parameter&&) noexcept = default;

  /// Elements of the whole parameter, without rows that pad it.
  [[nodiscard]] Index whole_size() const {
    const auto whole = part.whole_shape(weight.shape());
    return (part.is_whole() ? initialised_rows : part.live_rows) * whole[1];
  }
  [[nodiscard]] bool is_matrix() const { return weight.extent(0) > 1; }
  /// Whether ranks cast it: also where there is no memory yet.
  [[nodiscard]] bool has_fp8_values() const { return fp8_values.size() != 0; }
  [[nodiscard]] TensorView<const W, 1, D> vector() const {
    return {weight.data(), {weight.size()}};
  }
  [[nodiscard]] TensorView<G, 1, D> gradient_vector() const {
    return {gradient.data(), {gradient.size()}};
  }

  /// Says what it is; its memory is its run's.
  void declare(std::string parameter_name, Index rows, Index columns, Initial starts_from) {
    name = std::move(parameter_name);
    weight = {nullptr, {rows, columns}};
    initial = starts_from;
    initialised_rows = rows;
  }

  /// Declares a parameter that is in no run, and takes its weight's memory.
  void take(Arena<D>& arena, std::string parameter_name, Index rows, Index columns,
            Initial starts_from) {
    declare(std::move(parameter_name), rows, columns, starts_from);
    weight = {arena.template take<W>(MemoryKind::weights, weight.size()), weight.shape()};
  }

  /// Takes its gradient's: on its own, because it may share memory with what is dead by the time
  /// that it is made.
  void take_gradient(Arena<D>& arena) {
    gradient = {arena.template take<G>(MemoryKind::gradients, weight.size()), weight.shape()};
  }
};

/// Sets neighbouring elements of a weight to their initial values; a part has those of its place in
/// the whole.
/// @param elements  of this rank's weight, from its element `first` on
/// @note enqueues; does not synchronise
template <class W, class G, Device D>
void initialize(const Parameter<W, G, D>& parameter, TensorView<W, 1, D> elements, Index first,
                RandomStream stream, const Context<D>& context) {
  const Index live = parameter.initialised_rows * parameter.weight.extent(1);
  parameter.part.for_each_stripe(
      parameter.weight.shape(), [&](Index begin, Index whole_begin, Index count) {
        const Index from = std::clamp(first, begin, begin + count);
        const Index to = std::clamp(first + elements.size(), begin, begin + count);
        if (from == to) return;
        const Index end = whole_begin + std::clamp(live - begin, Index{0}, count);
        initialize_values(elements.rows(from - first, to - from),
                          {parameter.initial, end, stream, whole_begin + from - begin}, context);
      });
}

/// Sets the weight to its initial values.
/// @note enqueues; does not synchronise
template <class W, class G, Device D>
void initialize(const Parameter<W, G, D>& parameter, RandomStream stream,
                const Context<D>& context) {
  const TensorView<W, 1, D> elements{parameter.weight.data(), {parameter.weight.size()}};
  initialize(parameter, elements, 0, stream, context);
}

}  // namespace octavo

/// @file
/// A parameter: a weight and its gradient.
#pragma once

#include <octavo/kernels/initialize.hpp>
#include <octavo/layers/parameter_part.hpp>
#include <octavo/memory/arena.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <array>
#include <string>

namespace octavo OCTAVO_ABI {

/// The matrices that are stacked in the weight of a hidden linear layer or of its adapters.
struct StackedMatrices {
  /// Rows of each, such as those of queries, keys and values. Some may be 0; all are 0 if the
  /// parameter is not such a weight.
  std::array<Index, 3> rows{};
  Index repeats = 1;  ///< number of times that these matrices are repeated, such as for each expert
  Index choices = 0;  ///< number of repeats that process each token; 0: not those of experts
  Index padding = 0;  ///< rows after all matrices, which remain 0

  [[nodiscard]] bool empty() const { return rows == std::array<Index, 3>{}; }
};

/// A weight and its gradient; vectors have one row. Movable, but not copyable: a copy would lack a
/// gradient that is allocated later.
/// @tparam W  format of the weight
/// @tparam G  format of the gradient
template <class W, class G, Device D>
struct Parameter {
  std::string name;              ///< such as "blocks.0.qkv.weight"
  TensorView<W, 2, D> weight;    ///< [rows, columns]
  TensorView<G, 2, D> gradient;  ///< [rows, columns]
  Initial initial{};             ///< initial values
  Index initialised_rows = 0;    ///< rows from here on are padding and remain 0
  ParameterPart part{};          ///< this rank's part, if ranks share layers
  Index offset = 0;              ///< of the first element in its `FlatParameters`, if any
  /// The number of its operand in the scaling table if a linear layer casts all of it from BF16
  /// with one scale; negative otherwise.
  Index operand = -1;
  /// [rows, columns], its FP8 values in its flat parameters if ranks cast it: see
  /// `FlatLayout::fp8_values`; otherwise empty, with size 0.
  TensorView<E4M3, 2, D> fp8_values;
  /// Whether only the linear layer's cast is kept. The parameter then has no memory in its flat
  /// parameters, and passes through a `WeightStage` on its way to the layer, after `offset`
  /// elements.
  bool is_cast_only = false;
  /// Whether its gradient counts in the norm. If several ranks have the same parameter, its
  /// gradient counts on one of them.
  bool is_counted = true;
  /// Whether the first GEMM of a step overwrites the gradient, as in a `Linear`. Otherwise, layers
  /// add to it, and it is cleared beforehand: see `FlatParameters::clear_gradients`.
  bool is_overwritten = false;
  /// Whether it belongs to an adapter of a frozen layer instead of the model itself.
  bool is_adapter = false;
  /// Its matrices if it is the weight of a hidden linear layer or of its adapters; otherwise empty.
  StackedMatrices matrices{};
  /// Whether it is frozen, without a gradient; set by its flat parameters.
  bool is_frozen = false;

  Parameter() = default;
  Parameter(Parameter&&) noexcept = default;
  Parameter& operator=(Parameter&&) noexcept = default;

  /// Returns the number of elements of the whole parameter, without padding rows.
  [[nodiscard]] Index full_size() const {
    const auto whole = part.full_shape(weight.shape());
    return (part.is_whole() ? initialised_rows : part.live_rows) * whole[1];
  }
  [[nodiscard]] bool is_matrix() const { return weight.extent(0) > 1; }
  /// Whether ranks cast it, even if its memory is not allocated yet.
  [[nodiscard]] bool has_fp8_values() const { return fp8_values.size() != 0; }
  [[nodiscard]] TensorView<const W, 1, D> vector() const {
    return {weight.data(), {weight.size()}};
  }
  [[nodiscard]] TensorView<G, 1, D> gradient_vector() const {
    return {gradient.data(), {gradient.size()}};
  }

  /// Declares the parameter; its memory is that of its flat parameters.
  void declare(std::string parameter_name, Index rows, Index columns, Initial starts_from) {
    name = std::move(parameter_name);
    weight = {nullptr, {rows, columns}};
    initial = starts_from;
    initialised_rows = rows;
  }

  /// Declares a parameter outside any flat parameters, and allocates its weight.
  void allocate(Arena<D>& arena, std::string parameter_name, Index rows, Index columns,
                Initial starts_from) {
    declare(std::move(parameter_name), rows, columns, starts_from);
    weight = {arena.template allocate<W>(MemoryKind::weights, weight.size()), weight.shape()};
  }

  /// Allocates its gradient. Separate from the weight, because the gradient may share memory with
  /// data that is no longer needed when it is computed.
  void allocate_gradient(Arena<D>& arena) {
    gradient = {arena.template allocate<G>(MemoryKind::gradients, weight.size()), weight.shape()};
  }
};

/// Sets a contiguous range of a weight to its initial values; a shard receives the values at its
/// position in the whole weight.
/// @param elements  of this rank's weight, starting at element `first`
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

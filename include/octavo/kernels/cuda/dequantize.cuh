/// @file
/// Dequantisation on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/cast/convert.cuh>
#include <octavo/kernels/cuda/for_each.cuh>
#include <octavo/kernels/cuda/limits.hpp>
#include <octavo/kernels/dequantize.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Which of an operand's scales dequantisation applies.
enum class AppliedScales {
  all,
  of_blocks  ///< all except that of the tensor, which the product applies
};

/// Writes one run of adjacent elements of a row, unless the row's expert has no rows.
template <bool Vectors, AppliedScales Applied, class W, class Granularity, class T>
struct DequantizeRun {
  const W* source;
  const typename Granularity::Scale* scales;
  T* values;
  Index rows, columns, runs;    ///< runs of a row
  const std::int32_t* offsets;  ///< of the experts' rows; null: no experts
  Index rows_per_expert;        ///< weight rows of an expert

  __device__ void operator()(Index i) const {
    const Index row = i / runs;
    if (offsets != nullptr && offsets[row / rows_per_expert] == offsets[row / rows_per_expert + 1])
      return;
    const Index column = i % runs * run_size;
    const Index place = row * columns + column;
    Floats result = load_quantized<Vectors>(source, place, columns - column);
    // A run lies in one block, because blocks have at least 16 columns.
    constexpr bool has_one_scale = std::is_same_v<Granularity, PerTensor>;
    if constexpr (Applied == AppliedScales::all || !has_one_scale) {
      const auto scale =
          static_cast<float>(scales[scale_index<Granularity>(row, column, rows, columns)]);
#pragma unroll
      for (float& value : result.values) value *= scale;
    }
    if constexpr (Applied == AppliedScales::all && has_tensor_scale<Granularity>) {
      const float scale = *reinterpret_cast<const float*>(scales);
#pragma unroll
      for (float& value : result.values) value *= scale;
    }
    store_floats<Vectors>(values + place, columns - column, result);
  }
};

/// See dequantize and dequantize_experts.
template <AppliedScales Applied = AppliedScales::all, class W, class Granularity, Layout L, class T>
void dequantize_with(QuantizedView<W, Granularity, L, Cuda> source, const std::int32_t* offsets,
                     Index rows_per_expert, TensorView<T, 2, Cuda> values,
                     const Context<Cuda>& context) {
  const Index rows = source.outer();
  const Index columns = source.inner();
  const Index runs = ceil_divide(columns, run_size);
  const auto enqueue = [&]<bool Vectors>(std::bool_constant<Vectors>) {
    const DequantizeRun<Vectors, Applied, W, Granularity, T> body{
        source.data(), source.scale_inverses(), values.data(), rows, columns, runs,
        offsets,       rows_per_expert};
    for_each_index("dequantize", rows * runs, context, body);
  };
  const bool vectors = rows_are_vectors(columns, source.data(), values.data());
  if constexpr (FormatTraits<W>::bits == 4) {
    require<ShapeError>(vectors,
                        "dequantize: the rows of an E2M1 matrix must be aligned to 16 bytes on "
                        "Cuda, and have a multiple of 16 elements, but have ",
                        columns);
    enqueue(std::true_type{});
  } else if (vectors) {
    enqueue(std::true_type{});
  } else {
    enqueue(std::false_type{});
  }
}

/// See dequantize.
template <class W, class Granularity, class T>
void dequantize_body(QuantizedView<W, Granularity, Layout::row_major, Cuda> source,
                     TensorView<T, 2, Cuda> values, const Context<Cuda>& context) {
  dequantize_with(source, nullptr, 1, values, context);
}

/// See dequantize_experts.
template <class W, class Granularity, class T>
void dequantize_experts_body(QuantizedView<W, Granularity, Layout::row_major, Cuda> source,
                             const ExpertRows<Cuda>& rows, TensorView<T, 2, Cuda> values,
                             const Context<Cuda>& context) {
  dequantize_with(source, rows.offsets.data(), source.outer() / rows.experts(), values, context);
}

}  // namespace octavo::detail

/// @file
/// The error of a product of FP8 operands on the `Cuda` device, with each accumulation, against the
/// product of the same values in BF16, whose tensor cores accumulate in FP32. FP8 values are exact
/// in BF16, all scales are 1 and results are FP32, so nothing but the accumulation differs.
#pragma once

#include <octavo/cuda.cuh>

#include <array>
#include <cmath>

namespace support {

/// Writes random FP8 numbers and the same numbers in BF16: normal values times `deviation`, and
/// times 2^(tail · normal) for heavy tails.
template <class Format>
__global__ void random_fp8_kernel(Format* fp8, octavo::Bf16* bf16, octavo::Index count,
                                  std::uint32_t seed, float deviation, float tail) {
  const auto uniform = [](std::uint32_t number) {
    number = (number ^ (number >> 16)) * 0x7feb352du;
    number = (number ^ (number >> 15)) * 0x846ca68bu;
    number ^= number >> 16;
    return (static_cast<float>(number >> 8) + 0.5f) * 0x1p-24f;
  };
  const octavo::Index stride = octavo::Index{gridDim.x} * blockDim.x;
  for (octavo::Index i = octavo::Index{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const std::uint32_t number = static_cast<std::uint32_t>(i) * 2u + seed;
    const float radius = sqrtf(-2.0f * logf(uniform(number)));
    float sine = 0;
    float cosine = 0;
    sincospif(2.0f * uniform(number + 1u), &sine, &cosine);
    fp8[i] = Format(deviation * radius * cosine * exp2f(tail * radius * sine));
    bf16[i] = octavo::Bf16(static_cast<float>(fp8[i]));
  }
}

/// Adds Σ (x − reference)², Σ (x − reference) · reference and Σ reference² to `sums`.
template <class Float>
__global__ void compare_kernel(const Float* x, const Float* reference, octavo::Index count,
                               double* sums) {
  double difference = 0;
  double along = 0;
  double norm = 0;
  const octavo::Index stride = octavo::Index{gridDim.x} * blockDim.x;
  for (octavo::Index i = octavo::Index{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const double expected = reference[i];
    const double error = x[i] - expected;
    difference += error * error;
    along += error * expected;
    norm += expected * expected;
  }
  atomicAdd(sums, difference);
  atomicAdd(sums + 1, along);
  atomicAdd(sums + 2, norm);
}

/// The error of a product.
struct AccumulationError {
  double relative = 0;   ///< root mean square of the errors, relative to that of the results
  double shrinkage = 0;  ///< by which share results are too small on average
};

/// A gradient of a layer, with the same values in BF16: the input gradient dy · W or the weight
/// gradient dyᵀ · x, with dy in E5M2 and W or x in E4M3. Both are a · bᵀ of copies that are
/// contiguous along the reduced dimension.
class GradientProduct {
 public:
  /// @param pass  `GemmPass::input_gradient` or `GemmPass::weight_gradient`
  /// @param tail  of the distribution of dy: 0 for normal values
  GradientProduct(octavo::GemmPass pass, octavo::Index tokens, octavo::Index out, octavo::Index in,
                  float tail, const octavo::Context<octavo::Cuda>& context)
      : context_(context),
        of_weight_(pass == octavo::GemmPass::weight_gradient),
        rows_(of_weight_ ? out : tokens),
        columns_(in),
        reduced_(of_weight_ ? tokens : out),
        a_(bytes_of<octavo::E5M2>(rows_ * reduced_), context),
        b_(bytes_of<octavo::E4M3>(columns_ * reduced_), context),
        a_bf16_(bytes_of<octavo::Bf16>(rows_ * reduced_), context),
        b_bf16_(bytes_of<octavo::Bf16>(columns_ * reduced_), context),
        result_(bytes_of<float>(rows_ * columns_), context),
        reference_(bytes_of<float>(rows_ * columns_), context),
        one_(sizeof(float), context),
        sums_(3 * sizeof(double), context) {
    const float one = 1.0f;
    octavo::copy_to_device_sync(as<float>(one_), &one, sizeof(one), context);
    random_fp8_kernel<<<1024, 256, 0, context.stream()>>>(
        as<octavo::E5M2>(a_), as<octavo::Bf16>(a_bf16_), rows_ * reduced_, 1u, 16.0f, tail);
    random_fp8_kernel<<<1024, 256, 0, context.stream()>>>(
        as<octavo::E4M3>(b_), as<octavo::Bf16>(b_bf16_), columns_ * reduced_, 0x9e3779b9u, 64.0f,
        0.0f);
    octavo::check(cudaGetLastError(), "random_fp8_kernel");
    (void)octavo::detail::matmul_dense_body(octavo::TensorView<const octavo::Bf16, 2, octavo::Cuda>(
                                                as<octavo::Bf16>(a_bf16_), {rows_, reduced_}),
                                            false,
                                            octavo::TensorView<const octavo::Bf16, 2, octavo::Cuda>(
                                                as<octavo::Bf16>(b_bf16_), {columns_, reduced_}),
                                            true, output(reference_), context);
  }

  [[nodiscard]] AccumulationError error(octavo::GemmAccumulation accumulation) {
    using octavo::Layout;
    const auto b = operand<octavo::E4M3, Layout::transposed>(b_, columns_);
    if (of_weight_) {
      (void)matmul_weight_gradient(operand<octavo::E5M2, Layout::transposed>(a_, rows_), b,
                                   output(result_), accumulation, context_);
    } else {
      (void)matmul_input_gradient(operand<octavo::E5M2, Layout::row_major>(a_, rows_), b,
                                  output(result_), accumulation, context_);
    }
    octavo::fill_zero(as<double>(sums_), 3 * sizeof(double), context_);
    compare_kernel<<<1024, 256, 0, context_.stream()>>>(as<float>(result_), as<float>(reference_),
                                                        rows_ * columns_, as<double>(sums_));
    octavo::check(cudaGetLastError(), "compare_kernel");
    std::array<double, 3> sums{};
    octavo::copy_to_host_sync(sums.data(), as<double>(sums_), sizeof(sums), context_);
    return {std::sqrt(sums[0] / sums[2]), -sums[1] / sums[2]};
  }

 private:
  using Memory = octavo::Buffer<octavo::Cuda>;

  template <class T>
  static std::size_t bytes_of(octavo::Index count) {
    return static_cast<std::size_t>(count) * sizeof(T);
  }
  template <class T>
  static T* as(Memory& memory) {
    return reinterpret_cast<T*>(memory.data());
  }
  template <class Format, octavo::Layout L>
  octavo::QuantizedView<Format, octavo::PerTensor, L, octavo::Cuda> operand(Memory& memory,
                                                                            octavo::Index rows) {
    return {as<Format>(memory), as<float>(one_), rows, reduced_};
  }
  octavo::GemmOutput<float, octavo::Cuda> output(Memory& memory) const {
    return {{as<float>(memory), {rows_, columns_}}, {}};
  }

  const octavo::Context<octavo::Cuda>& context_;
  bool of_weight_;
  octavo::Index rows_, columns_, reduced_;
  Memory a_, b_, a_bf16_, b_bf16_, result_, reference_, one_, sums_;
};

/// A layer of Llama-3-8B whose gradients are GEMMs.
struct GradientShape {
  const char* name;
  octavo::Index out, in;
};

inline constexpr std::array<GradientShape, 5> llama3_8b_gradients{{{"qkv", 6144, 4096},
                                                                   {"output", 4096, 4096},
                                                                   {"gate_up", 28672, 4096},
                                                                   {"down", 4096, 14336},
                                                                   {"head", 128256, 4096}}};

}  // namespace support

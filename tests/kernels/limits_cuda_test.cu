// Matrices that are too large for a kernel are refused before anything is launched: they have no
// memory here.
#include "kernels/cuda_support.cuh"

#include <string>

namespace octavo {
namespace limits_cuda_test {

using support::constant;

class LimitsOnCuda : public support::OnGpu {};

using Fp8 = Fp8Recipe<Delayed>;

template <class T>
TensorView<T, 2, Cuda> nowhere(Index rows, Index columns) {
  return {static_cast<T*>(nullptr), {rows, columns}};
}
template <class T>
TensorView<T, 1, Cuda> nowhere(Index count) {
  return {static_cast<T*>(nullptr), {count}};
}

/// Expects the operation to name the size that it refuses.
template <class Operation>
void expect_refusal(const char* name, const char* size, const Operation& operation) {
  try {
    operation();
    ADD_FAILURE() << name << ": no exception";
  } catch (const ShapeError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find(name), 0u) << text;
    EXPECT_NE(text.find(size), std::string::npos) << text;
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(LimitsOnCuda, QuantizeRejectsTooManyRowsOrColumns) {
  const Context<Cuda> context;
  const auto cast = [&](Index rows, Index columns) {
    const Operand<Fp8, OperandKind::input, Cuda> operand{nowhere<Bf16>(rows, columns), {}, {}};
    quantize(operand, context);
  };
  expect_refusal("quantize", "8388481", [&] { cast(8388481, 128); });
  expect_refusal("quantize", "16777217", [&] { cast(128, 16777217); });
}

// Such as cuDNN's, NCCL's or the caller's.
TEST_F(LimitsOnCuda, LaunchDoesNotReportEarlierError) {
  support::TestDevice<Cuda> device;
  const auto tokens = constant(device.vector(std::vector<std::int32_t>{1, 0}));
  const auto table = constant(device.matrix(support::normal_values<Bf16>(16, 1.0f, 1), 8));
  const TensorView<Bf16, 2, Cuda> y{device.make_poisoned<Bf16>(16), {2, 8}};
  EXPECT_NE(cudaSetDevice(99'999), cudaSuccess);
  ASSERT_NE(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_NO_THROW(embedding_forward(tokens, table, y, device.context()));
  cudaGetLastError();
  device.context().synchronize();
}

TEST_F(LimitsOnCuda, SwigluRejectsTooLongRows) {
  const Context<Cuda> context;
  constexpr Index ffn = 8388609;
  const auto gate_up = nowhere<const Bf16>(1, 2 * ffn);
  const Operand<Bf16, OperandKind::input, Cuda> y{nowhere<Bf16>(1, ffn)};
  const Operand<Bf16, OperandKind::output_gradient, Cuda> gradient{nowhere<Bf16>(1, 2 * ffn)};
  expect_refusal("swiglu_forward", "16777218", [&] { swiglu_forward(gate_up, y, context); });
  expect_refusal("swiglu_backward", "16777218",
                 [&] { swiglu_backward(nowhere<const Bf16>(1, ffn), gate_up, gradient, context); });
}

TEST_F(LimitsOnCuda, RopeRejectsTooLongRows) {
  const Context<Cuda> context;
  constexpr HeadLayout layout{262144, 1, 64};
  const auto rows = nowhere<Bf16>(1, layout.columns());
  const auto rotation = nowhere<const float>(1, layout.head_dim);
  const Operand<Fp8, OperandKind::output_gradient, Cuda> gradient{rows, {}, {}};
  expect_refusal("rope_forward", "16777344", [&] {
    rope_forward(constant(rows), layout, QkNorm<const Bf16, Cuda>{}, rotation, 1, rows, context);
  });
  expect_refusal("rope_backward", "16777344", [&] {
    rope_backward(rows, layout, constant(rows), QkNorm<const Bf16, Cuda>{}, QkNorm<Bf16, Cuda>{},
                  rotation, 1, gradient, context);
  });
}

TEST_F(LimitsOnCuda, RmsNormRejectsTooLongRows) {
  const Context<Cuda> context;
  const auto backward = [&](Index columns) {
    const auto rows = nowhere<const Bf16>(1, columns);
    rms_norm_backward(rows, rows, nowhere<const Bf16>(columns), nowhere<const float>(1),
                      nowhere<Bf16>(1, columns), nowhere<Bf16>(columns), context);
  };
  expect_refusal("rms_norm_backward", "57857", [&] { backward(57857); });
  expect_refusal("rms_norm_forward", "925697", [&] {
    const Operand<Bf16, OperandKind::input, Cuda> y{nowhere<Bf16>(1, 925697)};
    rms_norm_forward(nowhere<const Bf16>(1, 925697), nowhere<const Bf16>(925697), 1e-5f, y,
                     nowhere<float>(1), context);
  });
}

// The longest rows that are served fit a block's shared memory.
TEST_F(LimitsOnCuda, RmsNormAcceptsLongestRows) {
  support::TestDevice<Cuda> device(std::size_t{32} << 20);
  constexpr Index backward = 57856;
  constexpr Index forward = 925696;
  const auto ones = device.vector(std::vector<Bf16>(forward, Bf16(1.0f)));
  const auto zeros = device.vector(std::vector<Bf16>(forward, Bf16(0.0f)));
  const auto inverse = device.vector(std::vector<float>{0.0f});
  const auto row = [](auto view, Index columns) {
    return TensorView<Bf16, 2, Cuda>{view.data(), {1, columns}};
  };
  const auto first = [](auto view, Index columns) {
    return TensorView<Bf16, 1, Cuda>{view.data(), {columns}};
  };
  const Operand<Bf16, OperandKind::input, Cuda> y{row(zeros, forward)};
  rms_norm_forward(constant(row(ones, forward)), constant(ones), 0.0f, y, inverse,
                   device.context());
  EXPECT_EQ(device.read(inverse)[0], 1.0f);
  EXPECT_EQ(static_cast<float>(device.read(zeros)[forward - 1]), 1.0f);
  const auto x_gradient = device.vector(std::vector<Bf16>(backward, Bf16(0.0f)));
  const auto weight_gradient = device.vector(std::vector<float>(backward, 0.0f));
  rms_norm_backward(constant(row(ones, backward)), constant(row(ones, backward)),
                    constant(first(ones, backward)), constant(inverse), row(x_gradient, backward),
                    weight_gradient, device.context());
  EXPECT_EQ(device.read(weight_gradient)[backward - 1], 1.0f);
}

}  // namespace limits_cuda_test
}  // namespace octavo

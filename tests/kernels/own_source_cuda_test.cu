// A source that is not the library's on the Cuda device, against its formula and the Cpu's casts to
// the bit. What it makes beyond the matrix is not zero: no count and no scale may see it.
#include "kernels/cuda_support.cuh"

namespace octavo {
namespace own_source_cuda_test {

using support::TestDevice;
using support::TestOperand;

class OwnSourceOnCuda : public support::OnGpu {};

constexpr float shift = 300;

/// x + shift.
template <class T>
struct Shifted {
  static constexpr int parts = 1;
  static constexpr int rounds_in_flight = 2;
  const T* x;
  Index columns;

  template <bool Vectors>
  struct Runs {
    const T* x;
    Index stride;

    __device__ kernels::Run<T> load(int i, int count) const {
      return kernels::load_run<Vectors>(x + i * stride, count);
    }
    /// So that each thread reads what another wrote.
    __device__ void await() {
      shared()[threadIdx.x] = shift;
      __syncthreads();
    }
    __device__ kernels::Produced<T, 1> make(int, const kernels::Run<T>& loaded) const {
      kernels::Floats y = kernels::to_floats(loaded);
      for (float& value : y.values) value += shared()[threadIdx.x ^ 32u];
      return {{kernels::to_run<T>(y)}};
    }
    __device__ static float* shared() {
      __shared__ float values[256];
      return values;
    }
  };

  [[nodiscard]] bool vectors() const { return kernels::rows_are_vectors(columns, x); }
  template <bool Vectors>
  __device__ Runs<Vectors> runs(Index row, Index column) const {
    return {x + row * columns + column, columns};
  }
};

template <class T>
std::vector<T> shifted(std::vector<T> x) {
  for (T& value : x) value = T(static_cast<float>(value) + shift);
  return x;
}

constexpr std::pair<Index, Index> shapes[] = {{1, 8}, {17, 33}, {130, 136}, {144, 264}, {256, 384}};

template <class P>
void compare() {
  for (const auto& [rows, columns] : shapes) {
    SCOPED_TRACE(message(rows, " x ", columns));
    const auto x = support::normal_values<Bf16>(rows * columns, 3.0f, 1);
    TestDevice<Cpu> cpu;
    const TestOperand<P, OperandKind::input, Cpu> expected(cpu, shifted(x), columns, 0.37f);
    quantize(expected.operand(), cpu.context());
    TestDevice<Cuda> gpu(row_amaxes_workspace(rows, columns));
    const TestOperand<P, OperandKind::input, Cuda> found(gpu, x, columns, 0.37f);
    kernels::produce("shifted", Shifted<Bf16>{gpu.make(x), columns}, found.operand(),
                     gpu.context());
    support::expect_same(expected.read(), found.read());
  }
}

TEST_F(OwnSourceOnCuda, DelayedScalingIsBitwiseEqualToCpu) { compare<Fp8Recipe<Delayed>>(); }
TEST_F(OwnSourceOnCuda, CurrentScalingIsBitwiseEqualToCpu) { compare<Fp8Recipe<Tensorwise>>(); }
TEST_F(OwnSourceOnCuda, RowwiseScalingIsBitwiseEqualToCpu) { compare<Fp8Recipe<Rowwise>>(); }
TEST_F(OwnSourceOnCuda, BlockwiseScalingIsBitwiseEqualToCpu) {
  compare<Fp8Recipe<Blockwise>>();
  compare<Mxfp8>();
}

TEST_F(OwnSourceOnCuda, WritesDenseValues) {
  for (const auto& [rows, columns] : shapes) {
    SCOPED_TRACE(message(rows, " x ", columns));
    const auto x = support::normal_values<float>(rows * columns, 3.0f, 1);
    TestDevice<Cuda> gpu;
    const Operand<Fp32, OperandKind::input, Cuda> y{
        {gpu.make_poisoned<float>(rows * columns), {rows, columns}}};
    kernels::produce("shifted", Shifted<float>{gpu.make(x), columns}, y, gpu.context());
    EXPECT_EQ(shifted(x), gpu.read(y.values));
  }
}

TEST_F(OwnSourceOnCuda, RejectsRowScalesWithoutWorkspace) {
  TestDevice<Cuda> gpu;
  const auto x = support::normal_values<Bf16>(64, 3.0f, 1);
  const TestOperand<Fp8Recipe<Rowwise>, OperandKind::input, Cuda> y(gpu, x, 8, 1.0f);
  EXPECT_THROW(
      kernels::produce("shifted", Shifted<Bf16>{gpu.make(x), 8}, y.operand(), gpu.context()),
      UsageError);
}

TEST_F(OwnSourceOnCuda, RejectsValuesWithoutMemory) {
  TestDevice<Cuda> gpu;
  const auto x = support::normal_values<Bf16>(64, 3.0f, 1);
  OperandMemory<Fp8Recipe<Tensorwise>, OperandKind::input, Cuda> memory;
  memory.row_major = gpu.make<E4M3>(64);
  const auto y = memory.operand(8, 8, gpu.make<OperandScaling>(1), false, {true, false});
  try {
    kernels::produce("shifted", Shifted<Bf16>{gpu.make(x), 8}, y, gpu.context());
    FAIL() << "no error";
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find("OperandMemory::allocate_values"), std::string::npos);
  }
}

}  // namespace own_source_cuda_test
}  // namespace octavo

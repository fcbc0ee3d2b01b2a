// A forward GEMM whose result is E4M3, where the sums are exact: integers below 2^12.
#include <octavo/cuda.cuh>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include "support/on_gpu.cuh"

namespace octavo {
namespace e4m3_result_cuda_test {

class E4M3Result : public support::OnGpuIn<Fp8Recipe<Tensorwise>> {};

/// Integers from -2 to 2, which are E4M3 numbers.
std::vector<E4M3> random_integers(Index count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<E4M3> values;
  for (Index i = 0; i < count; ++i) {
    values.emplace_back(static_cast<float>(static_cast<int>(random() % 5) - 2));
  }
  return values;
}

/// A matrix in device memory.
template <class T>
class Uploaded {
 public:
  Uploaded(const std::vector<T>& values, const Context<Cuda>& context)
      : memory_(values.size() * sizeof(T), context) {
    copy_to_device_sync(data(), values.data(), values.size() * sizeof(T), context);
  }
  [[nodiscard]] T* data() { return reinterpret_cast<T*>(memory_.data()); }

 private:
  Buffer<Cuda> memory_;
};

constexpr Index depth = 512;

/// Returns factor · x · wᵀ, rounded to E4M3.
/// @param x  [rows, depth]
/// @param w  [columns, depth]
std::vector<E4M3> multiplied(const std::vector<E4M3>& x, const std::vector<E4M3>& w, float factor) {
  support::GpuContext gpu;
  Buffer<Cuda> workspace(matmul_workspace(0, 0, 0, gpu), gpu);
  gpu.bind_workspace({workspace.data(), workspace.size()});
  const Context<Cuda>& context = gpu;
  const Index rows = static_cast<Index>(x.size()) / depth;
  const Index columns = static_cast<Index>(w.size()) / depth;
  Uploaded<E4M3> x_memory(x, context);
  Uploaded<E4M3> w_memory(w, context);
  Uploaded<float> x_scale({2.0f * factor}, context);
  Uploaded<float> w_scale({0.5f}, context);
  std::vector<E4M3> result(static_cast<std::size_t>(rows * columns));
  Uploaded<E4M3> y_memory(result, context);
  using View = QuantizedView<E4M3, PerTensor, Layout::row_major, Cuda>;
  const GemmRun run =
      matmul_forward(View{x_memory.data(), x_scale.data(), rows, depth},
                     View{w_memory.data(), w_scale.data(), columns, depth},
                     GemmOutput<E4M3, Cuda>{{y_memory.data(), {rows, columns}}, {}}, context);
  EXPECT_TRUE(run.is_fp8());
  copy_to_host_sync(result.data(), y_memory.data(), result.size(), context);
  return result;
}

TEST_F(E4M3Result, IsTheNearestOfExactSums) {
  for (const auto& [rows, columns] : {std::pair<Index, Index>{16, 32}, {144, 272}, {512, 1024}}) {
    SCOPED_TRACE(message(rows, " x ", columns));
    const auto x = random_integers(rows * depth, 1);
    const auto w = random_integers(columns * depth, 2);
    // Sums are up to 2,048 and most are below 100: a factor lets some saturate.
    const std::vector<E4M3> result = multiplied(x, w, 4.0f);
    int saturated = 0;
    int wrong = 0;
    for (Index row = 0; row < rows; ++row) {
      for (Index column = 0; column < columns; ++column) {
        float sum = 0;
        for (Index i = 0; i < depth; ++i) {
          sum += static_cast<float>(x[static_cast<std::size_t>(row * depth + i)]) *
                 static_cast<float>(w[static_cast<std::size_t>(column * depth + i)]);
        }
        const E4M3 expected(4.0f * sum);
        saturated += static_cast<int>(std::abs(4.0f * sum) > 448.0f);
        const E4M3 found = result[static_cast<std::size_t>(row * columns + column)];
        // Zeros may have either sign.
        wrong += static_cast<int>(static_cast<float>(found) != static_cast<float>(expected));
      }
    }
    EXPECT_EQ(wrong, 0);
    if (rows * columns > 100'000) EXPECT_GT(saturated, 0);
  }
}

// Otherwise the loss of a diverged run would look like that of a healthy one.
TEST_F(E4M3Result, KeepsNan) {
  constexpr Index rows = 144;
  constexpr Index columns = 272;
  constexpr Index bad_row = 37;
  auto x = random_integers(rows * depth, 1);
  x[static_cast<std::size_t>(bad_row * depth + 5)] = E4M3(NAN);
  const auto result = multiplied(x, random_integers(columns * depth, 2), 4.0f);
  for (Index i = 0; i < rows * columns; ++i) {
    const bool is_nan = std::isnan(static_cast<float>(result[static_cast<std::size_t>(i)]));
    ASSERT_EQ(is_nan, i / columns == bad_row) << "row " << i / columns;
  }
}

}  // namespace e4m3_result_cuda_test
}  // namespace octavo

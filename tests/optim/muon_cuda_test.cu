// Muon's kernels and its orthogonalisation on the Cuda device against those of Cpu.
#include <octavo/cuda.cuh>
#include <octavo/optim/muon.hpp>

#include "kernels/cuda_support.cuh"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace octavo {
namespace muon_cuda_test {

using support::constant;
using support::normal_values;
using support::TestDevice;

class MuonOnCuda : public support::OnGpu {};

constexpr AdamWStep step{1e-2f, 1.0f, 1.0f, 3, 7};
constexpr float clip = 0.7f;

template <class W>
struct Moved {
  std::vector<W> weight;
  std::vector<float> master;
  std::vector<float> momentum;
  std::vector<Bf16> direction;
};

/// Sets the momentum to numbers of a normal distribution, in 8 bits rounded down to a code.
template <class W, class M, Device D>
void set_momentum(MuonElements<W, Bf16, M, D>& elements, Index count, TestDevice<D>& device) {
  if constexpr (std::is_same_v<M, EightBit>) {
    const std::vector<float> values = normal_values<float>(count, 1e-2f, 3);
    const E8M0 scale = FirstMomentCode::Levels::scale(0.06f);
    std::vector<EightBit> codes;
    for (const float value : values) {
      codes.push_back(EightBit::upper(FirstMomentCode::encode(value, scale, 0)));
    }
    elements.momentum = device.vector(codes);
    elements.momentum_scale = device.vector(
        std::vector<E8M0>(static_cast<std::size_t>(ceil_divide(count, Index{128})), scale));
  } else {
    elements.momentum = device.vector(normal_values<M>(count, 1e-2f, 3));
  }
}

template <class W, class M, Device D>
std::vector<float> momentum_of(const MuonElements<W, Bf16, M, D>& elements, TestDevice<D>& device) {
  const std::vector<M> stored = device.read(elements.momentum);
  std::vector<float> values;
  if constexpr (std::is_same_v<M, EightBit>) {
    const std::vector<E8M0> scales = device.read(elements.momentum_scale);
    for (std::size_t i = 0; i < stored.size(); ++i) {
      values.push_back(FirstMomentCode::decode(stored[i], scales[i / 128]));
    }
  } else {
    for (const M value : stored) values.push_back(static_cast<float>(value));
  }
  return values;
}

/// A momentum, and then an update by its direction.
template <class W, class M, Device D>
Moved<W> move_on(Index count, bool has_master, bool skips) {
  TestDevice<D> device;
  MuonElements<W, Bf16, M, D> elements;
  elements.weight = device.vector(normal_values<W>(count, 0.02f, 1));
  elements.gradient = constant(device.vector(normal_values<Bf16>(count, 1e-2f, 2)));
  if (has_master) elements.master = device.vector(normal_values<float>(count, 0.02f, 1));
  set_momentum(elements, count, device);
  elements.direction = device.vector(normal_values<Bf16>(count, 1e-2f, 4));
  elements.random_stream = 5;
  elements.first_element = 128;
  StepStatus status{};
  status.clip_coefficient = clip;
  status.skip = skips ? 1 : 0;
  const auto now = constant(device.vector(std::vector<StepStatus>{status}));
  const auto numbers = constant(device.vector(std::vector<AdamWStep>{step}));
  const MuonRates rates{{220, 420, 420}, {1.0f, 2.0f, 0.0f}, 0.1f};
  muon_momentum(elements, MuonMomentum{}, numbers, now, device.context());
  muon_update(elements, rates, numbers, now, device.context());
  Moved<W> moved{device.read(elements.weight),
                 {},
                 momentum_of(elements, device),
                 device.read(elements.direction)};
  if (has_master) moved.master = device.read(elements.master);
  return moved;
}

template <class T>
void expect_near(const std::vector<T>& one, const std::vector<T>& other, double relative,
                 double absolute, const char* what) {
  ASSERT_EQ(one.size(), other.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    const auto a = static_cast<double>(static_cast<float>(one[i]));
    const auto b = static_cast<double>(static_cast<float>(other[i]));
    ASSERT_NEAR(a, b, relative * std::abs(a) + absolute) << what << " " << i;
  }
}

template <class W, class M>
void expect_moves_alike(Index count, bool has_master) {
  const auto expected = move_on<W, M, Cpu>(count, has_master, false);
  const auto found = move_on<W, M, Cuda>(count, has_master, false);
  // Compilers contract sums differently, and a value at the edge rounds to a neighbour in BF16.
  constexpr double rounding = 0x1p-7;
  constexpr bool is_eight_bit = std::is_same_v<M, EightBit>;
  const double of_moment = std::is_same_v<M, float> ? 0x1p-20 : is_eight_bit ? 0x1p-4 : rounding;
  expect_near(found.momentum, expected.momentum, of_moment, is_eight_bit ? 1e-4 : 1e-9, "momentum");
  std::size_t different = 0;
  for (std::size_t i = 0; i < found.momentum.size(); ++i) {
    different += std::abs(found.momentum[i] - expected.momentum[i]) > 1e-8f ? 1 : 0;
  }
  EXPECT_LE(different, found.momentum.size() / 50) << "the same random bits round them";
  expect_near(found.direction, expected.direction, rounding, 1e-8, "direction");
  if (has_master) expect_near(found.master, expected.master, 0x1p-20, 1e-5, "master");
  expect_near(found.weight, expected.weight, rounding, 1e-5, "weight");
  const auto skipped = move_on<W, M, Cuda>(count, has_master, true);
  const auto untouched = move_on<W, M, Cpu>(count, has_master, true);
  EXPECT_TRUE(std::equal(skipped.direction.begin(), skipped.direction.end(),
                         untouched.direction.begin(),
                         [](Bf16 a, Bf16 b) { return a.bits == b.bits; }));
  expect_near(skipped.weight, untouched.weight, 0, 0, "weight of a skipped step");
}

TEST_F(MuonOnCuda, UpdatesMatchCpu) {
  for (const Index count : {Index{1}, Index{5}, Index{1024}, Index{1029}}) {
    expect_moves_alike<Bf16, float>(count, true);
    expect_moves_alike<Bf16, Bf16>(count, true);
    expect_moves_alike<Bf16, Bf16>(count, false);
    expect_moves_alike<float, float>(count, false);
    expect_moves_alike<Bf16, EightBit>(count, true);
    expect_moves_alike<Bf16, EightBit>(count, false);
  }
}

/// A matrix collected from the rows of ranks, and the rows after its negative is distributed.
template <Device D>
std::pair<std::vector<Bf16>, std::vector<Bf16>> exchanged(const ExchangedMatrix& matrix,
                                                          Index ranks) {
  TestDevice<D> device;
  const auto rows = device.vector(normal_values<Bf16>(ranks * matrix.shard, 1.0f, 6));
  const auto collected =
      device.matrix(std::vector<Bf16>(static_cast<std::size_t>(matrix.shape[0] * matrix.shape[1])),
                    matrix.shape[1]);
  collect_matrix<D>(rows, matrix, collected, device.context());
  std::vector<Bf16> found = device.read(collected);
  std::vector<Bf16> negative = found;
  for (Bf16& value : negative) value = Bf16(-static_cast<float>(value));
  const auto sent = device.matrix(negative, matrix.shape[1]);
  distribute_matrix<D>(sent, matrix, rows, device.context());
  return {found, device.read(rows)};
}

TEST_F(MuonOnCuda, ExchangedMatricesAreBitwiseEqualToCpu) {
  const auto bits = [](Bf16 a, Bf16 b) { return a.bits == b.bits; };
  for (const auto [rows, columns] : {std::array<Index, 2>{64, 128}, {12, 20}}) {
    for (const bool divides_columns : {false, true}) {
      for (const Index parts : {1, 4}) {
        // Parts begin before the end of the first rank's shard, and end in the third's.
        const ExchangedMatrix matrix{.offset = 128,
                                     .shape = {rows, columns},
                                     .shard = rows == 64 ? 4096 / parts : 256 / parts,
                                     .degree = 4,
                                     .parts = parts,
                                     .divides_columns = divides_columns};
        const auto expected = exchanged<Cpu>(matrix, 16);
        const auto found = exchanged<Cuda>(matrix, 16);
        EXPECT_TRUE(std::ranges::equal(found.first, expected.first, bits)) << rows << ' ' << parts;
        EXPECT_TRUE(std::ranges::equal(found.second, expected.second, bits))
            << rows << ' ' << parts;
      }
    }
  }
}

using Shapes = std::vector<std::array<Index, 2>>;

/// Returns matrices that are orthogonalised together.
template <Device D>
std::vector<std::vector<Bf16>> orthogonalized(const Shapes& shapes, int iterations) {
  typename NewtonSchulz<D>::Sizes sizes;
  for (const auto [rows, columns] : shapes) sizes.add(rows, columns);
  Arena<D> measuring;
  const NewtonSchulz<D> sized(measuring, sizes);
  TestDevice<D> device(std::size_t{64} << 20);
  Arena<D> arena(measuring.plan(), device.context());
  const NewtonSchulz<D> newton_schulz(arena, sizes);
  std::vector<TensorView<Bf16, 2, D>> matrices;
  for (const auto [rows, columns] : shapes) {
    matrices.push_back(device.matrix(normal_values<Bf16>(rows * columns, 1e-3f, 6), columns));
  }
  newton_schulz.orthogonalize(matrices, {.iterations = iterations}, device.context());
  std::vector<std::vector<Bf16>> values;
  for (const auto& matrix : matrices) values.push_back(device.read(matrix));
  return values;
}

void expect_orthogonal_as_on_cpu(const Shapes& shapes, int iterations = 5) {
  const auto expected = orthogonalized<Cpu>(shapes, iterations);
  const auto found = orthogonalized<Cuda>(shapes, iterations);
  for (std::size_t number = 0; number < shapes.size(); ++number) {
    const auto [rows, columns] = shapes[number];
    double error = 0;
    double size = 0;
    for (std::size_t i = 0; i < expected[number].size(); ++i) {
      const auto a = static_cast<double>(static_cast<float>(expected[number][i]));
      const auto b = static_cast<double>(static_cast<float>(found[number][i]));
      error += (a - b) * (a - b);
      size += a * a;
    }
    if (iterations == 5) {
      // Singular values end between about 0.7 and 1.2.
      const auto side = static_cast<double>(std::min(rows, columns));
      EXPECT_GT(size, 0.4 * side);
      EXPECT_LT(size, 1.6 * side);
    }
    // Sums in another order change some roundings to BF16, by 2^-8, in each of 15 products.
    EXPECT_LT(std::sqrt(error / size), 0x1p-5) << rows << " x " << columns;
  }
}

TEST_F(MuonOnCuda, OrthogonalisationMatchesCpu) {
  // Tiles of the products of one kernel, whole and cut, of rows and of columns.
  expect_orthogonal_as_on_cpu(
      {{64, 64}, {256, 64}, {64, 256}, {384, 1024}, {1024, 384}, {520, 520}});
  expect_orthogonal_as_on_cpu({{264, 392}, {392, 264}, {24, 40}, {8, 8}}, 4);
  // Products that no such kernel computes, next to some of it.
  expect_orthogonal_as_on_cpu({{24, 40}, {4, 256}, {256, 5}, {128, 192}, {7, 9}});
}

TEST_F(MuonOnCuda, SymmetricGemmsMatchFullProducts) {
  TestDevice<Cuda> device(std::size_t{64} << 20);
  for (const auto [rows, columns] :
       {std::array<Index, 2>{128, 64}, {640, 200}, {200, 640}, {1160, 1160}, {72, 8}}) {
    for (const bool of_columns : {false, true}) {
      const Index side = of_columns ? columns : rows;
      const auto x = device.matrix(normal_values<Bf16>(rows * columns, 0.1f, 3), columns);
      const auto once =
          device.matrix(std::vector<Bf16>(static_cast<std::size_t>(side * side)), side);
      const auto whole =
          device.matrix(std::vector<Bf16>(static_cast<std::size_t>(side * side)), side);
      const auto twice =
          device.matrix(std::vector<Bf16>(static_cast<std::size_t>(side * side)), side);
      const SymmetricGemm<Bf16, Cuda> first{x, of_columns, {}, {once, {}}};
      matmul_symmetric<Bf16, Cuda>({&first, 1}, device.context());
      const SymmetricGemm<Bf16, Cuda> second{x, of_columns, {2.0f, -0.5f}, {twice, once}};
      matmul_symmetric<Bf16, Cuda>({&second, 1}, device.context());
      detail::multiply_all(SymmetricGemm<Bf16, Cuda>{x, of_columns, {}, {whole, {}}},
                           device.context());
      const std::vector<Bf16> a = device.read(once);
      const std::vector<Bf16> b = device.read(whole);
      const std::vector<Bf16> c = device.read(twice);
      const float bound = 0.1f * 0.1f * static_cast<float>(of_columns ? rows : columns) * 0x1p-7f;
      for (Index i = 0; i < side * side; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const auto mirrored = static_cast<std::size_t>(i % side * side + i / side);
        const float value = static_cast<float>(b[at]);
        ASSERT_EQ(a[at].bits, a[mirrored].bits) << i;
        ASSERT_NEAR(static_cast<float>(a[at]), value, bound) << i << " of " << side;
        ASSERT_NEAR(static_cast<float>(c[at]), 1.5f * value, 4 * bound) << i << " of " << side;
      }
    }
  }
}

}  // namespace muon_cuda_test
}  // namespace octavo

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cuda_support.cuh"

/// A mixture of experts on the Cuda device, against that on the Cpu device.
namespace octavo::experts_mlp_cuda_test {

using namespace support;

constexpr BlockShape shape{.hidden = 256, .ffn = 128};
constexpr ExpertShape experts{8, 2, true};
constexpr Index tokens = 400;

/// What a micro-batch of training computes, widened.
struct Results {
  std::vector<float> y, x_gradient, loss;
  std::vector<std::vector<float>> gradients;
};

template <class T>
std::vector<float> widened(const std::vector<T>& values) {
  std::vector<float> result;
  for (const T value : values) result.push_back(static_cast<float>(value));
  return result;
}

/// A mixture of experts with its memory.
template <class P, Device D>
class Layer {
 public:
  using Part = ExpertsMLP<shape, experts, Bf16, P, P, Bf16, D>;

  Layer() : arena_({.peak = std::size_t{64} << 20}, device_.context()) {
    loss_.sums = {{device_.template make<std::int32_t>(experts.experts), {experts.experts}},
                  {device_.template make<float>(experts.experts), {experts.experts}}};
    loss_.term = BalanceTerm<D>::of(loss_.sums, 1.0f, tokens);
    LayerRegistry<D> registry{&scaling_, &manifest_, nullptr};
    registry.expert_loss = &loss_;
    part_.declare("block", registry, {}, {});
    run_.allocate_weights(arena_, [this](const auto& visitor) { part_.visit(visitor); });
    part_.allocate_weight_copies(arena_);
    run_.allocate_gradients(arena_, [this](const auto& visitor) { part_.visit(visitor); });
    scaling_.allocate(arena_);
    Part::allocate_shared_buffers(arena_, saved_, tokens);
    Part::allocate_saved(arena_, saved_, tokens, [](Recompute) { return true; });
    Part::allocate_scratch(arena_, scratch_, tokens);
    std::size_t bytes = 0;
    for (const GemmEntry& gemm : manifest_.entries()) {
      bytes = std::max(bytes, experts_workspace<D>(gemm, tokens, context()));
    }
    device_.context().bind_workspace(
        {device_.template make<std::byte>(static_cast<Index>(bytes)), bytes});
    scaling_.reset_sync(context());
    unsigned seed = 1;
    part_.visit([&](auto& parameter) {
      const auto values = normal_values<Bf16>(parameter.weight.size(), 0.1f, seed++);
      copy_to_device_sync(parameter.weight.data(), values.data(), parameter.weight.bytes(),
                          context());
    });
    part_.template quantize_weights<Mode::train>(context());
    residual_ = device_.matrix(normal_values<Bf16>(tokens * shape.hidden, 1.0f, 6), shape.hidden);
    y_ = device_.matrix(std::vector<Bf16>(tokens * shape.hidden), shape.hidden);
    x_gradient_ = device_.matrix(std::vector<Bf16>(tokens * shape.hidden), shape.hidden);
    y_gradient_ = device_.matrix(normal_values<Bf16>(tokens * shape.hidden, 1.0f, 7), shape.hidden);
  }

  /// Sets the input of the next micro-batch, and clears the sums of the load-balancing loss.
  void set_input(unsigned seed) {
    const auto x = normal_values<Bf16>(tokens * shape.hidden, 1.0f, seed);
    copy_to_device_sync(saved_.input.values, x.data(), x.size() * sizeof(Bf16), context());
    const std::vector<std::int32_t> zeros(experts.experts);
    copy_to_device_sync(loss_.sums.counts.data(), zeros.data(), loss_.sums.counts.bytes(),
                        context());
    copy_to_device_sync(loss_.sums.probabilities.data(), zeros.data(),
                        loss_.sums.probabilities.bytes(), context());
  }
  void run() {
    const BatchShape batch{1, tokens, 0};
    const auto input = part_.template input<Mode::train>(saved_, tokens, {});
    part_.template forward<Mode::train>(input, constant(residual_), y_, batch, 0, saved_,
                                        context());
    part_.backward(y_gradient_, input, x_gradient_, batch, 0, saved_, scratch_, false, context());
  }
  [[nodiscard]] Results results() {
    Results results{widened(device_.read(y_)),
                    widened(device_.read(x_gradient_)),
                    device_.read(loss_.sums.probabilities),
                    {}};
    part_.visit([&](auto& parameter) {
      results.gradients.push_back(widened(device_.read(parameter.gradient)));
    });
    return results;
  }
  [[nodiscard]] const Context<D>& context() const { return device_.context(); }

 private:
  TestDevice<D> device_;
  Arena<D> arena_;
  Manifest manifest_;
  ScalingTable<D> scaling_;
  ExpertLoss<D> loss_;
  Part part_;
  FlatParameters<Bf16, Bf16, D> run_;
  typename Part::Saved saved_;
  typename Part::Scratch scratch_;
  TensorView<Bf16, 2, D> residual_, y_, y_gradient_, x_gradient_;
};

/// Expects ‖actual − expected‖ ≤ bound · ‖expected‖.
void expect_near(const std::vector<float>& actual, const std::vector<float>& expected,
                 double bound) {
  ASSERT_EQ(actual.size(), expected.size());
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = double{actual[i]} - double{expected[i]};
    error += difference * difference;
    norm += double{expected[i]} * double{expected[i]};
  }
  EXPECT_LE(std::sqrt(error), bound * std::sqrt(norm));
}

void expect_near(const Results& actual, const Results& expected, double bound) {
  expect_near(actual.y, expected.y, bound);
  expect_near(actual.x_gradient, expected.x_gradient, bound);
  expect_near(actual.loss, expected.loss, bound);
  for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
    SCOPED_TRACE(i);
    expect_near(actual.gradients[i], expected.gradients[i], bound);
  }
}

template <class P>
class ExpertsMlpOnCuda : public OnGpuIn<P> {};
using Recipes =
    testing::Types<Bf16, Fp8Recipe<Tensorwise>, Fp8Recipe<Rowwise>, Fp8Recipe<Blockwise>>;
TYPED_TEST_SUITE(ExpertsMlpOnCuda, Recipes);

TYPED_TEST(ExpertsMlpOnCuda, AgreesWithTheCpu) {
  // Casts of values that differ in the last bit may differ in the last bit of FP8.
  constexpr double bound = QuantizedPrecision<TypeParam> ? 0.02 : 0.004;
  Layer<TypeParam, Cpu> expected;
  Layer<TypeParam, Cuda> actual;
  expected.set_input(20);
  actual.set_input(20);
  expected.run();
  actual.run();
  expect_near(actual.results(), expected.results(), bound);
}

TYPED_TEST(ExpertsMlpOnCuda, RecordingServesOtherExpertChoices) {
  Layer<TypeParam, Cuda> direct;
  Layer<TypeParam, Cuda> recorded;
  Replay<Cuda> replay;
  for (const unsigned seed : {20u, 21u, 22u}) {  // runs, records, launches
    recorded.set_input(seed);
    replay.run(recorded.context(), [&] { recorded.run(); });
  }
  EXPECT_EQ(replay.counts().launches, 2u);
  direct.set_input(22);
  direct.run();
  const Results expected = direct.results();
  const Results actual = recorded.results();
  EXPECT_EQ(actual.y, expected.y);
  EXPECT_EQ(actual.x_gradient, expected.x_gradient);
  EXPECT_EQ(actual.gradients, expected.gradients);
}

}  // namespace octavo::experts_mlp_cuda_test

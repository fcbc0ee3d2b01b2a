// Runs one linear layer, forward and backward, in every precision, and prints the error against
// FP32. The layer's precision is a template argument, which determines the types of all operands.
#include <fmt/format.h>
#include <octavo/octavo.hpp>

#include <cmath>

using namespace octavo;
constexpr int tokens = 256, features = 512;
using Values = std::vector<double>;

/// Runs the layer `steps` times on the same input; returns y, dx and dw of the last run.
template <class P>
std::vector<Values> run(int steps) {
  using Layer = Linear<P, features, features, float, Cpu>;  // the weight gradient is FP32
  using T = typename Layer::T;                              // between GEMMs: FP32 or BF16
  constexpr auto kind = MemoryKind::activations;
  Context<Cpu> context(1);
  Arena<Cpu> arena({.peak = 16 << 20}, context);  // a model first measures how much memory it needs
  Manifest manifest;
  ScalingTable<Cpu> scaling;
  Parameter<T, float, Cpu> weight;
  weight.allocate(arena, "linear.weight", features, features, Initial::normal(0.05f));
  weight.allocate_gradient(arena);
  Layer layer;
  layer.declare("linear", {&scaling, &manifest});
  layer.allocate_weight_copies(arena, weight);
  scaling.allocate(arena);
  const auto make = [&](auto operand) {
    operand.allocate_values(arena, kind, tokens, features);
    operand.allocate_row_major(arena, kind, tokens, features);
    operand.allocate_transposed(arena, kind, tokens, features);
    return operand;
  };
  const auto x = layer.template input<Mode::train>(make(typename Layer::InputMemory{}), tokens, {});
  const auto dy = layer.output_gradient(make(typename Layer::OutputGradientMemory{}), tokens);
  const TensorView<T, 2, Cpu> y{arena.allocate<T>(kind, x.values.size()), x.values.shape()};
  const TensorView<T, 2, Cpu> dx{arena.allocate<T>(kind, x.values.size()), x.values.shape()};
  const std::size_t bytes = matmul_workspace(features, features, features, context);
  context.bind_workspace({arena.allocate<std::byte>(kind, static_cast<Index>(bytes)), bytes});
  initialize(weight, {1, 1}, context);
  scaling.reset_sync(context);
  for (unsigned i = 0; i < tokens * features; ++i)  // gradients are small
    x.values.data()[i] = T(normal({1, 2}, i)), dy.values.data()[i] = T(1e-5f * normal({1, 3}, i));
  for (int step = 0; step < steps; ++step) {
    layer.template quantize_weight<Mode::train>(context);
    quantize(x, context), quantize(dy, context);  // does nothing for FP32 and BF16
    layer.forward(x, {}, y, context);
    layer.backward_input(dy, dx, context);
    layer.backward_weight(dy, x, weight.gradient, false, context);
    scaling.update(context);  // delayed scaling: computes the scales of the next step
  }
  const auto read = [](auto view) {
    Values values;
    for (Index i = 0; i < view.size(); ++i) values.push_back(static_cast<float>(view.data()[i]));
    return values;
  };
  return {read(y), read(dx), read(weight.gradient)};
}

template <class P>
void compare(int steps) {
  fmt::print("{:<15} {:>4}", PrecisionTraits<P>::name(), steps);
  const auto exact = run<Fp32>(1), values = run<P>(steps);
  for (std::size_t product = 0; product < exact.size(); ++product) {
    const Values &a = values[product], &b = exact[product];
    double distance = 0, norm = 0;
    for (std::size_t i = 0; i < a.size(); ++i) distance += std::pow(a[i] - b[i], 2);
    for (const double value : b) norm += value * value;
    fmt::print(" {:>9.3f} %", 100 * std::sqrt(distance / norm));
  }
  fmt::print("\n");
}

int main() {
  fmt::print("{:<15} {:>4} {:>11} {:>11} {:>11}\n", "error of", "step", "y", "dx", "dw");
  compare<Bf16>(1), compare<Fp8Recipe<Delayed>>(1), compare<Fp8Recipe<Delayed>>(2);
  compare<Fp8Recipe<Tensorwise>>(1), compare<Fp8Recipe<Rowwise>>(1);
  compare<Fp8Recipe<Blockwise>>(1), compare<Mxfp8>(1), compare<Nvfp4>(1);
}

// A custom layer in a chain of library layers: RMSNorm, Linear, LayerScale. It declares its
// parameters. Exit code 1: the gradients differ from central differences.
#include <fmt/format.h>
#include <octavo/octavo.hpp>

using namespace octavo;
constexpr int tokens = 24, hidden = 32, size = tokens * hidden;
using Matrix = TensorView<float, 2, Cpu>;

/// y[t, c] = x[t, c] · weight[c], for a small initial branch. Touvron et al. 2021.
struct LayerScale {
  LayerScale() { weight.declare("layer_scale.weight", 1, hidden, Initial::normal(0.5f)); }
  void visit(auto&& visitor) { visitor(weight); }
  void forward(Matrix x, Matrix y, const Context<Cpu>& context) const {
    const float* w = weight.weight.data();
    parallel_for(size, 1, context, [&](Index i) { y.data()[i] = x.data()[i] * w[i % hidden]; });
  }
  /// One thread computes a column, so sums do not depend on the number of threads.
  void backward(Matrix dy, Matrix x, Matrix dx, const Context<Cpu>& context) const {
    parallel_for(hidden, size / hidden, context, [&](Index c) {
      for (Index t = 0; t < tokens; ++t) {
        dx.row(t)[c] = dy.row(t)[c] * weight.weight.data()[c];
        weight.gradient.data()[c] += dy.row(t)[c] * x.row(t)[c];
      }
    });
  }
  Parameter<float, float, Cpu> weight;
};

int main() {
  Context<Cpu> context(1);
  Arena<Cpu> arena({.peak = 4 << 20}, context);  // a model first measures how much memory it needs
  constexpr auto kind = MemoryKind::activations;
  fill_zero(arena.allocate<float>(kind, 0), arena.allocated(), context);
  const auto matrix = [&] { return Matrix{arena.allocate<float>(kind, size), {tokens, hidden}}; };
  const Matrix x = matrix(), projected = matrix(), y = matrix(), dy = matrix(), gradient = matrix();
  const Operand<Fp32, OperandKind::input, Cpu> normalised{matrix()};
  const Operand<Fp32, OperandKind::output_gradient, Cpu> dprojected{matrix()};
  const TensorView<float, 1, Cpu> inverse_rms{matrix().data(), {tokens}};
  const std::size_t bytes = matmul_workspace(hidden, hidden, hidden, context);
  context.bind_workspace({arena.allocate<std::byte>(kind, Index(bytes)), bytes});
  RMSNorm<float, hidden, float, Cpu> norm;
  Linear<Fp32, hidden, hidden, float, Cpu> linear;
  Parameter<float, float, Cpu> weight;
  LayerScale scale;
  Manifest manifest;  // the linear layer adds its GEMMs; in FP32, it needs no scaling table
  norm.declare("norm", 1e-5f), weight.declare("weight", hidden, hidden, Initial::normal(0.2f));
  const auto visit = [&](auto v) { norm.visit(v), v(weight), scale.visit(v); };
  FlatParameters<float, float, Cpu> flat;  // all weights contiguous, and all gradients
  flat.allocate_weights(arena, visit), flat.allocate_gradients(arena, visit);
  linear.declare("linear", {nullptr, &manifest}), linear.allocate_weight_copies(arena, weight);
  visit([&](auto& p) { initialize(p, {1, 0}, context); });
  for (unsigned i = 0; i < size; ++i) x.data()[i] = normal({1, 1}, i);
  for (unsigned i = 0; i < size; ++i) dy.data()[i] = normal({1, 2}, i);
  const auto loss = [&] {  // Σ y · dy, whose gradient with respect to y is dy
    norm.forward(x, normalised, inverse_rms, context);
    linear.forward(normalised, {}, projected, context);
    scale.forward(projected, y, context);
    double sum = 0;
    for (Index i = 0; i < size; ++i) sum += double{y.data()[i]} * double{dy.data()[i]};
    return sum;
  };
  loss();  // forward
  scale.backward(dy, projected, dprojected.values, context);
  linear.backward_weight(dprojected, normalised, weight.gradient, false, context);
  linear.backward_input(dprojected, gradient, context);
  norm.backward(gradient, x, inverse_rms, y, context);
  bool right = true;
  visit([&](auto& parameter) {
    float& value = parameter.weight.data()[hidden / 2];
    const float kept = value;
    const double above = (value = kept + 0.125f, loss()), below = (value = kept - 0.125f, loss());
    const double found = parameter.gradient.data()[hidden / 2], expected = (above - below) / 0.25;
    const double error = std::abs(found / expected - 1);
    value = kept, right = right && error < 1e-3;
    fmt::print("{:<18} | backward {:>9.5f} | differences {:>9.5f} | relative error {:.0e}\n",
               parameter.name, found, expected, error);
  });
  return right ? 0 : 1;
}

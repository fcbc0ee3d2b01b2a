// A custom model, trained by the library's session. Its even layers have one MLP before attention
// and one after it (a "macaron"; Lu et al. 2019, arXiv 1906.02762), with a custom activation, and
// attend to the last 8 tokens. Its odd layers are those of a Llama. Exit code 1: it did not learn.
#include <fmt/format.h>
#include <octavo/octavo.hpp>

using namespace octavo;

/// relu(x)²: So et al. 2021, arXiv 2109.08668. An activation reads the columns of the projection.
struct SquaredRelu {
  static constexpr const char* projection = "up";  // its name in the manifest
  static constexpr int inputs = 1;                 // projection columns per result column
  static constexpr bool sums_bias = false;         // the backward computes no bias gradient

  template <class T, class Y>
  static void forward(TensorView<const T, 2, Cpu> x, const Y& y, const Context<Cpu>& context) {
    parallel_for(x.size(), 1, context, [&](Index i) {
      const float value = std::max(0.0f, static_cast<float>(x.data()[i]));
      y.values.data()[i] = T(value * value);
    });
    quantize(y, context);  // the input of the next linear layer, in that layer's precision
  }
  template <class T, class Gradient, class G>
  static void backward(TensorView<const T, 2, Cpu> dy, TensorView<const T, 2, Cpu> x,
                       const Gradient& dx, TensorView<G, 1, Cpu>, const Context<Cpu>& context) {
    parallel_for(x.size(), 1, context, [&](Index i) {
      const float value = std::max(0.0f, static_cast<float>(x.data()[i]));
      dx.values.data()[i] = T(2.0f * value * static_cast<float>(dy.data()[i]));
    });
    quantize(dx, context);
  }
};

constexpr LlamaConfig shape{.name = "hybrid",
                            .layers = 4,
                            .hidden = 64,
                            .ffn = 64,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .vocabulary = 64,
                            .window = 8};

/// The parts of a Llama except even blocks. T, P and G are a block's formats and precisions. Blocks
/// of kind 0 have the window.
struct Alternating : LlamaFamily<shape> {
  static constexpr int block_kind(int layer) { return layer % 2; }
  template <class T, class P, class G, Device D>
  using OwnMlp = MLP<block_shape, SquaredRelu, T, typename P::template Of<LinearRole::gate_up>,
                     typename P::template Of<LinearRole::down>, G, D>;
  /// y = x + part(norm(x)), with the suffix of the norm's name and a prefix of the layers' names.
  template <ConfigName NormName, ConfigName Prefix, class Part, class T, class G, Device D>
  using Branch = ResidualBranch<NormName, Prefix, Norm<T, G, D>, Part, T, config.hidden, D>;
  template <class T, class P, class G, Device D>
  using Macaron = PreNormBlock<T, config.hidden, G, D,  //
                               Branch<"first_norm", "first", OwnMlp<T, P, G, D>, T, G, D>,
                               Branch<"attention_norm", "", Attention<0, T, P, G, D>, T, G, D>,
                               Branch<"last_norm", "last", OwnMlp<T, P, G, D>, T, G, D>>;
  template <int Kind, class T, class P, class G, Device D>
  using Block = std::conditional_t<Kind == 0, Macaron<T, P, G, D>,
                                   typename LlamaFamily<shape>::template Block<Kind, T, P, G, D>>;
};
using Model = Decoder<Alternating, Fp8Recipe<Delayed>, Cpu>;

int main() {
  Context<Cpu> context(1);
  ModelSession<Model> session({.batch = {.sequences = 4, .tokens = 32}}, context);
  fmt::print("{}", session.manifest().text());
  std::vector<std::int32_t> tokens(4 * 32), targets(tokens.size());
  double loss = 0;
  for (int step = 1; step <= 60; ++step) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {  // a text that counts in odd steps
      const auto odd = 1 + 2 * (static_cast<int>(i) / 32 + step) % 8;
      tokens[i] = static_cast<int>(i) % 32 * odd % 64, targets[i] = (tokens[i] + odd) % 64;
    }
    loss = session.step({tokens, targets}, 3e-3).loss;
    if (step % 10 == 0) fmt::print("step {:>2} | loss {:.4f}\n", step, loss);
  }
  return loss < 1.5 ? 0 : 1;
}

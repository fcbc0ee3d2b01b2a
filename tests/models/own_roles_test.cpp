// Blocks with one and with six linear layers, whose roles the library does not know.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "support/small_model.hpp"

namespace own_roles_test {

using namespace octavo;

constexpr LlamaConfig shape = [] {
  LlamaConfig config = support::small;
  config.name = "own_roles";
  config.layers = 4;
  return config;
}();

/// y = residual + x · Wᵀ, of one linear layer.
template <class T, class P, int Hidden, class G, Device D>
class Mix {
 public:
  using Layer = Projection<P, Hidden, Hidden, false, G, D>;
  using Input = typename Layer::Input;
  struct Saved {
    typename Layer::InputMemory input;
  };
  struct Scratch {
    typename Layer::OutputGradientMemory y_gradient;
    T* normalised_gradient = nullptr;
  };

  void declare(const std::string& name, LayerRegistry<D> registry, BlockInitial initial,
               Recomputation recomputation) {
    layer_.declare(name + ".mix", registry, initial.outer,
                   {.recomputed = recomputation.runs_forward_again(), .adds = true});
  }
  void allocate_weight_copies(Arena<D>& arena) { layer_.allocate_weight_copies(arena); }
  template <class Wanted>
  static void allocate_saved(Arena<D>& arena, Saved& saved, Index tokens, const Wanted& wanted) {
    if (wanted(Recompute::norms)) saved.input.allocate_kept(arena, tokens, Hidden);
  }
  static void allocate_shared_buffers(Arena<D>& arena, Saved& saved, Index tokens) {
    saved.input.allocate_transient(arena, tokens, Hidden);
  }
  static void allocate_scratch(Arena<D>& arena, Scratch& scratch, Index tokens) {
    scratch.y_gradient.allocate_row_major(arena, MemoryKind::activations, tokens, Hidden);
    scratch.y_gradient.allocate_transposed(arena, MemoryKind::activations, tokens, Hidden);
  }
  template <class M>
  void quantize_weights(const Context<D>& context) {
    layer_.template quantize_weight<M>(context);
  }
  template <class M>
  [[nodiscard]] Input input(const Saved& saved, Index tokens, OperandCopies copies) const {
    return layer_.template input<M>(saved.input, tokens, copies);
  }
  [[nodiscard]] OperandCopies backward_input() const {
    return {.row_major = false, .transposed = true};
  }
  template <class M, class Positions>
  void forward(const Input& x, TensorView<const T, 2, D> residual, TensorView<T, 2, D> y,
               BatchShape, const Positions&, const Saved&, const Context<D>& context) {
    layer_.forward(x, residual, y, context);
  }
  template <class Positions>
  void backward(TensorView<T, 2, D> y_gradient, const Input& x, TensorView<T, 2, D> x_gradient,
                BatchShape batch, const Positions&, const Saved&, const Scratch& scratch,
                bool accumulate, const Context<D>& context) {
    auto memory = scratch.y_gradient;
    memory.values = y_gradient.data();
    const auto dy = layer_.output_gradient(memory, batch.rows());
    layer_.cast_gradient(dy, context);
    layer_.backward(dy, x, x_gradient, accumulate, context);
  }
  void visit(auto&& visitor) { layer_.visit_weight(visitor); }
  void visit_adapters(auto&& visitor) { layer_.visit_adapter(visitor); }

 private:
  Layer layer_;
};

/// Blocks of kind 0 have one linear layer, those of kind 1 six.
struct OwnRoles : LlamaFamily<shape> {
  static constexpr int block_kind(int layer) { return layer % 2; }
  template <int Kind>
  using Roles =
      std::conditional_t<Kind == 0, LinearRoles<"mix">,
                         LinearRoles<LinearRole::qkv, LinearRole::output, LinearRole::gate_up,
                                     LinearRole::down, "first_up", "first_down">>;

  template <ConfigName NormName, ConfigName Prefix, class Part, class T, class G, Device D>
  using Branch = ResidualBranch<NormName, Prefix, Norm<T, G, D>, Part, T, config.hidden, D>;
  template <int Kind, class T, class P, class G, Device D>
  struct BlockOf {
    using Mixer = Mix<T, typename P::template Of<"mix">, config.hidden, G, D>;
    using type = PreNormBlock<T, config.hidden, G, D, Branch<"norm", "", Mixer, T, G, D>>;
  };
  template <class T, class P, class G, Device D>
  struct BlockOf<1, T, P, G, D> {
    using First = MLP<block_shape, SwiGlu, T, typename P::template Of<"first_up">,
                      typename P::template Of<"first_down">, G, D>;
    using type = PreNormBlock<T, config.hidden, G, D,  //
                              Branch<"first_norm", "first", First, T, G, D>,
                              Branch<"attention_norm", "", Attention<1, T, P, G, D>, T, G, D>,
                              Branch<"mlp_norm", "", Mlp<T, P, G, D>, T, G, D>>;
  };
  template <int Kind, class T, class P, class G, Device D>
  using Block = typename BlockOf<Kind, T, P, G, D>::type;
};

using Fp8 = Fp8Recipe<Tensorwise>;
/// More exceptions than the four roles of the library's blocks.
using Precision = Layerwise<For<"mix", Bf16>, For<"first_down", Bf16>, For<LinearRole::qkv, Bf16>,
                            For<LinearRole::output, Bf16>, For<LinearRole::down, Bf16>, Fp8>;
using Model = Decoder<OwnRoles, Precision, Cpu>;

static_assert(std::is_same_v<For<"down", Bf16>, For<LinearRole::down, Bf16>>);

TEST(OwnRoles, HaveTheirOwnPrecisions) {
  Context<Cpu> context(2);
  SessionOptions options = support::small_options();
  ModelSession<Model> session(options, context);
  std::vector<std::string> quantised, dense;
  for (const GemmEntry& gemm : session.manifest().entries()) {
    if (gemm.pass != GemmPass::forward) continue;
    (gemm.scales_a == GemmScales::none ? dense : quantised).push_back(gemm.layer);
  }
  EXPECT_EQ(quantised, (std::vector<std::string>{"blocks.1.first.gate_up", "blocks.1.gate_up",
                                                 "blocks.3.first.gate_up", "blocks.3.gate_up"}));
  EXPECT_EQ(dense.size(), 2U + 2U * 4U + 1U);
  EXPECT_EQ(
      precision_name<Precision>(),
      "qkv bf16, output bf16, down bf16, first_down bf16, mix bf16, " + precision_name<Fp8>());
}

TEST(OwnRoles, RecomputePoliciesAreBitwiseEqual) {
  std::vector<std::byte> expected;
  for (const Recompute policy :
       {Recompute::none, Recompute::norms, Recompute::ffn, Recompute::block}) {
    SessionOptions options = support::small_options();
    options.model.recompute = policy;
    Context<Cpu> context(2);
    ModelSession<Model> session(options, context);
    std::vector<double> losses;
    for (unsigned i = 0; i < 4; ++i) {
      const support::TokenBatch batch = support::step_batch(options, 0);
      losses.push_back(session.step({batch.tokens, batch.targets}, 3e-3).loss);
    }
    EXPECT_LT(losses.back(), losses.front() - 0.1);
    const std::vector<std::byte> weights = support::weights(session);
    if (expected.empty()) expected = weights;
    EXPECT_TRUE(weights == expected) << static_cast<int>(policy);
  }
}

}  // namespace own_roles_test

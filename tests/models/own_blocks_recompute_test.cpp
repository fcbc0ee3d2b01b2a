#include <octavo/models/models.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "support/test_types.hpp"

/// Blocks of other orders than the families' recompute as those do.
namespace own_blocks_recompute_test {

using namespace octavo;

constexpr LlamaConfig shape{.name = "own",
                            .layers = 2,
                            .hidden = 64,
                            .ffn = 96,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .vocabulary = 64};

/// The parts of a Llama as branches of any order.
struct Parts : LlamaFamily<shape> {
  using Base = LlamaFamily<shape>;  // the name is the user's, also in here
  template <class T, class P, class G, Device D, ConfigName Prefix = "">
  using MlpBranch = ResidualBranch<"mlp_norm", Prefix, Norm<T, G, D>, Mlp<T, P, G, D>, T, 64, D>;
  template <class T, class P, class G, Device D, ConfigName Prefix = "">
  using AttentionBranch =
      ResidualBranch<"attention_norm", Prefix, Norm<T, G, D>, Attention<0, T, P, G, D>, T, 64, D>;
};

struct Reversed : Parts {
  template <int, class T, class P, class G, Device D>
  using Block = PreNormBlock<T, 64, G, D, MlpBranch<T, P, G, D>, AttentionBranch<T, P, G, D>>;
};
struct Macaron : Parts {
  template <int, class T, class P, class G, Device D>
  using Block = PreNormBlock<T, 64, G, D, MlpBranch<T, P, G, D, "first">,
                             AttentionBranch<T, P, G, D>, MlpBranch<T, P, G, D, "last">>;
};
struct AttentionTwice : Parts {
  template <int, class T, class P, class G, Device D>
  using Block = PreNormBlock<T, 64, G, D, AttentionBranch<T, P, G, D, "first">,
                             MlpBranch<T, P, G, D>, AttentionBranch<T, P, G, D, "last">>;
};

/// A part of two parts: y = residual + attention(x) + mlp(x).
template <class T, class Attention, class Mlp, Device D>
class BothAtOnce {
 public:
  using Input = typename Attention::Input;
  struct Saved {
    typename Attention::Saved attention;
    typename Mlp::Saved mlp;
  };
  struct Scratch {
    typename Attention::Scratch attention;
    typename Mlp::Scratch mlp;
    T* x_gradient = nullptr;  ///< [tokens, hidden], the MLP's
  };

  void declare(const std::string& name, LayerRegistry<D> registry, BlockInitial initial,
               Recomputation recomputation) {
    recomputation_ = recomputation;
    attention_.declare(name, registry, initial, recomputation);
    mlp_.declare(name, registry, initial, recomputation);
  }
  void allocate_weight_copies(Arena<D>& arena) {
    attention_.allocate_weight_copies(arena);
    mlp_.allocate_weight_copies(arena);
  }
  template <class Wanted>
  static void allocate_saved(Arena<D>& arena, Saved& saved, Index tokens, const Wanted& wanted) {
    Attention::allocate_saved(arena, saved.attention, tokens, wanted);
    Mlp::allocate_saved(arena, saved.mlp, tokens, wanted);
  }
  static void allocate_shared_buffers(Arena<D>& arena, Saved& saved, Index tokens) {
    Attention::allocate_shared_buffers(arena, saved.attention, tokens);
    Mlp::allocate_shared_buffers(arena, saved.mlp, tokens);
  }
  static void allocate_scratch(Arena<D>& arena, Scratch& scratch, Index tokens) {
    Attention::allocate_scratch(arena, scratch.attention, tokens);
    Mlp::allocate_scratch(arena, scratch.mlp, tokens);
    scratch.x_gradient = arena.template allocate<T>(MemoryKind::activations, tokens * 64);
  }
  template <class M>
  void quantize_weights(const Context<D>& context) {
    attention_.template quantize_weights<M>(context);
    mlp_.template quantize_weights<M>(context);
  }
  template <class M>
  [[nodiscard]] Input input(const Saved& saved, Index tokens, OperandCopies copies) const {
    return attention_.template input<M>(saved.attention, tokens, copies);
  }
  [[nodiscard]] OperandCopies backward_input() const { return attention_.backward_input(); }

  template <class M, class Positions>
  void forward(const Input& x, TensorView<const T, 2, D> residual, TensorView<T, 2, D> y,
               const BatchView<D>& batch, const Positions& positions, const Saved& saved,
               const Context<D>& context) {
    attention_.template forward<M>(x, residual, y, batch, positions, saved.attention, context);
    const auto mlp_input = cast<M>(x, {true, M::saves}, saved, context);
    mlp_.template forward<M>(mlp_input, y, y, batch, positions, saved.mlp, context);
  }
  template <class Positions>
  void backward(TensorView<T, 2, D> y_gradient, const Input& x, TensorView<T, 2, D> x_gradient,
                const BatchView<D>& batch, const Positions& positions, const Saved& saved,
                const Scratch& scratch, bool accumulate, const Context<D>& context) {
    using RecomputeMode = Mode::recompute;
    const OperandCopies copies = mlp_.backward_input();
    auto mlp_input = mlp_.template input<RecomputeMode>(saved.mlp, batch.rows(), copies);
    if (recomputation_.in_backward(Recompute::norms)) {
      mlp_input = cast<RecomputeMode>(x, copies, saved, context);
    } else {
      mlp_input.values = x.values;
    }
    const TensorView<T, 2, D> of_mlp{scratch.x_gradient, x_gradient.shape()};
    mlp_.backward(y_gradient, mlp_input, of_mlp, batch, positions, saved.mlp, scratch.mlp,
                  accumulate, context);
    attention_.backward(y_gradient, x, x_gradient, batch, positions, saved.attention,
                        scratch.attention, accumulate, context);
    for (Index i = 0; i < of_mlp.size(); ++i) {
      T& sum = x_gradient.data()[i];
      sum = T(static_cast<float>(sum) + static_cast<float>(of_mlp.data()[i]));
    }
  }
  template <class Visitor>
  void visit(Visitor&& visitor) {
    attention_.visit(visitor);
    mlp_.visit(visitor);
  }

 private:
  template <class M>
  auto cast(const Input& x, OperandCopies copies, const Saved& saved,
            const Context<D>& context) const {
    auto operand = mlp_.template input<M>(saved.mlp, x.values.extent(0), copies);
    operand.values = x.values;
    quantize(operand, context);
    return operand;
  }

  Recomputation recomputation_;
  Attention attention_;
  Mlp mlp_;
};

struct Parallel : Parts {
  template <class T, class P, class G, Device D>
  using Both = BothAtOnce<T, Attention<0, T, P, G, D>, Mlp<T, P, G, D>, D>;
  template <int, class T, class P, class G, Device D>
  using Block = PreNormBlock<T, 64, G, D,
                             ResidualBranch<"norm", "", Norm<T, G, D>, Both<T, P, G, D>, T, 64, D>>;
};
/// The same before another branch, which makes the block run it again.
struct ParallelFirst : Parallel {
  template <int, class T, class P, class G, Device D>
  using Block = PreNormBlock<T, 64, G, D,
                             ResidualBranch<"norm", "", Norm<T, G, D>, Both<T, P, G, D>, T, 64, D>,
                             MlpBranch<T, P, G, D, "last">>;
};

/// What some steps leave behind, bit for bit.
struct Trace {
  std::vector<float> losses;
  std::vector<std::byte> gradients;
  std::vector<std::byte> scaling;
  Index bytes = 0;  ///< of activations
};

template <class View>
void append(std::vector<std::byte>& bytes, const View& view) {
  const auto* begin = reinterpret_cast<const std::byte*>(view.data());
  bytes.insert(bytes.end(), begin, begin + view.bytes());
}

template <class Model>
Trace train(ModelOptions options) {
  constexpr BatchShape batch{2, 24};
  constexpr auto rows = static_cast<std::size_t>(batch.rows());
  Context<Cpu> context(1);
  Arena<Cpu> arena;
  {
    const Model measured(arena, batch, options, context);
  }
  Trace trace;
  trace.bytes = static_cast<Index>(arena.plan().peak);
  arena = {arena.plan(), context};
  Model model(arena, batch, options, context);
  HooksOf<Model> hooks;
  model.initialize_sync(7, hooks, context);
  std::vector<std::int32_t> tokens(rows), targets(rows);
  std::vector<float> losses(rows);
  const float scale = 1.0f / static_cast<float>(rows);
  for (int step = 1; step <= 3; ++step) {
    for (std::size_t i = 0; i < rows; ++i) {
      tokens[i] = static_cast<int>(i * i) * step % 64;
      targets[i] = (tokens[i] + 3) % 64;
    }
    model.reset_counts();
    model.template invalidate_weight_copies<Mode::train>(hooks, context);
    model.train_micro_batch({{tokens.data(), {batch.rows()}}, {targets.data(), {batch.rows()}}},
                            {losses.data(), {batch.rows()}}, {&scale, {1}}, {}, hooks, context);
    model.verify_step(1);
    model.scaling().update(context);
    trace.losses.insert(trace.losses.end(), losses.begin(), losses.end());
    model.visit([&](auto& parameter) { append(trace.gradients, parameter.gradient); });
    append(trace.scaling, model.scaling().state());
  }
  return trace;
}

template <class Case>
class OwnBlocksRecompute : public testing::Test {};
using Fp8 = Fp8Recipe<Delayed>;
using Cases = support::TypesAlways<std::tuple<Reversed, Bf16>, std::tuple<Macaron, Fp8>,
                                   std::tuple<AttentionTwice, Fp8>, std::tuple<Parallel, Bf16>,
                                   std::tuple<ParallelFirst, Fp8>>::
    And<std::tuple<Reversed, Fp8>, std::tuple<Reversed, Fp8Recipe<Tensorwise>>,
        std::tuple<Macaron, Bf16>, std::tuple<AttentionTwice, Bf16>, std::tuple<Parallel, Fp8>>;
TYPED_TEST_SUITE(OwnBlocksRecompute, Cases);

TYPED_TEST(OwnBlocksRecompute, PoliciesAreBitwiseEqual) {
  using Model =
      Decoder<std::tuple_element_t<0, TypeParam>, std::tuple_element_t<1, TypeParam>, Cpu>;
  const Trace none = train<Model>({});
  const auto zeros = std::count(none.gradients.begin(), none.gradients.end(), std::byte{});
  ASSERT_LT(zeros, static_cast<std::ptrdiff_t>(none.gradients.size() / 2)) << "nothing was trained";
  for (const Recompute policy :
       {Recompute::norms, Recompute::swiglu, Recompute::ffn, Recompute::block}) {
    for (const bool share : {false, true}) {
      SCOPED_TRACE(testing::Message() << "policy " << static_cast<int>(policy) << " " << share);
      const Trace made_again = train<Model>({.recompute = policy, .gradients_share_memory = share});
      EXPECT_TRUE(made_again.losses == none.losses);
      EXPECT_TRUE(made_again.gradients == none.gradients);
      EXPECT_TRUE(made_again.scaling == none.scaling);
      EXPECT_LT(made_again.bytes, none.bytes);
    }
  }
}

/// How often a step runs the forward of a layer, as the manifest expects and verifies.
template <class Model>
std::uint64_t forwards(const std::string& layer, Recompute policy) {
  Context<Cpu> context(1);
  Arena<Cpu> arena;
  const Model model(arena, {2, 24}, {.recompute = policy}, context);
  for (const GemmEntry& entry : model.manifest().entries()) {
    if (entry.layer == layer && entry.pass == GemmPass::forward) return entry.planned(1);
  }
  return 0;
}

TEST(OwnBlocksManifest, RecomputesGemmsOnceExceptLastOutput) {
  using Model = Decoder<Macaron, Bf16, Cpu>;
  for (const char* layer : {"first.gate_up", "first.down", "qkv", "output", "last.gate_up"}) {
    EXPECT_EQ(forwards<Model>(std::string("blocks.0.") + layer, Recompute::block), 2U) << layer;
  }
  EXPECT_EQ(forwards<Model>("blocks.0.last.down", Recompute::block), 1U);
  EXPECT_EQ(forwards<Model>("blocks.0.first.down", Recompute::ffn), 1U);
  EXPECT_EQ(forwards<Model>("blocks.0.first.gate_up", Recompute::ffn), 2U);
  EXPECT_EQ(forwards<Model>("blocks.0.first.gate_up", Recompute::swiglu), 1U);
  using AttentionLast = Decoder<Reversed, Bf16, Cpu>;
  EXPECT_EQ(forwards<AttentionLast>("blocks.0.qkv", Recompute::block), 2U);
  EXPECT_EQ(forwards<AttentionLast>("blocks.0.output", Recompute::block), 1U);
}

}  // namespace own_blocks_recompute_test

// expect NO_MODEL: ModelSession: the model must be a Decoder, such as Llama<config, precision,
// expect SCALING: ModelSession: the model lacks `const ScalingTable<D>& scaling() const`
// expect GEMM_ROWS: ModelSession: the model lacks GemmRows gemm_rows(Index micro_batches)
// expect FACTS: ModelSession: the model lacks `static ModelFacts facts()`, its name and
// expect SCALE_BY_VALUE: ModelSession: the model lacks train_micro_batch(batch, losses,
// expect SCALE_BY_VALUE: hooks, context) with Decoder's arguments
// expect EVALUATE_WITHOUT_HOOKS: ModelSession: the model lacks evaluate(batch, losses, hooks,
// expect RUN_SHAPE: ModelSession: run_shape of the model must be `static BatchShape
#include <octavo/octavo.hpp>

using namespace octavo;

using D = Cpu;
using TokenView = TensorView<const std::int32_t, 1, D>;
using Losses = TensorView<float, 1, D>;
#if defined(OCTAVO_COMPILE_FAIL_SCALE_BY_VALUE)
using GradientScale = float;
#else
using GradientScale = TensorView<const float, 1, D>;
#endif

/// All that a session asks for, declared.
struct Own {
  using DeviceType = D;
  using T = Bf16;
  using G = Bf16;
  using Hooks = StageHooks<T, G, D>;
#if !defined(OCTAVO_COMPILE_FAIL_FACTS)
  static ModelFacts facts();
#endif
  static std::string precision();
#if defined(OCTAVO_COMPILE_FAIL_RUN_SHAPE)
  static BatchShape run_shape(Index sequences, Index tokens);
#endif

  static DeviceLimits<D> limits(BatchShape batch, const Context<D>& context);
  Own(Arena<D>& arena, BatchShape batch, ModelOptions options, const DeviceLimits<D>& limits);
#if !defined(OCTAVO_COMPILE_FAIL_GEMM_ROWS)
  [[nodiscard]] GemmRows gemm_rows(Index micro_batches) const;
#endif
  void initialize_sync(std::uint64_t seed, Hooks& hooks, Context<D>& context);
  void bind(Context<D>& context) const;
  [[nodiscard]] const ModelParameters<T, G, D>& parameters() const;
  template <class M>
  void invalidate_weight_copies(Hooks&, const Context<D>&) {}
  void train_micro_batch(const DeviceBatch<D>& batch, Losses losses, GradientScale scale,
                         octavo::Accumulation accumulation, Hooks& hooks,
                         const Context<D>& context);
#if !defined(OCTAVO_COMPILE_FAIL_SCALING)
  [[nodiscard]] const ScalingTable<D>& scaling() const;
#endif
#if defined(OCTAVO_COMPILE_FAIL_EVALUATE_WITHOUT_HOOKS)
  void evaluate(const DeviceBatch<D>& batch, Losses losses, const Context<D>& context);
#else
  void evaluate(const DeviceBatch<D>& batch, Losses losses, Hooks& hooks,
                const Context<D>& context);
#endif
  TensorView<T, 2, D> logits(TokenView tokens, BatchShape shape, Index begin, Index count,
                             Hooks& hooks, const Context<D>& context);
  [[nodiscard]] const Manifest& manifest() const;
  void reset_counts();
  void verify_step(Index micro_batches) const;
  [[nodiscard]] Index head_chunks() const;
};

#if defined(OCTAVO_COMPILE_FAIL_NO_MODEL)
using Model = int;
#else
using Model = Own;
#endif

void start(Context<D>& context) {
  ModelSession<Model> session({.batch = {.sequences = 1, .tokens = 16}}, context);
}

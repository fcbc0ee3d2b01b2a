#include <octavo/models/models.hpp>
#include <octavo/session/session.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace trainable_model_test {

using namespace octavo;

enum class Part {
  none,
  device_type,
  formats,
  facts,
  precision,
  limits,
  constructor,
  gemm_rows,
  initialize,
  bind,
  runs,
  invalidate_weight_copies,
  train_micro_batch,
  scaling,
  evaluate,
  logits,
  manifest,
  reset_counts,
  verify_step,
  head_chunks,
};

struct Nothing {};
struct OnCpu {
  using DeviceType = Cpu;
};
struct Formats {
  using T = Bf16;
  using G = float;
};
struct Facts {
  static ModelFacts facts();
};
template <class Member, bool Wanted>
using If = std::conditional_t<Wanted, Member, std::pair<Nothing, Member*>>;

/// All that a session asks for, declared, but one part.
template <Part Missing>
struct Own : If<OnCpu, Missing != Part::device_type>,
             If<Formats, Missing != Part::formats>,
             If<Facts, Missing != Part::facts> {
  using Tokens = TensorView<const std::int32_t, 1, Cpu>;
  using Losses = TensorView<float, 1, Cpu>;
  using Hooks = StageHooks<Bf16, float, Cpu>;

  static std::string precision()
    requires(Missing != Part::precision);
  static DeviceLimits<Cpu> limits(BatchShape, const Context<Cpu>&)
    requires(Missing != Part::limits);
  Own(Arena<Cpu>&, BatchShape, ModelOptions, const DeviceLimits<Cpu>&)
    requires(Missing != Part::constructor);
  GemmRows gemm_rows(Index) const
    requires(Missing != Part::gemm_rows);
  void initialize_sync(std::uint64_t, Hooks&, Context<Cpu>&)
    requires(Missing != Part::initialize);
  void bind(Context<Cpu>&) const
    requires(Missing != Part::bind);
  const ModelParameters<Bf16, float, Cpu>& parameters() const
    requires(Missing != Part::runs);
  template <class M>
  void invalidate_weight_copies(Hooks&, const Context<Cpu>&)
    requires(Missing != Part::invalidate_weight_copies);
  void train_micro_batch(const DeviceBatch<Cpu>&, Losses, TensorView<const float, 1, Cpu>,
                         Accumulation, Hooks&, const Context<Cpu>&)
    requires(Missing != Part::train_micro_batch);
  const ScalingTable<Cpu>& scaling() const
    requires(Missing != Part::scaling);
  void evaluate(const DeviceBatch<Cpu>&, Losses, Hooks&, const Context<Cpu>&)
    requires(Missing != Part::evaluate);
  TensorView<Bf16, 2, Cpu> logits(Tokens, BatchShape, Index, Index, Hooks&, const Context<Cpu>&)
    requires(Missing != Part::logits);
  const Manifest& manifest() const
    requires(Missing != Part::manifest);
  void reset_counts()
    requires(Missing != Part::reset_counts);
  void verify_step(Index) const
    requires(Missing != Part::verify_step);
  Index head_chunks() const
    requires(Missing != Part::head_chunks);
};

static_assert(TrainableModel<Llama<llama_tiny, Bf16, Cpu>>);
static_assert(TrainableModel<Llama<llama3_1b, Fp8Recipe<Delayed>, Cpu, float>>);
static_assert(TrainableModel<Qwen3<qwen3_0_6b, Bf16, Cpu>>);
static_assert(TrainableModel<Gpt2<gpt2_124m, Fp8Recipe<Delayed>, Cpu>>);
static_assert(std::is_same_v<PresetModel<gpt2_tiny, Bf16, Cpu>, Gpt2<gpt2_tiny, Bf16, Cpu>>);
static_assert(std::is_same_v<PresetModel<llama_tiny, Bf16, Cpu>, Llama<llama_tiny, Bf16, Cpu>>);
static_assert(!TrainableModel<int> && !TrainableModel<LlamaConfig>);

// Each part is asked for; tests/compile_fail/model_member.cpp holds what the compiler says.
static_assert(TrainableModel<Own<Part::none>>);
static_assert(!TrainableModel<Own<Part::device_type>>);
static_assert(!TrainableModel<Own<Part::formats>>);
static_assert(!TrainableModel<Own<Part::facts>>);
static_assert(!TrainableModel<Own<Part::precision>>);
static_assert(!TrainableModel<Own<Part::limits>>);
static_assert(!TrainableModel<Own<Part::constructor>>);
static_assert(!TrainableModel<Own<Part::gemm_rows>>);
static_assert(!TrainableModel<Own<Part::initialize>>);
static_assert(!TrainableModel<Own<Part::bind>>);
static_assert(!TrainableModel<Own<Part::runs>>);
static_assert(!TrainableModel<Own<Part::invalidate_weight_copies>>);
static_assert(!TrainableModel<Own<Part::train_micro_batch>>);
static_assert(!TrainableModel<Own<Part::scaling>>);
static_assert(!TrainableModel<Own<Part::evaluate>>);
static_assert(!TrainableModel<Own<Part::logits>>);
static_assert(!TrainableModel<Own<Part::manifest>>);
static_assert(!TrainableModel<Own<Part::reset_counts>>);
static_assert(!TrainableModel<Own<Part::verify_step>>);
static_assert(!TrainableModel<Own<Part::head_chunks>>);

}  // namespace trainable_model_test

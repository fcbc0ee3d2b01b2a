// expect NO_OPTIMIZER: ModelSession: the optimizer must be AdamW<masters, moments>, or have its
// expect NO_OPTIMIZER: this has no `template <class W, class G, Device D> class For`
// expect CONSTRUCTOR: ModelSession: the optimizer's For lacks a constructor (Arena<D>&, const
// expect NAME: ModelSession: the optimizer's For lacks `static std::string name()`
// expect INITIALIZE: ModelSession: the optimizer's For lacks initialize(const Context<D>&)
// expect PREPARE: ModelSession: the optimizer's For lacks prepare(double learning_rate,
// expect NORMS: ModelSession: the optimizer's For lacks add_squared_norms(TensorView<StepStatus,
// expect STEP: ModelSession: the optimizer's For lacks step(TensorView<const StepStatus, 1, D>,
// expect ADVANCE: Timeline<D>&, const Context<D>&) or advance()
// expect MASTER: ModelSession: the optimizer's For lacks set_master(const std::string& name, Index
// expect STATE: ModelSession: the optimizer's For lacks visit_state(visitor), with a template for
#include <octavo/octavo.hpp>

using namespace octavo;

/// All that a session asks for, declared.
struct Own {
  template <class W, class G, Device D>
  class For {
   public:
#if !defined(OCTAVO_COMPILE_FAIL_CONSTRUCTOR)
    For(Arena<D>& arena, const std::vector<FlatShard<W, G, D>>& shards,
        const AdamWSettings& settings, std::uint64_t seed, const Offload& offload);
#endif
#if !defined(OCTAVO_COMPILE_FAIL_NAME)
    static std::string name();
#endif
#if !defined(OCTAVO_COMPILE_FAIL_INITIALIZE)
    void initialize(const Context<D>& context);
#endif
#if !defined(OCTAVO_COMPILE_FAIL_PREPARE)
    void prepare(double learning_rate, Staging<D>& staging, const Context<D>& context);
#endif
#if !defined(OCTAVO_COMPILE_FAIL_NORMS)
    void add_squared_norms(TensorView<StepStatus, 1, D> status, const Context<D>& context);
#endif
#if !defined(OCTAVO_COMPILE_FAIL_STEP)
    void step(TensorView<const StepStatus, 1, D> status, Timeline<D>& timeline,
              const Context<D>& context);
#endif
#if !defined(OCTAVO_COMPILE_FAIL_ADVANCE)
    void advance();
#endif
#if !defined(OCTAVO_COMPILE_FAIL_MASTER)
    void set_master(const std::string& name, Index begin, std::span<const float> values,
                    const Context<D>& context);
#endif
#if !defined(OCTAVO_COMPILE_FAIL_STATE)
    template <class Visitor>
    void visit_state(Visitor&) {}
#endif
  };
};

#if defined(OCTAVO_COMPILE_FAIL_NO_OPTIMIZER)
using Optimizer = int;
#else
using Optimizer = Own;
#endif

void start(Context<Cpu>& context) {
  ModelSession<Llama<llama_tiny, Bf16, Cpu>, Optimizer> session(
      {.batch = {.sequences = 1, .tokens = 16}}, context);
}

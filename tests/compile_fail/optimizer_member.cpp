// expect NO_OPTIMIZER: ModelSession: the optimizer must be AdamW<masters, moments>, or have its
// expect NO_OPTIMIZER: this has no `template <class W, class G, Device D> class For`
// expect SETTINGS: ModelSession: the optimizer lacks a type Settings
// expect BASE: ModelSession: the optimizer's For must be derived from Optimizer<D>
// expect ABSTRACT: ModelSession: the optimizer's For must override every pure member of
// expect CONSTRUCTOR: ModelSession: the optimizer's For lacks a constructor (Arena<D>&, const
// expect NAME: ModelSession: the optimizer's For lacks `static std::string name()`
#include <octavo/octavo.hpp>

using namespace octavo;

#if defined(OCTAVO_COMPILE_FAIL_BASE)
template <class D>
class Base {};
#else
template <class D>
using Base = Optimizer<D>;
#endif

/// All that a session asks for, declared.
struct Own {
#if defined(OCTAVO_COMPILE_FAIL_SETTINGS)
  using Other = AdamWSettings;
#else
  using Settings = AdamWSettings;
  using Other = Settings;
#endif

  template <class W, class G, Device D>
  class For : public Base<D> {
   public:
#if !defined(OCTAVO_COMPILE_FAIL_CONSTRUCTOR)
    For(Arena<D>& arena, const std::vector<FlatShard<W, G, D>>& shards, const Other& settings,
        std::uint64_t seed, const Offload& offload);
#endif
#if !defined(OCTAVO_COMPILE_FAIL_NAME)
    static std::string name();
#endif
#if !defined(OCTAVO_COMPILE_FAIL_BASE)
    void initialize(const Context<D>& context) override;
    void prepare(double learning_rate, Staging<D>& staging, const Context<D>& context) override;
    [[nodiscard]] std::size_t staged_bytes() const override;
    void add_squared_norms(TensorView<StepStatus, 1, D> status,
                           const Context<D>& context) const override;
#if !defined(OCTAVO_COMPILE_FAIL_ABSTRACT)
    void step(TensorView<const StepStatus, 1, D> status, ShardExchange<D>& ranks,
              Timeline<D>& timeline, const Context<D>& context) const override;
#endif
    void advance() override;
    void set_master(const std::string& name, Index begin, std::span<const float> values,
                    const Context<D>& context) const override;
    void visit_state(StateVisitor<D>& visitor) override;
#endif
  };
};

#if defined(OCTAVO_COMPILE_FAIL_NO_OPTIMIZER)
using Chosen = int;
#else
using Chosen = Own;
#endif

void start(Context<Cpu>& context) {
  ModelSession<Llama<llama_tiny, Bf16, Cpu>, Chosen> session(
      {.batch = {.sequences = 1, .tokens = 16}}, context);
}

// expect BOTH: GroupedQueryAttention: text generation requires that a rotation has exactly
// expect NEITHER: GroupedQueryAttention: text generation requires that a rotation has exactly
// expect DERIVED: cannot derive from
#include <octavo/octavo.hpp>

using namespace octavo;

constexpr BlockShape shape{
    .hidden = 64, .ffn = 128, .heads = 4, .kv_heads = 4, .head_dim = 16, .norm_epsilon = 1e-5f};

struct Own {
  using Positions = RoPE<Cpu>;
  static constexpr bool sums_bias = true;
#if !defined(OCTAVO_COMPILE_FAIL_NEITHER)
  CacheRows<Bf16, Cpu> cache_rows(const BatchView<Cpu>&, const Positions&,
                                  const KeyValueCache<Bf16, Cpu>&) const;
#endif
#if defined(OCTAVO_COMPILE_FAIL_BOTH)
  void append(TensorView<Bf16, 2, Cpu>, const BatchView<Cpu>&, const Positions&,
              const KeyValueCache<Bf16, Cpu>&, const Context<Cpu>&) const;
#endif
};

#if defined(OCTAVO_COMPILE_FAIL_DERIVED)
struct Derived : Rotation<shape, Bf16, Bf16, Cpu> {};
#endif

using Precision = Inference<Bf16>;
using Attention = GroupedQueryAttention<shape, Own, Bf16, Precision, Precision, Bf16, Cpu>;

void attend(Attention& attention, const Attention::Input& x, Attention::Result y,
            const BatchView<Cpu>& batch, const RoPE<Cpu>& positions, const Attention::Saved& saved,
            const Context<Cpu>& context) {
  attention.forward<Mode::generate>(x, {}, y, batch, positions, saved, context);
}

/// @file
/// MMAs by the tensor cores of Hopper, of which four warps start one together: wgmma. Source:
/// PTX ISA 9.0, section on wgmma.mma_async.
#pragma once

#include <octavo/kernels/cuda/tensor_core.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Prevents the compiler from moving uses of these registers across this point.
template <int columns>
__device__ void pin(Accumulator<columns>& sums) {
#pragma unroll
  for (int i = 0; i < columns / 2; ++i) asm volatile("" : "+f"(sums.values[i])::"memory");
}
__device__ inline void pin(Fragment& fragment) {
#pragma unroll
  for (std::uint32_t& word : fragment.words) asm volatile("" : "+r"(word)::"memory");
}
template <class Registers, int count>
__device__ void pin(Registers (&registers)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) pin(registers[i]);
}

/// Lets the compiler compute this value, which is not negative, before it waits for MMAs: it
/// would otherwise move the wait forward, but does not move it across branches.
__device__ inline void compute_before_wait(float value) {
  if (value < 0.0f) __nanosleep(0);
}

#define OCTAVO_ACCUMULATOR_TEXT                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define OCTAVO_ACCUMULATOR_OPERANDS(v)                                                            \
  "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3]), "+f"(v[4]), "+f"(v[5]), "+f"(v[6]), "+f"(v[7]), \
      "+f"(v[8]), "+f"(v[9]), "+f"(v[10]), "+f"(v[11]), "+f"(v[12]), "+f"(v[13]), "+f"(v[14]),    \
      "+f"(v[15]), "+f"(v[16]), "+f"(v[17]), "+f"(v[18]), "+f"(v[19]), "+f"(v[20]), "+f"(v[21]),  \
      "+f"(v[22]), "+f"(v[23]), "+f"(v[24]), "+f"(v[25]), "+f"(v[26]), "+f"(v[27]), "+f"(v[28]),  \
      "+f"(v[29]), "+f"(v[30]), "+f"(v[31])

/// MMAs that four warps, a warpgroup, start together and wait for. Both operands may be in
/// shared memory. `WarpCores` has the same members.
struct WarpgroupCores {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static constexpr bool exist = true;
#else
  static constexpr bool exist = false;
#endif
  static constexpr bool have_fp8 = exist;

  /// Waits until all of the block's copies, except each thread's last `pending` groups, are visible
  /// to the tensor cores.
  template <int pending>
  static __device__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
  }

  /// Must be called before MMAs that use registers written by other instructions.
  template <class... Registers>
  static __device__ void begin_mma(Registers&... registers) {
    (pin(registers), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  }

  /// Ends a group of MMAs.
  static __device__ void commit_mma() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  }

  /// Waits for all groups of MMAs except the last `pending`; their registers may then be used.
  template <int pending, class... Registers>
  static __device__ void wait_for_mma(Registers&... registers) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
    (pin(registers), ...);
  }

  /// Starts sums (+)= a · bᵀ over 16 columns of both tiles, of 64 rows each.
  /// @param a_row  the warpgroup's first row in `a`
  template <int a_rows, int a_columns, int rows, int columns>
  static __device__ void multiply(Accumulator<>& sums, SharedTile<a_rows, a_columns> a, int a_row,
                                  SharedTile<rows, columns> b, int b_row, int column, bool add) {
    float(&v)[32] = sums.values;
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " OCTAVO_ACCUMULATOR_TEXT
        "%32, %33, p, 1, 1, 0, 0;\n}\n"
        : OCTAVO_ACCUMULATOR_OPERANDS(v)
        : "l"(a.descriptor(a_row, column)), "l"(b.descriptor(b_row, column)),
          "r"(static_cast<int>(add)));
  }
  /// Starts sums (+)= a · bᵀ over 16 columns of 64 rows of b.
  template <int rows, int columns>
  static __device__ void multiply(Accumulator<>& sums, const Fragment& a,
                                  SharedTile<rows, columns> b, int row, int column, bool add) {
    multiply<false>(sums, a, b.descriptor(row, column), add);
  }
  /// Starts sums += a · b over 16 rows of 64 columns of b.
  template <int rows, int columns>
  static __device__ void multiply_rows(Accumulator<>& sums, const Fragment& a,
                                       SharedTile<rows, columns> b, int row, int column) {
    multiply<true>(sums, a, b.descriptor(row, column), true);
  }

 private:
  /// Starts sums (+)= a · bᵀ, or a · b if the rows of b's tile are the reduced dimension.
  template <bool reduces_rows>
  static __device__ void multiply(Accumulator<>& sums, const Fragment& a, std::uint64_t b,
                                  bool add) {
    float(&v)[32] = sums.values;
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " OCTAVO_ACCUMULATOR_TEXT
        "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
        : OCTAVO_ACCUMULATOR_OPERANDS(v)
        : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "l"(b),
          "r"(static_cast<int>(add)), "n"(reduces_rows ? 1 : 0));
  }
};

#undef OCTAVO_ACCUMULATOR_TEXT
#undef OCTAVO_ACCUMULATOR_OPERANDS

}  // namespace octavo::detail

/// @file
/// GEMMs of matrices with their own transposes.
#pragma once

#include <octavo/gemm/matmul.hpp>

#include <span>

namespace octavo OCTAVO_ABI {

/// result = product · X · Xᵀ + addend · C, or with Xᵀ · X.
/// @tparam T  `Bf16Element<D>`
template <class T, Device D>
struct SymmetricGemm {
  TensorView<const T, 2, D> x;
  bool of_columns = false;  ///< whether it is Xᵀ · X
  GemmFactors factors{};
  GemmOutput<T, D> y;  ///< the result and C, which is symmetric or empty
};

/// Computes GEMMs that are independent of each other, as matmul_bf16 does. Adjacent GEMMs of
/// different sizes may run at the same time. `Cuda` computes the elements on and below the diagonal
/// if the GPU has the instructions, and copies the others.
/// @note enqueues; does not synchronise; uses `matmul_workspace` bytes of the context's workspace
template <class T, Device D>
void matmul_symmetric(std::span<const SymmetricGemm<T, D>> gemms, const Context<D>& context) {
  for (const SymmetricGemm<T, D>& gemm : gemms) {
    const Index side = gemm.x.extent(gemm.of_columns ? 1 : 0);
    const Index depth = gemm.x.extent(gemm.of_columns ? 0 : 1);
    detail::check_gemm("matmul_symmetric", side, side, depth, depth, gemm.y);
  }
  matmul_symmetric_body(gemms, context);
}

namespace detail {

/// Computes a symmetric GEMM as any other.
template <class T, Device D>
void multiply_all(const SymmetricGemm<T, D>& gemm, const Context<D>& context) {
  matmul_bf16<T, D>(gemm.x, gemm.of_columns, gemm.x, !gemm.of_columns, gemm.factors, gemm.y,
                    context);
}

}  // namespace detail

}  // namespace octavo

#include <octavo/gemm/cpu/symmetric_gemms.hpp>

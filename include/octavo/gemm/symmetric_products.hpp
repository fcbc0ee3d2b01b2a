/// @file
/// Products of matrices with their own transposes.
#pragma once

#include <octavo/gemm/matmul.hpp>

#include <span>

namespace octavo OCTAVO_ABI {

/// result = product · X · Xᵀ + addend · C, or with Xᵀ · X.
/// @tparam T  `ProductValue<D>`
template <class T, Device D>
struct SymmetricProduct {
  TensorView<const T, 2, D> x;
  bool of_columns = false;  ///< whether it is Xᵀ · X
  GemmFactors factors{};
  GemmOutput<T, D> y;  ///< the result and C, which is symmetric or empty
};

/// Computes products that are independent of each other, as matmul_bf16 does. Adjacent products of
/// different sizes may run at the same time. `Cuda` computes the elements on and below the diagonal
/// if the GPU has the instructions, and copies the others.
/// @note enqueues; does not synchronise; uses `matmul_workspace` bytes of the context's workspace
template <class T, Device D>
void symmetric_products(std::span<const SymmetricProduct<T, D>> products,
                        const Context<D>& context) {
  for (const SymmetricProduct<T, D>& product : products) {
    const Index side = product.x.extent(product.of_columns ? 1 : 0);
    const Index depth = product.x.extent(product.of_columns ? 0 : 1);
    detail::check_gemm("symmetric_products", side, side, depth, depth, product.y);
  }
  symmetric_products_body(products, context);
}

namespace detail {

/// Computes a symmetric product as any other.
template <class T, Device D>
void multiply_all(const SymmetricProduct<T, D>& product, const Context<D>& context) {
  matmul_bf16<T, D>(product.x, product.of_columns, product.x, !product.of_columns, product.factors,
                    product.y, context);
}

}  // namespace detail

}  // namespace octavo

#include <octavo/gemm/cpu/symmetric_products.hpp>

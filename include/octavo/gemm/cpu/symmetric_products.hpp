/// @file
/// Products of matrices with their own transposes on the `Cpu` device.
#pragma once

#include <octavo/gemm/symmetric_products.hpp>

namespace octavo OCTAVO_ABI::detail {

/// See symmetric_products.
template <class T>
void symmetric_products_body(std::span<const SymmetricProduct<T, Cpu>> products,
                             const Context<Cpu>& context) {
  for (const SymmetricProduct<T, Cpu>& product : products) multiply_all(product, context);
}

}  // namespace octavo::detail

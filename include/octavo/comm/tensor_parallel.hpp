/// @file
/// The degree of tensor parallelism, as a type.
#pragma once

#include <octavo/core/version.hpp>

#include <type_traits>

namespace octavo OCTAVO_ABI {

/// Groups of `Degree` ranks share each layer of a model: heads, features of the MLP and the
/// vocabulary are divided among them, and between layers each has a shard of the batch's rows
/// (sequence parallelism). It is part of a model's type, because shapes depend on it. The ranks of
/// a group are adjacent: 0 and 1, 2 and 3, …. Source: Shoeybi et al. 2019, arXiv 1909.08053;
/// Korthikanti et al. 2022, arXiv 2205.05198.
template <int Degree>
struct TensorParallel {
  static_assert(Degree > 0,
                "TensorParallel: the number of ranks that share each layer must be at least 1");
  static constexpr int degree = Degree;
};

namespace detail {

template <class Of>
inline constexpr int tensor_degree_of = 1;
template <class Of>
  requires requires { Of::tensor_parallel; }
inline constexpr int tensor_degree_of<Of> = Of::tensor_parallel;

}  // namespace detail

/// The number of ranks that share the layers of a model or of a sublayer.
/// @tparam Of  a model, a family or a layer; 1 if it has no `tensor_parallel`
template <class Of>
inline constexpr int tensor_degree = detail::tensor_degree_of<Of>;

}  // namespace octavo

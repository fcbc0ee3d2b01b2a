// The named precisions in which a model of a shape compiles.
#pragma once

#include <common/nearest.hpp>
#include <octavo/models/model_description.hpp>
#include <octavo/octavo.hpp>
#include <octavo/precision/named_precisions.hpp>

#include <numeric>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace trainer {

/// The properties of a shape by which precisions are refused.
struct PrecisionLimits {
  octavo::Index divisor = 0;    ///< of the features of all linear layers
  bool may_read_narrow = true;  ///< the activation of an MLP may read E4M3: see ForActivation
};

/// Returns the limits of a preset in a program that trains it.
template <class Config>
constexpr PrecisionLimits limits_of(const Config& config) {
  bool has_experts = false;
  if constexpr (requires { config.experts; }) has_experts = config.experts.experts != 0;
  return {config.feature_divisor(), !has_experts && !std::is_same_v<Config, octavo::Gpt2Config>};
}

/// Returns the limits of any shape.
/// @param degree  ranks that share each layer
inline PrecisionLimits limits_of(const octavo::ModelDescription& shape, octavo::Index degree,
                                 bool has_adapters) {
  const octavo::Index queries = shape.heads * shape.head_dim / degree;
  const octavo::Index keys = shape.kv_heads * shape.head_dim / degree;
  return {
      std::gcd(std::gcd(shape.hidden, shape.ffn / degree), std::gcd(queries, queries + 2 * keys)),
      shape.experts == 0 && !shape.linear_bias && !has_adapters};
}

/// Number of which the features of linear layers must be multiples in precision `P`, in blocks that
/// First and Last do not select.
template <class P>
constexpr octavo::Index multiple_of_features() {
  const auto of_roles = []<octavo::LinearRole... Roles>(octavo::LinearRoles<Roles...>) {
    constexpr int layers = 1024;
    octavo::Index multiple = 1;
    ((multiple = std::lcm(
          multiple, octavo::feature_multiple<octavo::PrecisionOf<P, layers / 2, layers, Roles>>())),
     ...);
    return multiple;
  };
  return of_roles(octavo::DefaultRoles{});
}

/// Whether a model with these limits compiles in precision `P`.
template <class P>
constexpr bool compiles_in(const PrecisionLimits& limits) {
  return limits.divisor % multiple_of_features<P>() == 0 &&
         (limits.may_read_narrow ||
          octavo::activation_input_of<P> == octavo::ActivationInput::storage);
}

/// Whether a build contains a model in a precision of its list. It omits those that do not compile,
/// because a list is for all presets, except if the list contains the precision as a C++ type.
template <class P>
constexpr bool is_built(std::string_view precision, const PrecisionLimits& limits) {
  const auto& all = octavo::named_precisions;
  return all.index_of(precision) == all.size || compiles_in<P>(limits);
}

/// @throws ConfigError  for a named precision in which no model with these limits compiles
inline void require_precision(const std::string& model, const std::string& precision,
                              const PrecisionLimits& limits) {
  std::vector<std::string> others;
  std::string reason;
  octavo::named_precisions.for_each([&]<class P>(const octavo::NamedPrecision<P>& named) {
    if (compiles_in<P>(limits)) {
      others.emplace_back(named.name);
    } else if (named.name == precision) {
      constexpr octavo::Index multiple = multiple_of_features<P>();
      reason = limits.divisor % multiple == 0
                   ? "its MLPs have biases, experts or adapters, with which activations cannot "
                     "read E4M3"
                   : octavo::message("the features of its linear layers are not multiples of ",
                                     multiple, ": their common divisor is ", limits.divisor);
    }
  });
  octavo::require<octavo::ConfigError>(reason.empty(), "--precision ", precision, ": ", model,
                                       " does not support it, because ", reason, "; choose ",
                                       programs::joined(others));
}

}  // namespace trainer

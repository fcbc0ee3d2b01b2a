/// @file
/// How a model uses a linear layer, and the manifest's entries of its GEMMs.
#pragma once

#include <octavo/gemm/manifest.hpp>
#include <octavo/layers/lora_options.hpp>
#include <octavo/layers/parameter.hpp>
#include <octavo/tensor/expert_rows.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <utility>

namespace octavo OCTAVO_ABI {

/// Rows of a linear layer's weight that may have a separate adapter.
struct LinearPart {
  LoraTarget target{};
  Index rows = 0;  ///< 0: unused
};

/// How a model uses a linear layer.
struct LinearUse {
  bool recomputed = false;   ///< the backward runs the forward GEMM again
  bool is_head = false;      ///< processes the tokens in chunks
  bool adds = false;         ///< the forward adds to its result, such as to the residual stream
  bool bias = false;         ///< the forward adds a bias
  bool writes_e4m3 = false;  ///< the forward writes E4M3: see `ActivationInput`
  Index tokens = 0;          ///< tokens per call; 0: those of a micro-batch
  int experts = 0;           ///< number of experts whose weights are stacked; 0: an ordinary layer
  int choices = 0;           ///< number of experts that process each token
  std::array<LinearPart, 3> parts{};  ///< parts of its rows, in order

  /// Returns the number of rows of the layer's operands.
  /// @param of_batch  tokens of a micro-batch
  [[nodiscard]] Index rows(Index of_batch) const {
    const Index count = tokens == 0 ? of_batch : tokens;
    return experts == 0 ? count : expert_row_count(count * choices, experts);
  }
  /// Returns the matrices that the weight stacks.
  /// @param out  output features of the layer, or of one expert
  [[nodiscard]] StackedMatrices matrices(Index out) const {
    StackedMatrices result;
    for (std::size_t i = 0; i < parts.size(); ++i) result.rows[i] = parts[i].rows;
    if (result.empty()) result.rows[0] = out;
    if (experts != 0) {
      result.repeats = experts;
      result.choices = choices;
    }
    return result;
  }
};

namespace detail {

/// The facts about a linear layer that are registered in the manifest.
struct LinearGemms {
  int out, in;
  const char* forward_format;          ///< of inputs and weights
  const char* backward_format;         ///< of output gradients
  const char* result_format;           ///< of outputs and input gradients
  const char* weight_gradient_format;  ///< null: the weight is not trained
  const char* implementation;          ///< library or kernel that runs them
  std::string precision;
  std::array<GemmScales, 3> scales;  ///< of input, weight and output gradient
  GemmAccumulation input_gradient = GemmAccumulation::full;
  GemmAccumulation weight_gradient = GemmAccumulation::full;
  bool emulated = false;  ///< see `GemmEntry`
};

/// Registers the layer's GEMMs; returns their entry numbers by `GemmPass`.
inline std::array<std::size_t, 3> add_gemms(Manifest& manifest, const std::string& name,
                                            const LinearGemms& gemms, const LinearUse& use) {
  const auto add = [&](GemmPass pass, const char* a, const char* result, GemmScales scales_a,
                       GemmScales scales_b) {
    const bool is_forward = pass == GemmPass::forward;
    GemmEntry entry{name,
                    pass,
                    gemms.out,
                    gemms.in,
                    {a, gemms.forward_format, gemms.implementation},
                    gemms.precision,
                    result,
                    use.recomputed && is_forward,
                    use.is_head,
                    0};
    entry.adds = use.adds && is_forward;
    entry.bias = use.bias && is_forward;
    entry.scales_a = scales_a;
    entry.scales_b = scales_b;
    entry.emulated = gemms.emulated;
    if (is_forward) entry.accumulation = GemmAccumulation::fast;
    if (use.experts == 0 && pass == GemmPass::input_gradient) {
      entry.accumulation = gemms.input_gradient;
    }
    if (use.experts == 0 && pass == GemmPass::weight_gradient) {
      entry.accumulation = gemms.weight_gradient;
    }
    entry.experts = use.experts;
    entry.choices = use.choices;
    if (use.experts != 0) entry.out /= use.experts;
    return manifest.add(std::move(entry));
  };
  std::array<std::size_t, 3> entries{};
  const auto& [x, w, dy] = gemms.scales;
  const char* result = use.writes_e4m3 ? FormatTraits<E4M3>::name : gemms.result_format;
  entries[0] = add(GemmPass::forward, gemms.forward_format, result, x, w);
  entries[1] = add(GemmPass::input_gradient, gemms.backward_format, gemms.result_format, dy, w);
  if (gemms.weight_gradient_format != nullptr) {
    entries[2] =
        add(GemmPass::weight_gradient, gemms.backward_format, gemms.weight_gradient_format, dy, x);
  }
  return entries;
}

}  // namespace detail

}  // namespace octavo

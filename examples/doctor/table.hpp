// The recipes and kernels of a GPU, which need no GPU to be listed.
#pragma once

#include <common/gpu_cards.hpp>
#include <doctor/table_card.hpp>
#include <octavo/gemm/manifest.hpp>
#include <octavo/precision/gpu_precisions.hpp>

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace doctor {

using octavo::Index;

/// Returns the GPU of a name such as "RTX 4090", or of a compute capability such as "8.9".
/// @throws ConfigError  if there is none, or Octavo does not support it
inline TableCard table_card(const std::string& name) {
  const auto given = programs::capability_given(name);
  if (!given) {
    const std::vector<programs::GpuCard> cards =
        programs::cards_named(name, "pass its compute capability, such as 8.6");
    for (const programs::GpuCard& card : cards) {
      octavo::require<octavo::ConfigError>(card.capability == cards.front().capability, "'", name,
                                           "' names several cards, such as ", cards.front().name,
                                           " and ", card.name, "; pass the name of one");
    }
    return {cards.size() == 1 ? cards.front().name : name,
            octavo::features_of(cards.front().capability)};
  }
  return {"a GPU", octavo::features_of(given->capability)};
}

/// Prints a line for each recipe: its formats, what one scale covers, and whether the GPU runs it.
inline void print_recipes(const octavo::GpuFeatures& gpu) {
  const auto line = [](std::string_view recipe, std::string_view forward, std::string_view backward,
                       std::string_view scale, std::string_view runs) {
    fmt::print("{:<26} | {:<7} | {:<8} | {:<8} | {}\n", recipe, forward, backward, scale, runs);
  };
  line("recipe", "forward", "backward", "scale of", "trains");
  octavo::named_precisions.for_each([&]<class P>(octavo::NamedPrecision<P> named) {
    if constexpr (octavo::QuantizedPrecision<P>) {
      using Traits = octavo::PrecisionTraits<P>;
      using Granularity = typename Traits::ScalingType::InputGranularity;
      line(named.name, octavo::FormatTraits<typename Traits::ForwardFormat>::name,
           octavo::FormatTraits<typename Traits::BackwardFormat>::name,
           octavo::name_of(octavo::gemm_scales<Granularity>),
           octavo::gpu_runs<P>(gpu) ? "yes" : "no: this GPU does not support such GEMMs");
    } else if constexpr (octavo::LinearPrecision<P>) {
      const char* format = octavo::FormatTraits<typename octavo::PrecisionTraits<P>::Storage>::name;
      line(named.name, format, format, "none", "yes");
    }
  });
}

/// Prints the recipes and kernels of a GPU.
inline void print_table(const TableCard& card) {
  const octavo::GpuFeatures& gpu = card.gpu;
  fmt::print("{}, compute capability {}.{}, CMAKE_CUDA_ARCHITECTURES={}: {}\n\n", card.name,
             gpu.capability / 10, gpu.capability % 10, octavo::architecture_for(gpu.capability),
             programs::tested_on(gpu.capability));
  print_recipes(gpu);
  fmt::print(
      "\nFP8 weights in generation: yes\nattention: {}\ncross-entropy: {}\nlaunches: {}\nshared "
      "memory of a block: {} KiB\n",
      gpu.warpgroup_mma ? "wgmma" : "mma.sync", gpu.clusters ? "clusters" : "single blocks",
      gpu.programmatic_launch ? "overlap" : "one after another", gpu.shared_bytes >> 10);
}

}  // namespace doctor

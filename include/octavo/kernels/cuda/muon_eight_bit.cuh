/// @file
/// Muon's update of 8-bit momentum on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/adamw_eight_bit.cuh>
#include <octavo/kernels/cuda/muon.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Updates a thread's runs of the momentum of a group, and computes their directions.
/// @tparam Whole  all elements of the warp's groups exist, and arrays are aligned
template <bool Vectors, bool Whole, class W, class G>
__device__ void muon_momentum_runs(const MuonElements<W, G, EightBit, Cuda>& elements,
                                   const MuonMomentum& settings, const AdamWStep& step, float clip,
                                   Index group) {
  const int lane = static_cast<int>(threadIdx.x) % group_threads;
  const auto begin_of = [&](int r) {
    return group * moment_group + (lane + r * group_threads) * run_size;
  };
  const auto count_from = [&](Index begin) {
    return Whole ? Index{run_size} : elements.weight.extent(0) - begin;
  };
  // Threads past the last element process zeros, because other threads of their warp wait for them.
  const bool is_live = Whole || count_from(group * moment_group) > 0;
  E8M0 scale;
  if (is_live) scale = elements.momentum_scale.data()[group];
  Floats moments[runs_per_thread];
#pragma unroll
  for (int r = 0; r < runs_per_thread; ++r) {
    const Index begin = begin_of(r);
    const Index count = count_from(begin);
    const Floats gradient = load_floats<Vectors>(elements.gradient.data() + begin, count);
    const auto codes = load_run<Vectors>(elements.momentum.data() + begin, count);
    Floats direction;
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      moments[r].values[i] = FirstMomentCode::decode(codes.words[i / 4], i % 4, scale);
      direction.values[i] =
          muon_direction(gradient.values[i] * clip, moments[r].values[i], settings, 0);
    }
    store_floats<Vectors>(elements.direction.data() + begin, count, direction);
  }
  static_assert(group_threads == SharedRoundingBits::calls_per_group && runs_per_thread == 2);
  const auto bits =
      shared_rounding_bits(elements, step, group * SharedRoundingBits::calls_per_group + lane);
  scale = group_scale<FirstMomentCode>(moments);
#pragma unroll
  for (int r = 0; r < runs_per_thread; ++r) {
    const Index begin = begin_of(r);
    std::uint32_t codes[run_size];
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      codes[i] = FirstMomentCode::encode(moments[r].values[i], scale,
                                         bits.of(Rounding::first_moment, r, i));
    }
    store_run<Vectors>(elements.momentum.data() + begin, count_from(begin), upper_bytes(codes));
  }
  if (is_live && lane == 0) elements.momentum_scale.data()[group] = scale;
}

/// Updates a group with several threads, as adamw_eight_bit_kernel does.
template <bool Vectors, class W, class G>
OCTAVO_KERNEL void __launch_bounds__(eight_bit_threads)
    muon_eight_bit_kernel(const MuonElements<W, G, EightBit, Cuda> elements,
                          const MuonMomentum settings, const AdamWStep* step,
                          const StepStatus* status) {
  if (status->skip != 0) return;
  const Index group = global_thread() / group_threads;
  const bool is_whole = (group + 1) * moment_group <= elements.weight.extent(0);
  const float clip = status->clip_coefficient;
  if (Vectors && __all_sync(all_lanes, is_whole)) {
    muon_momentum_runs<Vectors, true>(elements, settings, *step, clip, group);
  } else {
    muon_momentum_runs<false, false>(elements, settings, *step, clip, group);
  }
}

/// See muon_momentum.
template <class W, class G>
void muon_momentum_body(const MuonElements<W, G, EightBit, Cuda>& elements,
                        const MuonMomentum& settings, TensorView<const AdamWStep, 1, Cuda> step,
                        TensorView<const StepStatus, 1, Cuda> status,
                        const Context<Cuda>& context) {
  const Index size = elements.weight.extent(0);
  const bool vectors = rows_are_vectors(0, elements.gradient.data(), elements.momentum.data(),
                                        elements.direction.data());
  const Index threads = ceil_divide(size, moment_group) * group_threads;
  launch("muon_momentum",
         vectors ? muon_eight_bit_kernel<true, W, G> : muon_eight_bit_kernel<false, W, G>,
         ceil_divide(threads, eight_bit_threads), eight_bit_threads, 0, context, elements, settings,
         step.data(), status.data());
}

}  // namespace octavo::detail

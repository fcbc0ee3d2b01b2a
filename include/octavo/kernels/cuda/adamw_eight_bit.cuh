/// @file
/// The AdamW update with moments in 8 bits on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/adamw.cuh>

namespace octavo::inline OCTAVO_ABI::detail {

/// Runs of a group that one thread updates.
inline constexpr int runs_a_thread = 2;
/// Threads that update a group together: neighbours of a warp.
inline constexpr int group_threads = moment_group / run_size / runs_a_thread;

/// The largest magnitude that the threads of a group hold, but for NaN.
__device__ inline float group_amax(const Floats (&values)[runs_a_thread]) {
  float largest = 0;
#pragma unroll
  for (int r = 0; r < runs_a_thread; ++r) {
#pragma unroll
    for (int i = 0; i < run_size; ++i) largest = fmaxf(largest, fabsf(values[r].values[i]));
  }
#pragma unroll
  for (int distance = group_threads / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  return largest;
}

/// The upper bytes of a run's words.
__device__ inline Run<EightBit> upper_bytes(const std::uint32_t (&words)[run_size]) {
  Run<EightBit> run;
#pragma unroll
  for (int i = 0; i < run_size; i += 4) {
    const std::uint32_t lower = __byte_perm(words[i], words[i + 1], 0x0073);
    const std::uint32_t upper = __byte_perm(words[i + 2], words[i + 3], 0x0073);
    run.words[i / 4] = __byte_perm(lower, upper, 0x5410);
  }
  return run;
}

/// Some threads a group, which load its elements once: they hold its new moments until they know
/// the largest of them.
/// @tparam Vectors    arrays are aligned, and their elements are in whole runs
/// @tparam HasMaster  there are master weights
template <bool Vectors, bool HasMaster, class W, class G>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads, 3)
    adamw_eight_bit_kernel(const AdamWParameter<W, G, EightBit, Cuda> parameter,
                           const AdamWSettings settings, const AdamWStep* step,
                           const StepStatus* status) {
  if (status->skip != 0) return;
  const Index group = global_thread() / group_threads;
  const int lane = static_cast<int>(threadIdx.x) % group_threads;
  const auto begin_of = [&](int r) {
    return group * moment_group + (r * group_threads + lane) * run_size;
  };
  const auto count_from = [&](Index begin) { return parameter.weight.extent(0) - begin; };
  const float clip = status->clip_coefficient;
  // Threads behind the last element work on zeros: others of their warp wait for them.
  const bool is_live = count_from(group * moment_group) > 0;
  E8M0 first_scale;
  E8M0 second_scale;
  if (is_live) {
    first_scale = parameter.first_scale.data()[group];
    second_scale = parameter.second_scale.data()[group];
  }
  Floats old[runs_a_thread];
  Floats gradient[runs_a_thread];
  Floats m[runs_a_thread];
  Floats v[runs_a_thread];
#pragma unroll
  for (int r = 0; r < runs_a_thread; ++r) {
    const Index begin = begin_of(r);
    const Index count = count_from(begin);
    if constexpr (HasMaster) {
      old[r] = load_floats<Vectors>(parameter.master.data() + begin, count);
    } else {
      old[r] = load_floats<Vectors>(parameter.weight.data() + begin, count);
    }
    gradient[r] = load_floats<Vectors>(parameter.gradient.data() + begin, count);
    const auto first = load_run<Vectors>(parameter.first_moment.data() + begin, count);
    const auto second = load_run<Vectors>(parameter.second_moment.data() + begin, count);
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      m[r].values[i] = FirstMomentCode::decode(first.words[i / 4], i % 4, first_scale);
      v[r].values[i] = SecondMomentCode::decode(second.words[i / 4], i % 4, second_scale);
    }
  }
  static_assert(group_threads == SharedRoundingBits::calls_a_group && runs_a_thread == 2);
  const auto bits =
      shared_rounding_bits(parameter, *step, group * SharedRoundingBits::calls_a_group + lane);
  const AdamWFactors factors = adamw_factors(settings, *step, parameter.weight_decay);
#pragma unroll
  for (int r = 0; r < runs_a_thread; ++r) {
    const Index begin = begin_of(r);
    const Index count = count_from(begin);
    Floats updated;
    Elements<W> rounded;
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      updated.values[i] = adamw_element(old[r].values[i], gradient[r].values[i] * clip,
                                        m[r].values[i], v[r].values[i], factors, 0, 0);
      rounded.values[i] =
          HasMaster ? W(updated.values[i])
                    : round_stochastic<W>(updated.values[i], bits.of(Rounding::weight, r, i) >> 16);
    }
    if constexpr (HasMaster) store_floats<Vectors>(parameter.master.data() + begin, count, updated);
    store_run<Vectors>(parameter.weight.data() + begin, count, to_run(rounded));
  }
  first_scale = FirstMomentCode::Levels::scale(group_amax(m));
  second_scale = SecondMomentCode::Levels::scale(group_amax(v));
#pragma unroll
  for (int r = 0; r < runs_a_thread; ++r) {
    const Index begin = begin_of(r);
    const Index count = count_from(begin);
    std::uint32_t first[run_size];
    std::uint32_t second[run_size];
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      first[i] = FirstMomentCode::encode(m[r].values[i], first_scale,
                                         bits.of(Rounding::first_moment, r, i) >> 8);
      second[i] = SecondMomentCode::encode(v[r].values[i], second_scale,
                                           bits.of(Rounding::second_moment, r, i) >> 8);
    }
    store_run<Vectors>(parameter.first_moment.data() + begin, count, upper_bytes(first));
    store_run<Vectors>(parameter.second_moment.data() + begin, count, upper_bytes(second));
  }
  if (is_live && lane == 0) {
    parameter.first_scale.data()[group] = first_scale;
    parameter.second_scale.data()[group] = second_scale;
  }
}

/// See adamw_update.
template <class W, class G>
void adamw_update_body(const AdamWParameter<W, G, EightBit, Cuda>& parameter,
                       const AdamWSettings& settings, TensorView<const AdamWStep, 1, Cuda> step,
                       TensorView<const StepStatus, 1, Cuda> status, const Context<Cuda>& context) {
  const Index size = parameter.weight.extent(0);
  const bool vectors = rows_are_vectors(size, parameter.weight.data(), parameter.gradient.data(),
                                        parameter.master.data(), parameter.first_moment.data(),
                                        parameter.second_moment.data());
  const Index threads = ceil_divide(size, moment_group) * group_threads;
  const auto start = [&](auto kernel) {
    launch("adamw_update", kernel, ceil_divide(threads, elementwise_threads), elementwise_threads,
           0, context, parameter, settings, step.data(), status.data());
  };
  if (parameter.master.empty()) {
    start(vectors ? adamw_eight_bit_kernel<true, false, W, G>
                  : adamw_eight_bit_kernel<false, false, W, G>);
  } else {
    start(vectors ? adamw_eight_bit_kernel<true, true, W, G>
                  : adamw_eight_bit_kernel<false, true, W, G>);
  }
}

}  // namespace octavo::detail

/// @file
/// The AdamW update with 8-bit moments on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/adamw.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Runs of a group that one thread updates.
inline constexpr int runs_per_thread = 2;
/// Threads that update a group together: adjacent threads of a warp.
inline constexpr int group_threads = moment_group / run_size / runs_per_thread;
inline constexpr unsigned all_lanes = 0xffffffffu;
/// Threads per block. Blocks twice as large give a multiprocessor the same number of warps, but
/// delay the loads of the next block.
inline constexpr int eight_bit_threads = 128;

/// Returns the larger magnitude, with either sign; NaN if one of them is NaN.
__device__ inline float larger_magnitude(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860
  float result;
  asm("max.NaN.xorsign.abs.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  // Without a sign, magnitudes compare as integers, and NaN is above all others.
  return __uint_as_float(max(__float_as_uint(fabsf(a)), __float_as_uint(fabsf(b))));
#endif
}

/// Returns the largest magnitude over the threads of a group; NaN if there is one.
__device__ inline float group_amax(const Floats (&values)[runs_per_thread]) {
  float largest = 0;
#pragma unroll
  for (int r = 0; r < runs_per_thread; ++r) {
#pragma unroll
    for (int i = 0; i < run_size; ++i) largest = larger_magnitude(largest, values[r].values[i]);
  }
#pragma unroll
  for (int distance = group_threads / 2; distance > 0; distance /= 2) {
    largest = larger_magnitude(largest, __shfl_xor_sync(all_lanes, largest, distance));
  }
  return fabsf(largest);
}

/// Returns the scale of a group's moments. Moments that no code represents are clamped to the
/// largest code, and NaN is ignored: both are rare, so a warp without them does no extra work.
template <class Code>
__device__ E8M0 group_scale(Floats (&moments)[runs_per_thread]) {
  float amax = group_amax(moments);
  const auto each = [&](auto change) {
#pragma unroll
    for (int r = 0; r < runs_per_thread; ++r) {
#pragma unroll
      for (int i = 0; i < run_size; ++i) change(moments[r].values[i]);
    }
  };
  if (__any_sync(all_lanes, !(amax <= Code::Levels::largest_magnitude))) {
    Floats numbers[runs_per_thread] = {moments[0], moments[1]};
    for (Floats& run : numbers) {
      for (float& value : run.values) value = isnan(value) ? 0.0f : value;
    }
    const E8M0 scale = Code::Levels::scale(group_amax(numbers));
    each([&](float& value) { value = Code::saturated(value, scale); });
    return scale;
  }
  return Code::Levels::scale(amax);
}

/// Returns the upper bytes of a run's words.
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

/// Rounds a run of weights like `round_stochastic`. Almost all are below the largest BF16 number,
/// which is checked once per run.
/// @param bits  (i): a word of random bits, of which the upper 16 are used
template <class W>
__device__ Run<W> round_run(const Floats& values, auto&& bits) {
  if constexpr (std::is_same_v<W, Bf16>) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < run_size; ++i) sum += fabsf(values.values[i]);
    if (sum < FormatTraits<Bf16>::max) {
      Run<W> run;
#pragma unroll
      for (int i = 0; i < run_size; i += 2) {
        const std::uint32_t lower = float_bits(values.values[i]) + (bits(i) >> 16);
        const std::uint32_t upper = float_bits(values.values[i + 1]) + (bits(i + 1) >> 16);
        run.words[i / 2] = __byte_perm(lower, upper, 0x7632);
      }
      return run;
    }
  }
  Elements<W> rounded;
#pragma unroll
  for (int i = 0; i < run_size; ++i) {
    rounded.values[i] = round_stochastic<W>(values.values[i], bits(i) >> 16);
  }
  return to_run(rounded);
}

/// Updates a thread's runs of the group.
/// @tparam Whole  all elements of the warp's groups exist, and arrays are aligned
template <bool Vectors, bool Whole, bool HasMaster, class W, class G>
__device__ void update_runs(const AdamWParameter<W, G, EightBit, Cuda>& parameter,
                            const AdamWFactors& factors, const AdamWStep& step, Index group) {
  const int lane = static_cast<int>(threadIdx.x) % group_threads;
  const Index first_run = group * moment_group + lane * run_size;
  const auto begin_of = [&](int r) { return first_run + r * group_threads * run_size; };
  const auto count_from = [&](Index begin) {
    return Whole ? Index{run_size} : parameter.weight.extent(0) - begin;
  };
  // Threads past the last element process zeros, because other threads of their warp wait for them.
  const bool is_live = Whole || count_from(group * moment_group) > 0;
  E8M0 first_scale;
  E8M0 second_scale;
  if (is_live) {
    first_scale = parameter.first_scale.data()[group];
    second_scale = parameter.second_scale.data()[group];
  }
  Floats old[runs_per_thread];
  Floats gradient[runs_per_thread];
  Floats m[runs_per_thread];
  Floats v[runs_per_thread];
#pragma unroll
  for (int r = 0; r < runs_per_thread; ++r) {
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
  static_assert(group_threads == SharedRoundingBits::calls_per_group && runs_per_thread == 2);
  const auto bits =
      shared_rounding_bits(parameter, step, group * SharedRoundingBits::calls_per_group + lane);
#pragma unroll
  for (int r = 0; r < runs_per_thread; ++r) {
    const Index begin = begin_of(r);
    const Index count = count_from(begin);
    Floats updated;
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      updated.values[i] = adamw_element(old[r].values[i], gradient[r].values[i], m[r].values[i],
                                        v[r].values[i], factors, 0, 0);
    }
    if constexpr (HasMaster) {
      store_floats<Vectors>(parameter.master.data() + begin, count, updated);
      store_floats<Vectors>(parameter.weight.data() + begin, count, updated);
    } else {
      store_run<Vectors>(parameter.weight.data() + begin, count, round_run<W>(updated, [&](int i) {
                           return bits.of(Rounding::weight, r, i);
                         }));
    }
  }
  first_scale = group_scale<FirstMomentCode>(m);
  second_scale = group_scale<SecondMomentCode>(v);
#pragma unroll
  for (int r = 0; r < runs_per_thread; ++r) {
    const Index begin = begin_of(r);
    const Index count = count_from(begin);
    std::uint32_t first[run_size];
    std::uint32_t second[run_size];
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      first[i] = FirstMomentCode::encode(m[r].values[i], first_scale,
                                         bits.of(Rounding::first_moment, r, i));
      second[i] = SecondMomentCode::encode(v[r].values[i], second_scale,
                                           bits.of(Rounding::second_moment, r, i));
    }
    store_run<Vectors>(parameter.first_moment.data() + begin, count, upper_bytes(first));
    store_run<Vectors>(parameter.second_moment.data() + begin, count, upper_bytes(second));
  }
  if (is_live && lane == 0) {
    parameter.first_scale.data()[group] = first_scale;
    parameter.second_scale.data()[group] = second_scale;
  }
}

/// Updates a group with several threads, which load its elements once: they keep the new moments in
/// registers until the maximum is known.
/// @tparam Vectors    arrays are aligned, and their elements form whole runs
/// @tparam HasMaster  there are master weights
template <bool Vectors, bool HasMaster, class W, class G>
OCTAVO_KERNEL void __launch_bounds__(eight_bit_threads, 6)
    adamw_eight_bit_kernel(const AdamWParameter<W, G, EightBit, Cuda> parameter,
                           const AdamWSettings settings, const AdamWStep* step,
                           const StepStatus* status) {
  if (status->skip != 0) return;
  const AdamWFactors factors =
      adamw_factors(settings, *step, parameter.weight_decay, status->clip_coefficient);
  const Index group = global_thread() / group_threads;
  const bool is_whole = (group + 1) * moment_group <= parameter.weight.extent(0);
  if (Vectors && __all_sync(all_lanes, is_whole)) {
    update_runs<Vectors, true, HasMaster>(parameter, factors, *step, group);
  } else {
    update_runs<Vectors, false, HasMaster>(parameter, factors, *step, group);
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
    launch("adamw_update", kernel, ceil_divide(threads, eight_bit_threads), eight_bit_threads, 0,
           context, parameter, settings, step.data(), status.data());
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

/// @file
/// The AdamW update on the `Cuda` device.
#pragma once

#include <octavo/kernels/adamw.hpp>
#include <octavo/kernels/cuda/run.cuh>

namespace octavo OCTAVO_ABI::detail {

/// Accesses the elements of a group one by one.
template <class T>
struct Elements {
  T values[run_size];
};

template <class T>
__device__ Elements<T> to_elements(const Run<T>& run) {
  Elements<T> result;
#pragma unroll
  for (int i = 0; i < run_size; ++i) {
    constexpr int a_word = Run<T>::elements_per_word;
    const std::uint32_t bits = run.words[i / a_word] >> (i % a_word * 32 / a_word);
    if constexpr (std::is_same_v<T, float>) {
      result.values[i] = __uint_as_float(bits);
    } else {
      result.values[i].bits = static_cast<decltype(T::bits)>(bits);
    }
  }
  return result;
}

template <class T>
__device__ Run<T> to_run(const Elements<T>& elements) {
  Run<T> run{};
#pragma unroll
  for (int i = 0; i < run_size; ++i) {
    constexpr int a_word = Run<T>::elements_per_word;
    run.words[i / a_word] |= element_bits(elements.values[i]) << (i % a_word * 32 / a_word);
  }
  return run;
}

/// Updates the group of elements that begins at `begin`.
template <bool Vectors, bool HasMaster, class W, class G, class M>
__device__ void update_run(const AdamWParameter<W, G, M, Cuda>& parameter,
                           const AdamWSettings& settings, const AdamWStep& step, float clip,
                           Index begin) {
  const Index count = Vectors ? Index{run_size} : parameter.weight.extent(0) - begin;
  Floats old;
  if constexpr (HasMaster) {
    old = load_floats<Vectors>(parameter.master.data() + begin, count);
  } else {
    old = load_floats<Vectors>(parameter.weight.data() + begin, count);
  }
  const Floats gradient = load_floats<Vectors>(parameter.gradient.data() + begin, count);
  Elements<M> first = to_elements(load_run<Vectors>(parameter.first_moment.data() + begin, count));
  Elements<M> second =
      to_elements(load_run<Vectors>(parameter.second_moment.data() + begin, count));
  static_assert(run_size == rounding_run);
  const auto bits = [&](auto format, Rounding rounding) {
    return rounding_bits<decltype(format)>(parameter, step, rounding, begin / run_size);
  };
  const RoundingBits first_bits = bits(M{}, Rounding::first_moment);
  const RoundingBits second_bits = bits(M{}, Rounding::second_moment);
  const RoundingBits weight_bits = HasMaster ? RoundingBits{} : bits(W{}, Rounding::weight);
  const AdamWFactors factors = adamw_factors(settings, step, parameter.weight_decay, clip);
  Floats updated;
  Elements<W> rounded;
#pragma unroll
  for (int i = 0; i < run_size; ++i) {
    updated.values[i] = adamw_element(old.values[i], gradient.values[i], first.values[i],
                                      second.values[i], factors, first_bits[i], second_bits[i]);
    rounded.values[i] =
        HasMaster ? W(updated.values[i]) : round_stochastic<W>(updated.values[i], weight_bits[i]);
  }
  store_run<Vectors>(parameter.first_moment.data() + begin, count, to_run(first));
  store_run<Vectors>(parameter.second_moment.data() + begin, count, to_run(second));
  if constexpr (HasMaster) store_floats<Vectors>(parameter.master.data() + begin, count, updated);
  store_run<Vectors>(parameter.weight.data() + begin, count, to_run(rounded));
}

/// Updates one group of elements per thread.
template <bool Vectors, bool HasMaster, class W, class G, class M>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads, 4)
    adamw_kernel(const AdamWParameter<W, G, M, Cuda> parameter, const AdamWSettings settings,
                 const AdamWStep* step, const StepStatus* status) {
  if (status->skip != 0) return;
  const Index begin = global_thread() * run_size;
  const Index count = parameter.weight.extent(0) - begin;
  if (count <= 0) return;
  const float clip = status->clip_coefficient;
  if (Vectors && count >= run_size) {
    update_run<true, HasMaster>(parameter, settings, *step, clip, begin);
  } else {
    update_run<false, HasMaster>(parameter, settings, *step, clip, begin);
  }
}

/// See adamw_update.
template <class W, class G, class M>
void adamw_update_body(const AdamWParameter<W, G, M, Cuda>& parameter,
                       const AdamWSettings& settings, TensorView<const AdamWStep, 1, Cuda> step,
                       TensorView<const StepStatus, 1, Cuda> status, const Context<Cuda>& context) {
  const bool vectors = rows_are_vectors(0, parameter.weight.data(), parameter.gradient.data(),
                                        parameter.master.data(), parameter.first_moment.data(),
                                        parameter.second_moment.data());
  const Index runs = ceil_divide(parameter.weight.extent(0), run_size);
  const auto start = [&](auto kernel) {
    launch("adamw_update", kernel, ceil_divide(runs, elementwise_threads), elementwise_threads, 0,
           context, parameter, settings, step.data(), status.data());
  };
  if (parameter.master.empty()) {
    start(vectors ? adamw_kernel<true, false, W, G, M> : adamw_kernel<false, false, W, G, M>);
  } else {
    start(vectors ? adamw_kernel<true, true, W, G, M> : adamw_kernel<false, true, W, G, M>);
  }
}

}  // namespace octavo::detail

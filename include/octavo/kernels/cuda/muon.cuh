/// @file
/// The elementwise parts of Muon on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/adamw.cuh>
#include <octavo/kernels/muon.hpp>

namespace octavo OCTAVO_ABI::detail {

/// Updates the momentum and computes the direction. Here and below, each thread updates one group.
template <bool Vectors, class W, class G, class M>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    muon_momentum_kernel(const MuonElements<W, G, M, Cuda> elements, const MuonMomentum settings,
                         const AdamWStep* step, const StepStatus* status) {
  if (status->skip != 0) return;
  const Index begin = global_thread() * run_size;
  const Index count = elements.weight.extent(0) - begin;
  if (count <= 0) return;
  const auto update = [&]<bool Whole>() {
    const Floats gradient = load_floats<Whole>(elements.gradient.data() + begin, count);
    Elements<M> moment = to_elements(load_run<Whole>(elements.momentum.data() + begin, count));
    const RoundingBits bits =
        rounding_bits<M>(elements, *step, Rounding::first_moment, begin / run_size);
    Floats direction;
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      direction.values[i] = muon_direction(gradient.values[i] * status->clip_coefficient,
                                           moment.values[i], settings, bits[i]);
    }
    store_run<Whole>(elements.momentum.data() + begin, count, to_run(moment));
    store_floats<Whole>(elements.direction.data() + begin, count, direction);
  };
  if (Vectors && count >= run_size) {
    update.template operator()<true>();
  } else {
    update.template operator()<false>();
  }
}

template <bool Vectors>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    muon_normalize_kernel(const Bf16* source, Index size, const StepStatus* norm, float epsilon,
                          Bf16* target) {
  const Index begin = global_thread() * run_size;
  const Index count = size - begin;
  if (count <= 0) return;
  const float divisor = muon_norm(norm->squared_norm, epsilon);
  const auto divide = [&]<bool Whole>() {
    Floats values = load_floats<Whole>(source + begin, count);
#pragma unroll
    for (int i = 0; i < run_size; ++i) values.values[i] = __fdiv_rn(values.values[i], divisor);
    store_floats<Whole>(target + begin, count, values);
  };
  if (Vectors && count >= run_size) {
    divide.template operator()<true>();
  } else {
    divide.template operator()<false>();
  }
}

template <bool Vectors, bool HasMaster, class W, class G, class M>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    muon_update_kernel(const MuonElements<W, G, M, Cuda> elements, const MuonRates rates,
                       const AdamWStep* step, const StepStatus* status) {
  if (status->skip != 0) return;
  const Index begin = global_thread() * run_size;
  const Index count = elements.weight.extent(0) - begin;
  if (count <= 0) return;
  const auto update = [&]<bool Whole>() {
    Floats old;
    if constexpr (HasMaster) {
      old = load_floats<Whole>(elements.master.data() + begin, count);
    } else {
      old = load_floats<Whole>(elements.weight.data() + begin, count);
    }
    const Floats direction = load_floats<Whole>(elements.direction.data() + begin, count);
    const RoundingBits bits =
        HasMaster ? RoundingBits{}
                  : rounding_bits<W>(elements, *step, Rounding::weight, begin / run_size);
    Floats updated;
    Elements<W> rounded;
#pragma unroll
    for (int i = 0; i < run_size; ++i) {
      updated.values[i] =
          muon_weight(old.values[i], direction.values[i], step->learning_rate,
                      rates.of(elements.first_element + begin + i), rates.weight_decay);
      rounded.values[i] =
          HasMaster ? W(updated.values[i]) : round_stochastic<W>(updated.values[i], bits[i]);
    }
    if constexpr (HasMaster) store_floats<Whole>(elements.master.data() + begin, count, updated);
    store_run<Whole>(elements.weight.data() + begin, count, to_run(rounded));
  };
  if (Vectors && count >= run_size) {
    update.template operator()<true>();
  } else {
    update.template operator()<false>();
  }
}

/// Copies a matrix from or to the rows of all ranks. Each thread copies one `Run`.
/// @tparam Collects  whether it copies to the matrix
template <bool Collects, class Run>
OCTAVO_KERNEL void __launch_bounds__(elementwise_threads)
    exchanged_matrix_kernel(const Run* from, const ExchangedMatrix place, Run* to) {
  constexpr Index width = sizeof(Run) / sizeof(Bf16);
  const Index runs = place.shape[1] / width;
  const Index i = global_thread();
  if (i >= place.shape[0] * runs) return;
  const Index row = i / runs;
  const Index column = i % runs * width;
  if constexpr (Collects) {
    to[i] = from[place.place(row, column) / width];
  } else {
    for (Index copy = 0; copy < place.degree / place.parts; ++copy) {
      to[place.place(row, column, copy) / width] = from[i];
    }
  }
}

/// Launches a kernel with a thread for each group of `size` elements.
template <class Kernel, class... Arguments>
void launch_runs(const char* name, Kernel kernel, Index size, const Context<Cuda>& context,
                 const Arguments&... arguments) {
  launch(name, kernel, ceil_divide(ceil_divide(size, run_size), elementwise_threads),
         elementwise_threads, 0, context, arguments...);
}

/// See muon_momentum.
template <class W, class G, class M>
void muon_momentum_body(const MuonElements<W, G, M, Cuda>& elements, const MuonMomentum& settings,
                        TensorView<const AdamWStep, 1, Cuda> step,
                        TensorView<const StepStatus, 1, Cuda> status,
                        const Context<Cuda>& context) {
  const bool vectors = rows_are_vectors(0, elements.gradient.data(), elements.momentum.data(),
                                        elements.direction.data());
  launch_runs("muon_momentum",
              vectors ? muon_momentum_kernel<true, W, G, M> : muon_momentum_kernel<false, W, G, M>,
              elements.weight.size(), context, elements, settings, step.data(), status.data());
}

/// See muon_normalize.
inline void muon_normalize_body(TensorView<const Bf16, 1, Cuda> source,
                                TensorView<const StepStatus, 1, Cuda> norm, float epsilon,
                                TensorView<Bf16, 1, Cuda> target, const Context<Cuda>& context) {
  const bool vectors = rows_are_vectors(0, source.data(), target.data());
  launch_runs("muon_normalize",
              vectors ? muon_normalize_kernel<true> : muon_normalize_kernel<false>, source.size(),
              context, source.data(), source.size(), norm.data(), epsilon, target.data());
}

/// See muon_update.
template <class W, class G, class M>
void muon_update_body(const MuonElements<W, G, M, Cuda>& elements, const MuonRates& rates,
                      TensorView<const AdamWStep, 1, Cuda> step,
                      TensorView<const StepStatus, 1, Cuda> status, const Context<Cuda>& context) {
  const bool vectors = rows_are_vectors(0, elements.weight.data(), elements.master.data(),
                                        elements.direction.data());
  const auto start = [&](auto kernel) {
    launch_runs("muon_update", kernel, elements.weight.size(), context, elements, rates,
                step.data(), status.data());
  };
  if (elements.master.empty()) {
    start(vectors ? muon_update_kernel<true, false, W, G, M>
                  : muon_update_kernel<false, false, W, G, M>);
  } else {
    start(vectors ? muon_update_kernel<true, true, W, G, M>
                  : muon_update_kernel<false, true, W, G, M>);
  }
}

/// Calls `exchanged_matrix_kernel`.
template <bool Collects>
void copy_exchanged_matrix(const char* name, const Bf16* from, const ExchangedMatrix& place,
                           Bf16* to, const Context<Cuda>& context) {
  const auto start = [&]<class Run>(const Run* first, Run* target) {
    constexpr Index width = sizeof(Run) / sizeof(Bf16);
    launch(name, exchanged_matrix_kernel<Collects, Run>,
           ceil_divide(place.shape[0] * (place.shape[1] / width), elementwise_threads),
           elementwise_threads, 0, context, first, place, target);
  };
  constexpr Index width = sizeof(uint4) / sizeof(Bf16);
  const bool whole_runs =
      place.offset % width == 0 && place.shard % width == 0 && place.part()[1] % width == 0;
  if (whole_runs && rows_are_vectors(0, from, to)) {
    start(reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(to));
  } else {
    start(from, to);
  }
}

/// See collect_matrix.
inline void collect_matrix_body(TensorView<const Bf16, 1, Cuda> rows, const ExchangedMatrix& place,
                                TensorView<Bf16, 2, Cuda> matrix, const Context<Cuda>& context) {
  copy_exchanged_matrix<true>("collect_matrix", rows.data(), place, matrix.data(), context);
}

/// See distribute_matrix.
inline void distribute_matrix_body(TensorView<const Bf16, 2, Cuda> matrix,
                                   const ExchangedMatrix& place, TensorView<Bf16, 1, Cuda> rows,
                                   const Context<Cuda>& context) {
  copy_exchanged_matrix<false>("distribute_matrix", matrix.data(), place, rows.data(), context);
}

}  // namespace octavo::detail

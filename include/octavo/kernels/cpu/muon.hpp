/// @file
/// The elementwise parts of Muon on the `Cpu` device.
#pragma once

#include <octavo/kernels/cpu/adamw.hpp>
#include <octavo/kernels/cpu/sums.hpp>
#include <octavo/kernels/muon.hpp>

#include <algorithm>

namespace octavo OCTAVO_ABI::detail {

/// Calls `body(run, begin, end)` for each group of elements whose rounding bits are generated
/// together.
template <class Body>
void for_each_rounding_run(Index elements, const Context<Cpu>& context, const Body& body) {
  parallel_pieces(elements, context, [&](Index begin, Index end) {
    for (Index at = begin; at < end; at += rounding_run) {
      body(at / rounding_run, at, std::min<Index>(at + rounding_run, end));
    }
  });
}

/// See muon_momentum.
template <class W, class G, class M>
void muon_momentum_body(const MuonElements<W, G, M, Cpu>& elements, const MuonMomentum& settings,
                        TensorView<const AdamWStep, 1, Cpu> step,
                        TensorView<const StepStatus, 1, Cpu> status, const Context<Cpu>& context) {
  if (status.data()->skip != 0) return;
  const float clip = status.data()->clip_coefficient;
  for_each_rounding_run(elements.weight.size(), context, [&](Index run, Index begin, Index end) {
    const RoundingBits bits = rounding_bits<M>(elements, *step.data(), Rounding::first_moment, run);
    for (Index i = begin; i < end; ++i) {
      elements.direction.data()[i] = Bf16(
          muon_direction(static_cast<float>(elements.gradient.data()[i]) * clip,
                         elements.momentum.data()[i], settings, bits[static_cast<int>(i - begin)]));
    }
  });
}

/// See muon_momentum. The direction is computed from the momentum before its rounding.
template <class W, class G>
void muon_momentum_body(const MuonElements<W, G, EightBit, Cpu>& elements,
                        const MuonMomentum& settings, TensorView<const AdamWStep, 1, Cpu> step,
                        TensorView<const StepStatus, 1, Cpu> status, const Context<Cpu>& context) {
  if (status.data()->skip != 0) return;
  const float clip = status.data()->clip_coefficient;
  const auto update = [&](Index begin, Index end) {
    const Index group = begin / moment_group;
    E8M0& scale = elements.momentum_scale.data()[group];
    EightBit* codes = elements.momentum.data() + begin;
    float moments[moment_group];
    for (Index i = begin; i < end; ++i) {
      float& moment = moments[i - begin];
      moment = FirstMomentCode::decode(codes[i - begin], scale);
      elements.direction.data()[i] = Bf16(muon_direction(
          static_cast<float>(elements.gradient.data()[i]) * clip, moment, settings, 0));
    }
    scale = encode_group<FirstMomentCode>({moments, static_cast<std::size_t>(end - begin)}, codes,
                                          GroupRoundingBits(elements, *step.data(), group),
                                          Rounding::first_moment);
  };
  parallel_pieces(elements.weight.size(), context, [&](Index begin, Index end) {
    for (Index at = begin; at < end; at += moment_group) {
      update(at, std::min(at + moment_group, end));
    }
  });
}

/// See muon_normalize.
inline void muon_normalize_body(TensorView<const Bf16, 1, Cpu> source,
                                TensorView<const StepStatus, 1, Cpu> norm, float epsilon,
                                TensorView<float, 1, Cpu> target, const Context<Cpu>& context) {
  const float divisor = muon_norm(norm.data()->squared_norm, epsilon);
  parallel_for(source.size(), 1, context, [&](Index i) {
    target.data()[i] = static_cast<float>(Bf16(static_cast<float>(source.data()[i]) / divisor));
  });
}

/// See muon_update.
template <class W, class G, class M>
void muon_update_body(const MuonElements<W, G, M, Cpu>& elements, const MuonRates& rates,
                      TensorView<const AdamWStep, 1, Cpu> step,
                      TensorView<const StepStatus, 1, Cpu> status, const Context<Cpu>& context) {
  if (status.data()->skip != 0) return;
  const float rate = step.data()->learning_rate;
  float* master = elements.master.data();
  W* weight = elements.weight.data();
  for_each_rounding_run(elements.weight.size(), context, [&](Index run, Index begin, Index end) {
    const RoundingBits bits = master != nullptr
                                  ? RoundingBits{}
                                  : rounding_bits<W>(elements, *step.data(), Rounding::weight, run);
    for (Index i = begin; i < end; ++i) {
      const float old = master != nullptr ? master[i] : static_cast<float>(weight[i]);
      const float updated = muon_weight(old, static_cast<float>(elements.direction.data()[i]), rate,
                                        rates.of(elements.first_element + i), rates.weight_decay);
      if (master != nullptr) master[i] = updated;
      weight[i] = master != nullptr
                      ? W(updated)
                      : round_stochastic<W>(updated, bits[static_cast<int>(i - begin)]);
    }
  });
}

/// See collect_matrix.
inline void collect_matrix_body(TensorView<const Bf16, 1, Cpu> rows, const ExchangedMatrix& place,
                                TensorView<Bf16, 2, Cpu> matrix, const Context<Cpu>& context) {
  parallel_for(place.shape[0], place.shape[1], context, [&](Index row) {
    for (Index column = 0; column < place.shape[1]; ++column) {
      matrix.row(row)[column] = rows.data()[place.place(row, column)];
    }
  });
}

/// See distribute_matrix.
inline void distribute_matrix_body(TensorView<const Bf16, 2, Cpu> matrix,
                                   const ExchangedMatrix& place, TensorView<Bf16, 1, Cpu> rows,
                                   const Context<Cpu>& context) {
  parallel_for(place.shape[0], place.shape[1], context, [&](Index row) {
    for (Index column = 0; column < place.shape[1]; ++column) {
      for (Index copy = 0; copy < place.degree / place.parts; ++copy) {
        rows.data()[place.place(row, column, copy)] = matrix.row(row)[column];
      }
    }
  });
}

}  // namespace octavo::detail

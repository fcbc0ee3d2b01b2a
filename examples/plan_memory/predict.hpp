// Predicts the time of a step on H200s: work divided by measured rates.
#pragma once

#include <plan_memory/options.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace planner {

/// Rates of one H200 inside a step, about the medians of `benchmarks/results/step_parts-h200.md`;
/// those of faster recipes are fitted to `benchmarks/results/activation-input-h200.md`.
/// Communication over the host's links is from about two cards in
/// `benchmarks/results/ranks-h200.md`. Rates between hosts are assumptions: no step across hosts
/// was measured.
struct Rates {
  double bf16_gemms = 685e12;              ///< operations per second
  double fp8_gemms = 1260e12;              ///< one scale per tensor
  double fp8_fast_gradients = 1340e12;     ///< the same, gradients with fast accumulation
  double fp8_row_gemms = 1170e12;          ///< one scale per row
  double fp8_block_gemms = 1150e12;        ///< one scale per block, forward and dgrad
  double fp8_block_wgrad = 940e12;         ///< one scale per block, weight gradients
  double attention_forward = 560e12;       ///< causal operations per second
  double attention_8bit_forward = 680e12;  ///< with the casts of its operands
  double attention_backward = 480e12;
  double memory = 4.1e12;          ///< bytes per second, read and written
  double between_kernels = 1.015;  ///< factor for gaps between kernels
  /// Seconds per element of a linear layer's input or output, for norms, RoPE, activations and
  /// casts.
  double bf16_passes = 1.28e-12;
  double fp8_passes = 1.65e-12;            ///< cast fused with the producer
  double current_scale_passes = 2.25e-12;  ///< the amax comes first
  double node_link = 290e9;                ///< bytes per second from each card to all others of a
                                           ///< host
  double network = 45e9;    ///< from each card to other hosts, with one 400 Gbit/s port
  double host_link = 45e9;  ///< to and from host memory at the same time, per direction
  int cards_per_node = 8;
  /// Fraction of its time by which communication lengthens a step, although it overlaps with
  /// stages.
  double gather_slowdown = 0.19;
  double reduction_slowdown = 0.39;
};

/// Seconds of a step on each card, by kind of work.
struct Prediction {
  double products = 0;
  double attention = 0;
  double passes = 0;
  double optimizer = 0;
  double offload = 0;        ///< exposed copies of offloaded activations
  double rows = 0;           ///< exposed communication between layers (tensor parallelism)
  double communication = 0;  ///< exposed, or slows down overlapping work

  [[nodiscard]] double step() const {
    return products + attention + passes + optimizer + offload + rows + communication;
  }
};

/// Returns how often tensor-parallel ranks gather or sum the rows of a micro-batch: before and
/// after each half of a block, forward and backward, and for the embedding and the head. Recomputed
/// norms are gathered again, and the recomputed first half of a block is summed again.
inline octavo::Index row_exchanges(octavo::Index layers, octavo::Recompute recompute) {
  octavo::Index per_block = 8;
  if (recompute != octavo::Recompute::none) per_block += 2;
  if (recompute == octavo::Recompute::block) per_block += 1;
  return 4 + layers * per_block;
}

/// Returns the bytes that each rank sends and receives in one such exchange.
inline double row_exchange_bytes(octavo::Index tokens, octavo::Index hidden, int degree,
                                 std::size_t element) {
  return static_cast<double>(tokens * hidden) * static_cast<double>(element) * (degree - 1) /
         degree;
}

/// Returns the rate of one GEMM.
inline double rate_of(const octavo::GemmEntry& gemm, const Rates& rates) {
  using octavo::GemmScales;
  if (!gemm.expected.is_fp8() || gemm.emulated) return rates.bf16_gemms;
  if (gemm.scales_a == GemmScales::tensor) {
    const bool is_fast_gradient = gemm.pass != octavo::GemmPass::forward &&
                                  gemm.accumulation == octavo::GemmAccumulation::fast;
    return is_fast_gradient ? rates.fp8_fast_gradients : rates.fp8_gemms;
  }
  if (gemm.scales_a == GemmScales::row) return rates.fp8_row_gemms;
  return gemm.pass == octavo::GemmPass::weight_gradient ? rates.fp8_block_wgrad
                                                        : rates.fp8_block_gemms;
}

/// Returns the bytes that the casts of a weight for one of its GEMMs move in a micro-batch, if
/// copies are remade: the weight is read in BF16, twice if its scale is computed from it, and
/// written in FP8. FP8 values that ranks gather are available already, but must be cast from a
/// shard (once per step, or with ZeRO-3 for each gather) and transposed.
inline double remade_bytes(const octavo::GemmEntry& gemm, const Options& options) {
  const bool reads_weight = gemm.pass != octavo::GemmPass::weight_gradient;
  if (options.weight_copies == "kept" || !gemm.expected.is_fp8() || !reads_weight) return 0;
  const bool by_tensor = gemm.scales_a == octavo::GemmScales::tensor;
  const bool is_current = !by_tensor ? gemm.scales_a == octavo::GemmScales::row
                                     : options.precision.find("tensorwise") != std::string::npos;
  const auto elements = static_cast<double>(gemm.out) * static_cast<double>(gemm.in);
  const double times = gemm.recomputed ? 2 : 1;
  if (options.gather == "fp8" && options.groups() > 1 && by_tensor && !gemm.is_head) {
    constexpr double cast = sizeof(octavo::Bf16) + sizeof(octavo::E4M3);
    constexpr double transposed = 2 * sizeof(octavo::E4M3);
    const bool is_forward = gemm.pass == octavo::GemmPass::forward;
    const double once_a_step = is_forward ? 1 / static_cast<double>(options.micro_batches) : 0;
    const double casts = options.zero == 3 ? 1 : once_a_step;
    return elements * (casts * cast / options.groups() + (is_forward ? 0 : transposed));
  }
  constexpr double read = sizeof(octavo::Bf16);
  return times * elements * ((is_current ? 2 : 1) * read + sizeof(octavo::E4M3));
}

/// Communication of the ranks in a step, and the work that it causes.
struct Exchanges {
  double gathered = 0;    ///< bytes of weights that each rank sends in a step
  double reduced = 0;     ///< bytes of gradients
  double reductions = 1;  ///< number of reductions of all gradients
  double packing = 0;     ///< seconds for casting gradients that are sent in FP8
  double summing = 0;     ///< seconds for sums over ranks
};

/// Returns the number of weights of blocks that can be gathered in FP8: used with one scale per
/// tensor.
inline double cast_parameters(const std::vector<octavo::GemmEntry>& gemms) {
  double parameters = 0;
  for (const octavo::GemmEntry& gemm : gemms) {
    const bool is_cast = gemm.pass == octavo::GemmPass::forward && !gemm.is_head &&
                         gemm.expected.is_fp8() && gemm.scales_a == octavo::GemmScales::tensor;
    if (is_cast) parameters += static_cast<double>(gemm.out) * static_cast<double>(gemm.in);
  }
  return parameters;
}

/// @param parameters  parameters of a rank's share of the model
/// @param cast        how many of them can be gathered in FP8
inline Exchanges exchanges_of(const Options& options, double parameters, double cast,
                              const Rates& rates) {
  constexpr double stored = sizeof(octavo::Bf16);
  const double ranks = options.groups();
  const auto micro_batches = static_cast<double>(options.micro_batches);
  const double to_others = (ranks - 1) / ranks;
  Exchanges result;
  // With ZeRO-3, weights are gathered for each forward and each backward, but FP8 values that are
  // kept only once per step.
  const double times = options.zero == 3 ? 2 * micro_batches : 1;
  const double times_of_codes = options.weight_copies == "kept" ? 1 : times;
  if (options.gather != "fp8") cast = 0;
  result.gathered = to_others * (cast * times_of_codes + stored * (parameters - cast) * times);
  if (options.zero > 1 || options.deterministic) result.reductions = micro_batches;
  const bool packs = options.reduce == "e4m3";
  constexpr double packed =
      sizeof(octavo::E4M3) + double{sizeof(float)} / octavo::PackedPart::block;
  const double sent = packs ? packed : stored;
  const double sum = options.reduce == "fp32" ? sizeof(float) : stored;
  result.reduced = result.reductions * to_others * sent * parameters;
  if (packs) result.packing = result.reductions * parameters * rates.fp8_passes;
  // Reads the parts of all ranks, writes sums, and accumulates from the second reduction on.
  result.summing = parameters *
                   (result.reductions * sent + (2 * result.reductions - 1) * sum / ranks) /
                   rates.memory;
  return result;
}

/// Returns the bytes of activations in host memory: the difference to a plan that does not offload
/// activations.
inline double offloaded_activations(Options options, const Plan& of,
                                    const octavo::MemoryPlan& memory) {
  const octavo::Offload offload = programs::offload_named(options.offload);
  if (!offload.activations) return 0;
  options.offload = offload.optimizer ? "optimizer" : "none";
  return static_cast<double>(memory.host - of.memory(request_of(options)).host);
}

/// @param of      the model
/// @param gemms   GEMMs of a rank, from the model's manifest
/// @param memory  the plan, with the bytes that the optimizer moves
inline Prediction predict(const Options& options, const Plan& of,
                          const std::vector<octavo::GemmEntry>& gemms,
                          const octavo::MemoryPlan& memory, const Rates& rates = {}) {
  const double degree = options.tensor_parallel;
  const octavo::BatchShape run = of.run_shape(request_of(options));  // padded
  const auto tokens = static_cast<double>(run.rows());
  const auto micro_batches = static_cast<double>(options.micro_batches);
  const bool current = options.precision.find("tensorwise") != std::string::npos;
  Prediction result;
  for (const octavo::GemmEntry& gemm : gemms) {
    const auto out = static_cast<double>(gemm.out);
    const auto in = static_cast<double>(gemm.in);
    const double times = gemm.recomputed ? 2 : 1;
    result.products += times * 2 * tokens * out * in / rate_of(gemm, rates);
    result.passes += remade_bytes(gemm, options) / rates.memory;
    if (gemm.pass != octavo::GemmPass::forward || gemm.is_head) continue;
    const double fp8 = current ? rates.current_scale_passes : rates.fp8_passes;
    result.passes +=
        times * tokens * (out + in) * (gemm.expected.is_fp8() ? fp8 : rates.bf16_passes);
  }
  const double causal = tokens * 2 * of.facts().attended_columns(run.tokens) / degree;
  const double forwards = options.recompute == "block" ? 2 : 1;
  const bool in_8_bits =
      of.attention_forward(request_of(options)) == octavo::AttentionForward::eight_bit;
  const double forward_rate = in_8_bits ? rates.attention_8bit_forward : rates.attention_forward;
  result.attention = forwards * 2 * causal / forward_rate + 5 * causal / rates.attention_backward;
  for (double* part : {&result.products, &result.attention, &result.passes}) {
    *part *= micro_batches * rates.between_kernels;
  }
  // State and weights are read and written, gradients are read twice; casts of weights are written.
  const double parameters = 2 * static_cast<double>(of.facts().parameters) / degree;
  const double ranks = options.groups();
  const double of_sums = options.reduce == "fp32" ? 2 : 1;  // multiple of a gradient's bytes
  const double activations = offloaded_activations(options, of, memory);
  const double host = static_cast<double>(memory.host) - activations;
  const double update =
      (2 * (static_cast<double>(memory.bytes(octavo::MemoryKind::optimizer)) + host) +
       (2 + 2 * of_sums) * parameters / ranks +
       static_cast<double>(memory.bytes(octavo::MemoryKind::quantized_weights)) + parameters) /
      rates.memory;
  // Transfers to and from host memory happen at the same time and overlap with the update.
  result.optimizer = std::max(update, host / rates.host_link);
  const double group_link =
      options.tensor_parallel <= rates.cards_per_node ? rates.node_link : rates.network;
  const octavo::Index exchanges =
      row_exchanges(of.shape().model.layers, programs::recompute_named(options.recompute));
  result.rows = micro_batches * static_cast<double>(exchanges) *
                row_exchange_bytes(run.rows(), of.shape().model.hidden, options.tensor_parallel,
                                   sizeof(octavo::Bf16)) /
                group_link;
  // Stores overlap with the forward, which is a third of the computation, fetches with the
  // backward.
  const double compute = result.products + result.attention + result.passes;
  const double copies = micro_batches * activations / rates.host_link;
  result.offload = std::max(0.0, copies - compute / 3) + std::max(0.0, copies - compute * 2 / 3);
  if (options.groups() == 1) return result;
  const double link = options.world <= rates.cards_per_node ? rates.node_link : rates.network;
  const Exchanges sent =
      exchanges_of(options, parameters / sizeof(octavo::Bf16), cast_parameters(gemms), rates);
  const double forward_overlap = options.zero == 3 ? compute : compute / 3 / micro_batches;
  const double backward_overlap = compute * 2 / 3 * sent.reductions / micro_batches;
  const auto add = [&](double time, double overlap_time, double slowdown) {
    result.communication +=
        std::max(0.0, time - overlap_time) + slowdown * std::min(time, overlap_time);
  };
  add(sent.gathered / link, forward_overlap, rates.gather_slowdown);
  add(sent.reduced / link, backward_overlap, rates.reduction_slowdown);
  result.communication += sent.packing + sent.summing;
  return result;
}

/// Returns the tokens of a step per GPU.
inline double tokens_per_gpu(const Options& options) {
  return static_cast<double>(options.batch) *
         static_cast<double>(options.sequence_length * options.micro_batches) /
         options.tensor_parallel;
}

/// Whether steps of this kind were measured; those in FP32, with adapters, in a precision without
/// a name, or on GPUs other than Hopper's were not.
inline bool is_predictable(const Options& options) {
  return options.gpu.capability == 90 && options.precision != "fp32" && options.lora == 0 &&
         is_named(options.precision);
}

inline void print_prediction(const Options& options, const Prediction& time) {
  const auto ms = [](double seconds) { return 1000 * seconds; };
  fmt::print(
      "\nPREDICTION for {}: {:.0f} ms per step, {:.0f} tokens/s per GPU\n  GEMMs {:.0f} ms, "
      "attention {:.0f}, norms, activations and casts {:.0f}, optimizer {:.0f}, {}{}communication "
      "{:.0f}\n",
      options.world == 1 ? std::string("an H200") : fmt::format("{} H200", options.world),
      ms(time.step()), tokens_per_gpu(options) / time.step(), ms(time.products), ms(time.attention),
      ms(time.passes), ms(time.optimizer),
      programs::offload_named(options.offload).activations
          ? fmt::format("copies of activations {:.0f}, ", ms(time.offload))
          : "",
      options.tensor_parallel == 1 ? ""
                                   : fmt::format("rows between layers {:.0f}, ", ms(time.rows)),
      ms(time.communication));
}

}  // namespace planner

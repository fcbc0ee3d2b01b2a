/// @file
/// Runs micro-batches through the stages of a model.
#pragma once

#include <octavo/kernels/elementwise.hpp>
#include <octavo/layers/expert_loss.hpp>
#include <octavo/models/stage.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The residual stream between the stages of a model. Ranks that share layers have parts of its
/// rows.
template <class T, Device D>
struct ResidualStream {
  std::vector<T*> states{};        ///< [own rows, width], after each stage except the last
  T* gradient_of_state = nullptr;  ///< [own rows, width]
  Index width = 0;
  Index ranks = 1;  ///< that share the layers

  /// @param rows  of all ranks
  [[nodiscard]] TensorView<T, 2, D> before(std::size_t stage, Index rows) const {
    return stage == 0 ? TensorView<T, 2, D>() : view(states[stage - 1], rows);
  }
  [[nodiscard]] TensorView<T, 2, D> after(std::size_t stage, Index rows) const {
    return stage == states.size() ? TensorView<T, 2, D>() : view(states[stage], rows);
  }
  [[nodiscard]] TensorView<T, 2, D> gradient(Index rows) const {
    return view(gradient_of_state, rows);
  }

 private:
  [[nodiscard]] TensorView<T, 2, D> view(T* state, Index rows) const {
    return {state, {rows / ranks, width}};
  }
};

/// Runs micro-batches through stages, calls the hooks between them (see `StageHooks`), casts
/// weights whose copies are stale, and clears gradients before a step's first backward.
template <class T, class G, Device D>
class StageDriver {
 public:
  using Hooks = StageHooks<T, G, D>;

  std::vector<std::unique_ptr<Stage<T, G, D>>> stages{};  ///< in the order of the forward
  ResidualStream<T, D> stream{};
  /// Flat parameters that all stages read, those of adapters; null: none.
  const StageParameters<T, G, D>* adapters = nullptr;
  /// A loss that stages add; see ExpertLoss.
  ExpertLoss<D> expert_loss{};
  /// Whether cast weights are kept, so that casts read weights. Otherwise they are cast for each
  /// GEMM.
  bool keeps_copies = true;

  /// Marks the cast weights of all stages as stale: the next forward casts each stage's weights
  /// just before it multiplies with them.
  void invalidate_copies() {
    for (const auto& stage : stages) stage->copies_are_stale = true;
  }

  /// Casts the weights of all stages.
  void cast(ForwardFor purpose, Hooks& hooks, const Context<D>& context) {
    for (std::size_t number = 0; number < stages.size(); ++number) {
      Stage<T, G, D>& stage = *stages[number];
      if (!stage.quantises) continue;
      hooks.before_quantize(stage.cast_parameters(), context);
      announce(number + 1, hooks, context);
      stage.cast(purpose, context);
      hooks.weights_read(stage.cast_parameters(), context);
    }
  }

  /// Runs the forward of stages. In training, `backward` runs the forward of a fused stage. The
  /// forward of the first stage begins a micro-batch.
  void forward(ForwardFor purpose, const MicroBatch<D>& batch, StageRange range, Hooks& hooks,
               const Context<D>& context) {
    const bool trains = purpose == ForwardFor::training;
    const Index rows = batch.rows.rows();
    if (trains && range.begin == 0) expert_loss.begin_forward(batch.rows, batch.padding, context);
    if (adapters != nullptr) hooks.before_forward(*adapters->flat, context);
    for (std::size_t number = range.begin; number < end_of(range); ++number) {
      Stage<T, G, D>& stage = *stages[number];
      if (trains && stage.is_fused) continue;
      begin_reading(purpose, number, hooks, context);
      stage.forward(purpose, batch, stream.before(number, rows), stream.after(number, rows),
                    context);
      end_reading(number, hooks, context);
    }
    if (adapters != nullptr) hooks.weights_read(*adapters->flat, context);
  }

  /// Runs the backward of stages, from the last to the first. The gradient of the last stage's
  /// output must be in the residual stream, unless that stage is the head.
  void backward(const MicroBatch<D>& batch, StageRange range, Hooks& hooks,
                const Context<D>& context) {
    const Accumulation accumulation = batch.accumulation;
    const bool begins = range.contains(stages.size() - 1);
    const bool ends = range.begin == 0;
    expert_loss.begin_backward(accumulation.share);
    if (adapters != nullptr) {
      hooks.before_backward(*adapters->flat, context);
      clear_gradients(*adapters, accumulation.first && begins, context);
    }
    const Index rows = batch.rows.rows();
    for (std::size_t number = end_of(range); number-- > range.begin;) {
      Stage<T, G, D>& stage = *stages[number];
      if (!stage.has_backward) continue;
      if (stage.is_fused) before_forward(ForwardFor::training, number, hooks, context);
      hooks.before_backward(stage.flat_parameters(), context);
      if (stage.table != nullptr) hooks.before_backward(*stage.table->flat, context);
      announce(number - 1, hooks, context);
      clear_gradients(*stage.parameters, accumulation.first, context);
      stage.backward(batch, stream.before(number, rows), stream.gradient(rows), context);
      end_reading(number, hooks, context);
      end_backward(*stage.parameters, accumulation.last, hooks, context);
    }
    if (adapters == nullptr) return;
    hooks.weights_read(*adapters->flat, context);
    end_backward(*adapters, accumulation.last && ends, hooks, context);
  }

  /// Calls the hooks before a forward of a stage reads its weights. Casts the weights first if
  /// their copies are stale.
  void begin_reading(ForwardFor purpose, std::size_t number, Hooks& hooks,
                     const Context<D>& context) {
    before_forward(purpose, number, hooks, context);
    announce(number + 1, hooks, context);
  }
  /// Calls the hooks after a stage has read its weights.
  void end_reading(std::size_t number, Hooks& hooks, const Context<D>& context) {
    const Stage<T, G, D>& stage = *stages[number];
    if (stage.table != nullptr) hooks.weights_read(*stage.table->flat, context);
    hooks.weights_read(stage.flat_parameters(), context);
  }

 private:
  [[nodiscard]] std::size_t end_of(StageRange range) const {
    return std::min(range.end, stages.size());
  }

  void before_forward(ForwardFor purpose, std::size_t number, Hooks& hooks,
                      const Context<D>& context) {
    const Stage<T, G, D>& stage = *stages[number];
    cast_if_due(purpose, number, hooks, context);
    if (stage.table != nullptr) hooks.before_forward(*stage.table->flat, context);
    hooks.before_forward(stage.flat_parameters(), context);
  }

  /// If copies are not kept, only notifies the layers.
  void cast_if_due(ForwardFor purpose, std::size_t number, Hooks& hooks,
                   const Context<D>& context) {
    Stage<T, G, D>& stage = *stages[number];
    if (!std::exchange(stage.copies_are_stale, false)) return;
    const bool reads = stage.quantises && keeps_copies;
    if (reads) hooks.before_quantize(stage.cast_parameters(), context);
    if (reads) announce(number + 1, hooks, context);
    stage.cast(purpose, context);
    if (reads) hooks.weights_read(stage.cast_parameters(), context);
  }

  /// Announces the stage with this number, if it exists.
  void announce(std::size_t number, Hooks& hooks, const Context<D>& context) const {
    if (number < stages.size()) hooks.announce(stages[number]->flat_parameters(), context);
  }

  /// @param clears  whether gradients are cleared, unless the parameters are frozen
  static void clear_gradients(const StageParameters<T, G, D>& in, bool clears,
                              const Context<D>& context) {
    const auto each = [&](const auto& body) {
      for (const Parameter<T, G, D>* parameter : in.parameters) body(*parameter);
    };
    if (clears && !in.flat->is_frozen()) in.flat->clear_gradients(each, context);
  }
  static void end_backward(const StageParameters<T, G, D>& in, bool are_final, Hooks& hooks,
                           const Context<D>& context) {
    if (are_final && !in.flat->is_frozen()) hooks.gradients_final(*in.flat, context);
  }
};

}  // namespace octavo

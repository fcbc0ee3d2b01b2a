/// @file
/// Runs micro-batches through the stages of a model.
#pragma once

#include <octavo/kernels/elementwise.hpp>
#include <octavo/layers/expert_loss.hpp>
#include <octavo/models/stage.hpp>

#include <cstddef>
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
/// @tparam Stages  a `StageList<…>`
template <class Stages, class T, class G, Device D>
class StageDriver {
 public:
  using Hooks = StageHooks<T, G, D>;
  using Run = FlatParameters<T, G, D>;

  Stages stages{};
  ResidualStream<T, D> stream{};
  /// The flat parameters of the stages in their order.
  std::vector<const Run*> order{};
  /// Flat parameters that all stages read, those of adapters; null: none.
  const ModelRun<T, G, D>* adapters = nullptr;
  /// A loss that stages add; see ExpertLoss.
  ExpertLoss<D> expert_loss{};
  /// Whether cast weights are kept, so that casts read weights. Otherwise they are cast for each
  /// GEMM.
  bool keeps_copies = true;

  /// Marks the cast weights of all stages as stale: the next forward casts each stage's weights
  /// just before it multiplies with them.
  void invalidate_copies() {
    stages.for_each({}, [](auto& stage, std::size_t) { stage.copies_are_stale = true; });
  }

  /// Casts the weights of all stages.
  template <class M>
  void cast(Hooks& hooks, const Context<D>& context) {
    stages.for_each({}, [&](auto& stage, std::size_t number) {
      if (!stage.quantises) return;
      hooks.before_quantize(stage.cast_run(), context);
      announce(number + 1, hooks, context);
      stage.template cast<M>(context);
      hooks.weights_read(stage.cast_run(), context);
    });
  }

  /// Runs the forward of stages. In training, `backward` runs the forward of a fused stage. The
  /// forward of the first stage begins a micro-batch.
  template <class M>
  void forward(const MicroBatch<D>& batch, StageRange range, Hooks& hooks,
               const Context<D>& context) {
    if constexpr (M::records) {
      if (range.begin == 0) expert_loss.begin_forward(batch.rows, batch.padding, context);
    }
    if (adapters != nullptr) hooks.before_forward(*adapters->run, context);
    stages.for_each(range, [&](auto& stage, std::size_t number) {
      if constexpr (!M::saves || !std::remove_reference_t<decltype(stage)>::is_fused) {
        const Index rows = batch.rows.rows();
        read<M>(stage, number, hooks, context, [&] {
          stage.template forward<M>(batch, stream.before(number, rows), stream.after(number, rows),
                                    context);
        });
      }
    });
    if (adapters != nullptr) hooks.weights_read(*adapters->run, context);
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
      hooks.before_backward(*adapters->run, context);
      clear_gradients(*adapters, accumulation.first && begins, context);
    }
    stages.for_each_reversed(range, [&](auto& stage, std::size_t number) {
      using StageType = std::remove_reference_t<decltype(stage)>;
      if constexpr (StageType::has_backward) {
        if constexpr (StageType::is_fused)
          before_forward<Mode::train>(stage, number, hooks, context);
        hooks.before_backward(*stage.parameters->run, context);
        if (stage.table != nullptr) hooks.before_backward(*stage.table->run, context);
        announce(number - 1, hooks, context);
        clear_gradients(*stage.parameters, accumulation.first, context);
        const Index rows = batch.rows.rows();
        stage.backward(batch, stream.before(number, rows), stream.gradient(rows), context);
        weights_read(stage, hooks, context);
        end_backward(*stage.parameters, accumulation.last, hooks, context);
      }
    });
    if (adapters == nullptr) return;
    hooks.weights_read(*adapters->run, context);
    end_backward(*adapters, accumulation.last && ends, hooks, context);
  }

  /// Calls `body()`, which reads a stage's weights in a forward, between the hooks. Casts the
  /// weights first if their copies are stale.
  template <class M, class StageType, class Body>
  void read(StageType& stage, std::size_t number, Hooks& hooks, const Context<D>& context,
            const Body& body) {
    before_forward<M>(stage, number, hooks, context);
    announce(number + 1, hooks, context);
    body();
    weights_read(stage, hooks, context);
  }

 private:
  template <class M, class StageType>
  void before_forward(StageType& stage, std::size_t number, Hooks& hooks,
                      const Context<D>& context) {
    cast_if_due<M>(stage, number, hooks, context);
    if (stage.table != nullptr) hooks.before_forward(*stage.table->run, context);
    hooks.before_forward(stage.run(), context);
  }

  /// If copies are not kept, only notifies the layers.
  template <class M, class StageType>
  void cast_if_due(StageType& stage, std::size_t number, Hooks& hooks, const Context<D>& context) {
    if (!std::exchange(stage.copies_are_stale, false)) return;
    const bool reads = stage.quantises && keeps_copies;
    if (reads) hooks.before_quantize(stage.cast_run(), context);
    if (reads) announce(number + 1, hooks, context);
    stage.template cast<M>(context);
    if (reads) hooks.weights_read(stage.cast_run(), context);
  }

  /// Announces the stage with this number, if it exists.
  void announce(std::size_t number, Hooks& hooks, const Context<D>& context) const {
    if (number < order.size()) hooks.announce(*order[number], context);
  }

  static void weights_read(const Stage<T, G, D>& stage, Hooks& hooks, const Context<D>& context) {
    if (stage.table != nullptr) hooks.weights_read(*stage.table->run, context);
    hooks.weights_read(stage.run(), context);
  }

  /// @param clears  whether gradients are cleared, unless the parameters are frozen
  static void clear_gradients(const ModelRun<T, G, D>& in, bool clears, const Context<D>& context) {
    const auto each = [&](const auto& body) {
      for (const Parameter<T, G, D>* parameter : in.parameters) body(*parameter);
    };
    if (clears && !in.run->is_frozen()) in.run->clear_gradients(each, context);
  }
  static void end_backward(const ModelRun<T, G, D>& in, bool are_final, Hooks& hooks,
                           const Context<D>& context) {
    if (are_final && !in.run->is_frozen()) hooks.gradients_final(*in.run, context);
  }
};

}  // namespace octavo

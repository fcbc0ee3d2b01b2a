/// @file
/// Stages: the consecutive parts of a model that a micro-batch passes through.
#pragma once

#include <octavo/layers/flat_parameters.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/models/activation_offload.hpp>
#include <octavo/models/stage_hooks.hpp>
#include <octavo/tensor/batch.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

namespace octavo OCTAVO_ABI {

/// A micro-batch as stages read it. Evaluations ignore `gradient_scale` and `accumulation`.
template <Device D>
struct MicroBatch {
  BatchView<D> rows;
  TensorView<const std::int32_t, 1, D> tokens{};   ///< [rows]
  TensorView<const std::int32_t, 1, D> targets{};  ///< [rows]; ignored if negative
  TensorView<float, 1, D> losses{};                ///< [rows], written
  TensorView<const float, 1, D> gradient_scale{};  ///< [1]: 1 / number of targets in the step
  Accumulation accumulation{};
  Index padding = 0;  ///< rows at the end of each sequence that only pad it
};

/// Consecutive stages of a model, by number: [begin, end).
struct StageRange {
  std::size_t begin = 0;
  std::size_t end = std::numeric_limits<std::size_t>::max();

  [[nodiscard]] constexpr bool contains(std::size_t stage) const {
    return begin <= stage && stage < end;
  }
};

/// The members that all stages have. A stage also has
/// - `cast<Mode>(context)`: casts the weights of its linear layers;
/// - `forward<Mode>(batch, x, y, context)`: reads the residual stream x and writes y;
/// - `backward(batch, x, gradient, context)`: replaces the gradient of y with that of x, and
///   computes the gradients of its parameters;
/// - `has_backward`: whether any gradient is needed from it;
/// - `is_fused`: whether `backward` includes the forward of training, as that of the head does,
///   whose logits exist only chunk by chunk.
/// @tparam T  format of weights and activations
/// @tparam G  format of the weights' gradients
template <class T, class G, Device D>
struct Stage {
  /// Its flat parameters.
  const ModelRun<T, G, D>* parameters = nullptr;
  /// Flat parameters of an earlier stage that this stage also reads, and whose gradients it writes
  /// first; null: none. `cast` then casts their weights. A head that is tied to the embedding has
  /// those of the embedding.
  const ModelRun<T, G, D>* table = nullptr;
  bool quantises = false;         ///< whether some linear layer casts its weights
  bool copies_are_stale = false;  ///< weights have changed since the last cast

  [[nodiscard]] const FlatParameters<T, G, D>& run() const { return *parameters->run; }
  /// Returns the flat parameters whose weights `cast` reads.
  [[nodiscard]] const FlatParameters<T, G, D>& cast_run() const {
    return table != nullptr ? *table->run : run();
  }
};

/// The embedding of tokens, the first stage.
/// @tparam Frozen  whether its parameters are not trained
template <class Layer, bool Frozen, class T, class G, Device D>
struct EmbeddingStage : Stage<T, G, D> {
  static constexpr bool has_backward = !Frozen;
  static constexpr bool is_fused = false;
  const Layer* layer = nullptr;

  template <class M>
  void cast(const Context<D>&) {}
  template <class M>
  void forward(const MicroBatch<D>& batch, TensorView<const T, 2, D>, TensorView<T, 2, D> y,
               const Context<D>& context) {
    layer->forward(batch.tokens, batch.rows, y, context);
  }
  void backward(const MicroBatch<D>& batch, TensorView<const T, 2, D>, TensorView<T, 2, D> gradient,
                const Context<D>& context) {
    layer->backward(batch.tokens, batch.rows, gradient, context);
  }
};

/// A block.
template <class Block, class Positions, class T, class G, Device D>
struct BlockStage : Stage<T, G, D> {
  static constexpr bool has_backward = true;
  static constexpr bool is_fused = false;
  Block* block = nullptr;
  const typename Block::Shared* shared = nullptr;
  const Positions* positions = nullptr;
  ActivationOffload<D>* offload = nullptr;
  std::size_t number = 0;  ///< of the block

  template <class M>
  void cast(const Context<D>& context) {
    block->template quantize_weights<M>(context);
  }
  template <class M>
  void forward(const MicroBatch<D>& batch, TensorView<const T, 2, D> x, TensorView<T, 2, D> y,
               const Context<D>& context) {
    if constexpr (M::saves) offload->before_forward(number);
    block->template forward<M>(x, y, batch.rows, *positions, context);
    if constexpr (M::saves) offload->after_forward(number);
  }
  void backward(const MicroBatch<D>& batch, TensorView<const T, 2, D> x,
                TensorView<T, 2, D> gradient, const Context<D>& context) {
    offload->before_backward(number);
    block->backward(x, gradient, batch.rows, *positions, *shared, !batch.accumulation.first,
                    context);
    offload->after_backward(number);
  }
};

/// The final norm, the projection to the vocabulary and the losses: the last stage.
template <class Head, class T, class G, Device D>
struct HeadStage : Stage<T, G, D> {
  static constexpr bool has_backward = true;
  static constexpr bool is_fused = true;
  Head* head = nullptr;
  const Parameter<T, G, D>* weight = nullptr;  ///< of the projection

  template <class M>
  void cast(const Context<D>& context) {
    head->template quantize_weights<M>(context);
  }
  template <class M>
  void forward(const MicroBatch<D>& batch, TensorView<const T, 2, D> x, TensorView<T, 2, D>,
               const Context<D>& context) {
    head->template loss<M>(x, batch.targets, batch.losses, {}, {}, {}, false, context);
  }
  void backward(const MicroBatch<D>& batch, TensorView<const T, 2, D> x,
                TensorView<T, 2, D> gradient, const Context<D>& context) {
    fill_zero(gradient.data(), gradient.bytes(), context);
    head->template loss<Mode::train>(x, batch.targets, batch.losses, gradient, weight->gradient,
                                     batch.gradient_scale, !batch.accumulation.first, context);
  }
};

/// The stages of a model, in the order of the forward.
/// @tparam Groups  `std::array<…>` of consecutive stages of one type
template <class... Groups>
class StageList {
  static constexpr std::size_t groups = sizeof...(Groups);

 public:
  /// Returns the group of stages with this number.
  template <std::size_t Group>
  [[nodiscard]] auto& group() {
    return std::get<Group>(groups_);
  }
  [[nodiscard]] static constexpr std::size_t size() {
    return (std::tuple_size_v<Groups> + ... + 0);
  }

  /// Calls `body(stage, number)` for every stage of the range, from the first to the last.
  template <class Body>
  void for_each(StageRange range, const Body& body) {
    std::size_t number = 0;
    const auto in_group = [&](auto& group) {
      for (auto& stage : group) {
        if (range.contains(number)) body(stage, number);
        ++number;
      }
    };
    std::apply([&](auto&... group) { (in_group(group), ...); }, groups_);
  }

  /// Does the same from the last to the first.
  template <class Body>
  void for_each_reversed(StageRange range, const Body& body) {
    std::size_t number = size();
    const auto in_group = [&](auto& group) {
      for (std::size_t i = group.size(); i-- > 0;) {
        if (range.contains(--number)) body(group[i], number);
      }
    };
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (in_group(std::get<groups - 1 - I>(groups_)), ...);
    }(std::make_index_sequence<groups>{});
  }

 private:
  std::tuple<Groups...> groups_;
};

}  // namespace octavo

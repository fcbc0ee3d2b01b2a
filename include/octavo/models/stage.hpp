/// @file
/// Stages: the consecutive parts of a model that a micro-batch passes through.
#pragma once

#include <octavo/layers/flat_parameters.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/models/activation_offload.hpp>
#include <octavo/models/stage_hooks.hpp>
#include <octavo/tensor/batch.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

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

/// The purpose of a forward: `Mode::train` or `Mode::evaluate` as a value.
enum class ForwardFor { training, evaluation };

/// A stage of a model. Its virtual members enqueue and do not synchronise.
/// @tparam T  format of weights and activations
/// @tparam G  format of the weights' gradients
template <class T, class G, Device D>
class Stage {
 public:
  Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  virtual ~Stage() = default;

  /// Casts the weights of its linear layers.
  virtual void cast(ForwardFor purpose, const Context<D>& context) = 0;
  /// Reads the residual stream x and writes y.
  virtual void forward(ForwardFor purpose, const MicroBatch<D>& batch, TensorView<const T, 2, D> x,
                       TensorView<T, 2, D> y, const Context<D>& context) = 0;
  /// Replaces the gradient of y with that of x, and computes the gradients of its parameters.
  virtual void backward(const MicroBatch<D>& batch, TensorView<const T, 2, D> x,
                        TensorView<T, 2, D> gradient, const Context<D>& context) = 0;

  [[nodiscard]] const FlatParameters<T, G, D>& flat_parameters() const { return *parameters->flat; }
  /// Returns the flat parameters whose weights `cast` reads.
  [[nodiscard]] const FlatParameters<T, G, D>& cast_parameters() const {
    return table != nullptr ? *table->flat : flat_parameters();
  }

  /// Its flat parameters.
  const StageParameters<T, G, D>* parameters = nullptr;
  /// Flat parameters of an earlier stage that this stage also reads, and whose gradients it writes
  /// first; null: none. `cast` then casts their weights. A head that is tied to the embedding has
  /// those of the embedding.
  const StageParameters<T, G, D>* table = nullptr;
  bool quantises = false;         ///< whether some linear layer casts its weights
  bool copies_are_stale = false;  ///< weights have changed since the last cast
  bool has_backward = true;       ///< whether any gradient is needed from it
  /// Whether `backward` includes the forward of training, as that of the head does, whose logits
  /// exist only chunk by chunk.
  bool is_fused = false;
};

/// The embedding of tokens, the first stage.
template <class Layer, class T, class G, Device D>
class EmbeddingStage final : public Stage<T, G, D> {
 public:
  explicit EmbeddingStage(const Layer& layer) : layer_(layer) {}

  void cast(ForwardFor, const Context<D>&) override {}
  void forward(ForwardFor, const MicroBatch<D>& batch, TensorView<const T, 2, D>,
               TensorView<T, 2, D> y, const Context<D>& context) override {
    layer_.forward(batch.tokens, batch.rows, y, context);
  }
  void backward(const MicroBatch<D>& batch, TensorView<const T, 2, D>, TensorView<T, 2, D> gradient,
                const Context<D>& context) override {
    layer_.backward(batch.tokens, batch.rows, gradient, context);
  }

 private:
  const Layer& layer_;
};

/// A block.
template <class Block, class Positions, class T, class G, Device D>
class BlockStage final : public Stage<T, G, D> {
 public:
  using Shared = typename Block::Shared;

  /// @param number  of the block
  BlockStage(Block& block, const Shared& shared, const Positions& positions,
             ActivationOffload<D>& offload, std::size_t number)
      : block_(block), shared_(shared), positions_(positions), offload_(offload), number_(number) {}

  void cast(ForwardFor purpose, const Context<D>& context) override {
    if (purpose == ForwardFor::training) {
      block_.template quantize_weights<Mode::train>(context);
    } else {
      block_.template quantize_weights<Mode::evaluate>(context);
    }
  }
  void forward(ForwardFor purpose, const MicroBatch<D>& batch, TensorView<const T, 2, D> x,
               TensorView<T, 2, D> y, const Context<D>& context) override {
    if (purpose == ForwardFor::evaluation) {
      block_.template forward<Mode::evaluate>(x, y, batch.rows, positions_, context);
      return;
    }
    offload_.before_forward(number_);
    block_.template forward<Mode::train>(x, y, batch.rows, positions_, context);
    offload_.after_forward(number_);
  }
  void backward(const MicroBatch<D>& batch, TensorView<const T, 2, D> x,
                TensorView<T, 2, D> gradient, const Context<D>& context) override {
    offload_.before_backward(number_);
    block_.backward(x, gradient, batch.rows, positions_, shared_, !batch.accumulation.first,
                    context);
    offload_.after_backward(number_);
  }

 private:
  Block& block_;
  const Shared& shared_;
  const Positions& positions_;
  ActivationOffload<D>& offload_;
  std::size_t number_;
};

/// The final norm, the projection to the vocabulary and the losses: the last stage.
template <class Head, class T, class G, Device D>
class HeadStage final : public Stage<T, G, D> {
 public:
  /// @param weight  of the projection
  HeadStage(Head& head, const Parameter<T, G, D>& weight) : head_(head), weight_(weight) {
    this->is_fused = true;
  }

  void cast(ForwardFor purpose, const Context<D>& context) override {
    if (purpose == ForwardFor::training) {
      head_.template quantize_weights<Mode::train>(context);
    } else {
      head_.template quantize_weights<Mode::evaluate>(context);
    }
  }
  /// Computes the losses of an evaluation.
  void forward(ForwardFor, const MicroBatch<D>& batch, TensorView<const T, 2, D> x,
               TensorView<T, 2, D>, const Context<D>& context) override {
    head_.template loss<Mode::evaluate>(x, batch.targets, batch.losses, {}, {}, {}, false, context);
  }
  void backward(const MicroBatch<D>& batch, TensorView<const T, 2, D> x,
                TensorView<T, 2, D> gradient, const Context<D>& context) override {
    fill_zero(gradient.data(), gradient.bytes(), context);
    head_.template loss<Mode::train>(x, batch.targets, batch.losses, gradient, weight_.gradient,
                                     batch.gradient_scale, !batch.accumulation.first, context);
  }

 private:
  Head& head_;
  const Parameter<T, G, D>& weight_;
};

}  // namespace octavo

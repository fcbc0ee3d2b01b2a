/// @file
/// A decoder for inference: weights, and the KV cache of one text.
#pragma once

#include <octavo/inference/inference_shape.hpp>
#include <octavo/models/decoder.hpp>
#include <octavo/precision/inference.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace octavo OCTAVO_ABI {
namespace detail {

/// A family, or that of a model, so that no further errors follow where models are rejected.
template <class F>
struct FamilyTypeOf {
  using type = F;
};
template <class F>
  requires requires { typename F::FamilyType; }
struct FamilyTypeOf<F> {
  using type = typename F::FamilyType;
};

}  // namespace detail

/// A decoder with the layers of a `Decoder`, for inference only. It has weights in the format of
/// `Inference<Precision>` and the keys and values of one text, but no gradients and no optimizer.
/// Its memory is in an `Arena`. Not copyable or movable, because its layers point to shared
/// members.
/// @tparam Family     as of `Decoder`, for one rank
/// @tparam Precision  determines the format of the weights: see `Inference`
template <class Family, class Precision, Device D>
class InferenceModel {
 public:
  static_assert(
      requires { typename Family::template Positions<D>; },
      "InferenceModel: the first argument must be a family, such as PresetFamily<preset> "
      "or LlamaFamily<config>, not a model");
  using FamilyType = typename detail::FamilyTypeOf<Family>::type;
  static_assert(!is_lora<Precision>,
                "InferenceModel: Lora is only for training; choose its base precision, such as "
                "Bf16, and load a folder that save_hugging_face wrote, whose weights contain the "
                "adapters");
  using T = StorageOf<Precision>;
  using DeviceType = D;
  static constexpr auto config = FamilyType::config;
  static_assert(tensor_degree<FamilyType> == 1,
                "InferenceModel: ranks cannot share the layers of an inference; name a family of "
                "one rank, such as LlamaFamily<config>");

  /// Allocates the model in the arena, without initializing it: see `fill_weights`.
  /// @throws ConfigError  if `shape.longest` is 0, or more than the model's positions
  InferenceModel(Arena<D>& arena, InferenceShape shape, const DeviceLimits<D>& limits)
      : shape_(shape) {
    require<ConfigError>(shape.longest > 0,
                         "the maximum text length must be at least 1 token, but is ",
                         shape.longest);
    require<ConfigError>(shape.longest <= FamilyType::longest_sequence,
                         "the maximum text length is ", shape.longest, " tokens, but ",
                         config.name.text(), " has positions for ", FamilyType::longest_sequence,
                         "; reduce the length");
    require<ConfigError>(shape.piece > 0,
                         "a piece of a prompt must have at least 1 token, but has ", shape.piece);
    shape_.piece = std::min(shape.piece, shape.longest);
    allocate_parameters(arena, limits);
    arena.overlay([&] { stage_.allocate(arena); }, [&] { allocate_activations(arena); });
    const auto bytes = static_cast<Index>(workspace_bytes(limits));
    workspace_ = {arena.template allocate<std::byte>(MemoryKind::workspace, bytes), {bytes}};
  }
  InferenceModel(const InferenceModel&) = delete;
  InferenceModel& operator=(const InferenceModel&) = delete;

  [[nodiscard]] static std::string precision() { return precision_name<P>(); }
  [[nodiscard]] static ModelFacts facts() { return config.facts(); }
  [[nodiscard]] InferenceShape shape() const { return shape_; }

  /// Reserves the workspace of the context that this model's operations need.
  void bind(Context<D>& context) const {
    context.bind_workspace({workspace_.data(), workspace_.bytes()});
  }

  /// Calls `fill(parameter)` for every parameter, in the order of a `Decoder`; its `weight` then
  /// has memory to write to. Casts FP8 weights after the parameters of each block were filled.
  /// Invalidates the cached text.
  template <class Fill>
  void fill_weights(const Fill& fill, const Context<D>& context) {
    const auto fill_staged = [&](Parameter<T, T, D>& parameter) {
      if (!parameter.is_cast_only) return fill(parameter);
      T* staged = reinterpret_cast<T*>(stage_.elements()) + parameter.offset;
      parameter.weight = {staged, parameter.weight.shape()};
      fill(parameter);
      parameter.weight = {nullptr, parameter.weight.shape()};
    };
    embedding_.visit(fill_staged);
    for_each_block([&](auto& block, auto&) {
      block.visit(fill_staged);
      block.template quantize_weights<Mode::generate>(context);
    });
    each_of_head()(fill_staged);
    head_.template quantize_weights<Mode::generate>(context);
    positions_.initialize_sync(context);  // weights were staged there
  }

  /// Calls `visitor(parameter)` for every parameter, in the order of `fill_weights`.
  template <class Visitor>
  void visit(const Visitor& visitor) {
    embedding_.visit(visitor);
    for_each_block([&](auto& block, auto&) { block.visit(visitor); });
    each_of_head()(visitor);
  }

  /// Returns the size in bytes of all weights that a token is multiplied with.
  [[nodiscard]] std::size_t multiplied_bytes() {
    std::size_t bytes = 0;
    const auto add = [&](const Parameter<T, T, D>& parameter) {
      const StackedMatrices& matrices = parameter.matrices;
      Index elements = parameter.weight.size();
      if (matrices.choices != 0) elements = elements / matrices.repeats * matrices.choices;
      bytes +=
          static_cast<std::size_t>(elements) * (parameter.is_cast_only ? sizeof(E4M3) : sizeof(T));
    };
    for_each_block([&](auto& block, auto&) { block.visit(add); });
    each_of_head()(add);
    if constexpr (config.tied_embeddings) {
      bytes += static_cast<std::size_t>(embedding_.weight().weight.size()) *
               (Head::Projection::keeps_fp8 ? sizeof(E4M3) : sizeof(T));
    }
    return bytes;
  }

  /// Appends tokens to the text and caches their keys and values.
  /// @param tokens     [tokens], at most `shape().piece`
  /// @param positions  [tokens]: consecutive positions in the text, below `shape().longest`; all
  ///                   earlier positions must be cached. Read on the device, so that a recorded
  ///                   call works for all positions
  /// @note enqueues; does not synchronise
  void extend(TensorView<const std::int32_t, 1, D> tokens,
              TensorView<const std::int32_t, 1, D> positions, const Context<D>& context) {
    check_shape("InferenceModel", "positions", positions, {tokens.extent(0)});
    require<ShapeError>(tokens.extent(0) <= shape_.piece, "cannot append ", tokens.extent(0),
                        " tokens at once, but the model has memory for ", shape_.piece,
                        "; pass fewer");
    const BatchView<D> batch(positions);
    embedding_.forward(tokens, batch, residual(0, batch.rows()), context);
    std::size_t layer = 0;
    for_each_block([&](auto& block, auto&) {
      block.template forward<Mode::generate>(residual(layer, batch.rows()),
                                             residual(layer + 1, batch.rows()), batch, positions_,
                                             context);
      ++layer;
    });
  }

  /// Computes the logits of the token after those of the last `extend`, which appended `tokens`.
  /// @return  [1, padded vocabulary], in memory that the next call overwrites
  /// @note enqueues; does not synchronise
  [[nodiscard]] TensorView<T, 2, D> next_logits(Index tokens, const Context<D>& context) {
    const TensorView<const T, 2, D> last =
        residual(static_cast<std::size_t>(config.layers), tokens);
    return head_.template logits<Mode::generate>(last.rows(tokens - 1, 1), context);
  }

 private:
  using P = Inference<detail::WithoutInference<Precision>>;
  using SegmentTuple = detail::Segments<FamilyType, T, P, T, D>;
  using HeadPrecision = detail::HeadPrecisionOf<FamilyType, P>;
  using Head = LanguageModelHead<T, HeadPrecision, typename FamilyType::template Norm<T, T, D>,
                                 config.hidden, config.padded_vocabulary(), T, D>;

  template <class Body>
  void for_each_block(const Body& body) {
    detail::for_each_block(segments_, body);
  }

  [[nodiscard]] auto each_of_head() {
    return [this](const auto& body) {
      head_.visit(body);
      if constexpr (!config.tied_embeddings) body(head_weight_);
    };
  }

  void allocate_parameters(Arena<D>& arena, const DeviceLimits<D>& limits) {
    LayerRegistry<D> registry;
    registry.stage = &stage_;
    registry.scratch = &scratch_;
    registry.limits = limits;
    // For random weights, in benchmarks: same as Decoder's.
    const float deviation = 0.02f;
    const Initial initial = Initial::normal(deviation);
    const Initial outer =
        Initial::normal(deviation / std::sqrt(2.0f * static_cast<float>(config.layers)));
    embedding_.declare("embedding", config.padded_vocabulary(), config.vocabulary, initial);
    embedding_parameters_.allocate_weights(
        arena, [this](const auto& body) { this->embedding_.visit(body); });
    int layer = 0;
    for_each_block([&](auto& block, auto&) {
      block.allocate(arena, "blocks." + std::to_string(layer++), registry,
                     {initial, outer, config.norm_epsilon}, Recompute::block);
    });
    registry.scratch = nullptr;  // the head sees one token
    head_.declare(registry, 1, config.vocabulary, config.norm_epsilon);
    if constexpr (!config.tied_embeddings) {
      head_weight_.declare("head.weight", config.padded_vocabulary(), config.hidden, initial);
      head_weight_.initialised_rows = config.vocabulary;
      head_weight_.is_cast_only = Head::Projection::keeps_fp8;
    }
    head_parameters_.allocate_weights(arena, each_of_head());
    if constexpr (config.tied_embeddings) {
      head_.allocate_weight_copies(arena, embedding_.weight());
    } else {
      head_.allocate_weight_copies(arena, head_weight_);
    }
  }

  void allocate_activations(Arena<D>& arena) {
    constexpr auto kind = MemoryKind::activations;
    const Index rows = shape_.piece;
    scratch_.allocate(arena);
    positions_.allocate(arena, {1, shape_.longest});
    for (T*& state : residual_) state = arena.template allocate<T>(kind, rows * config.hidden);
    const auto allocate_shared_buffers = [&](auto& segment) {
      return [&] {
        std::remove_reference_t<decltype(segment)>::Block::allocate_inference(arena, segment.shared,
                                                                              rows);
      };
    };
    std::apply(
        [&](auto&... segment) {
          arena.overlay([&] { head_.allocate_scratch(arena); },
                        allocate_shared_buffers(segment)...);
        },
        segments_);
    for_each_block(
        [&](auto& block, auto& shared) { block.allocate_cache(arena, shared, shape_.longest); });
  }

  [[nodiscard]] std::size_t workspace_bytes(const DeviceLimits<D>& limits) {
    std::size_t bytes = 0;
    for (Index rows = 1; rows <= shape_.piece; ++rows) {
      for (const BlockShape& block : FamilyType::block_shapes) {
        bytes = std::max(
            bytes, cached_attention_workspace(block.head_layout(), rows, shape_.longest, limits));
      }
    }
    visit([&](const Parameter<T, T, D>& parameter) {
      if (!parameter.is_matrix()) return;
      const Index out = parameter.weight.extent(0);
      const Index in = parameter.weight.extent(1);
      const StackedMatrices& matrices = parameter.matrices;
      if (matrices.choices != 0) {
        GemmEntry gemm;
        gemm.out = out / matrices.repeats;
        gemm.in = in;
        gemm.experts = static_cast<int>(matrices.repeats);
        gemm.choices = static_cast<int>(matrices.choices);
        bytes = std::max(
            {bytes, experts_workspace(gemm, shape_.piece, limits), row_amaxes_workspace(out, in)});
        return;
      }
      bytes = std::max({bytes, matmul_workspace(shape_.piece, out, in, limits),
                        few_rows_workspace(in, limits), row_amaxes_workspace(out, in)});
    });
    return bytes;
  }

  /// Returns the residual stream before block `layer`; two buffers alternate.
  [[nodiscard]] TensorView<T, 2, D> residual(std::size_t layer, Index rows) const {
    return {residual_[layer % 2], {rows, config.hidden}};
  }

  InferenceShape shape_;
  WeightStage<D> stage_;
  LayerScratch<D> scratch_;
  FlatParameters<T, T, D> embedding_parameters_;
  FlatParameters<T, T, D> head_parameters_;
  typename FamilyType::template Embedding<T, T, D> embedding_;
  typename FamilyType::template Positions<D> positions_;
  SegmentTuple segments_;
  Head head_;
  Parameter<T, T, D> head_weight_;
  std::array<T*, 2> residual_{};
  TensorView<std::byte, 1, D> workspace_;
};

}  // namespace octavo

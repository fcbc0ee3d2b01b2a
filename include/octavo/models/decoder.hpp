/// @file
/// A decoder whose family, shape, precision and device are template parameters.
#pragma once

#include <octavo/gemm/gemm_key.hpp>
#include <octavo/layers/layers.hpp>
#include <octavo/models/decoder_sizes.hpp>
#include <octavo/models/model.hpp>
#include <octavo/models/segments.hpp>
#include <octavo/models/stage_driver.hpp>
#include <octavo/models/stage_hooks.hpp>
#include <octavo/precision/inference.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

/// A decoder: an embedding, blocks along a residual stream, a final norm and a head.
///
/// Lives in an `Arena`; building it on a measuring arena plans its memory. Neither copyable nor
/// movable, because its layers point to its scaling table and manifest.
/// @tparam Family     `LlamaFamily<llama3_8b>`, `Gpt2Family<gpt2_124m>` or a custom family
/// @tparam Precision  `Fp32`, `Bf16`, `Fp8Recipe<…>`, `Mxfp8`, `Layerwise<…>`
/// @tparam D          `Cpu` or `Cuda`
/// @tparam Gradient   format of the weights' gradients; defaults to the storage format
template <class Family, class Precision, Device D, class Gradient = StorageOf<Precision>>
class Decoder {
 public:
  using T = StorageOf<Precision>;
  using G = Gradient;
  using DeviceType = D;
  using Hooks = StageHooks<T, G, D>;
  using FamilyType = Family;
  static constexpr auto config = Family::config;
  /// Number of ranks that share each layer; see TensorParallel.
  static constexpr int tensor_parallel = tensor_degree<Family>;
  using HeadPrecision = detail::HeadPrecisionOf<Family, detail::WithoutInference<Precision>>;
  /// Whether only adapters are trained: see Lora.
  static constexpr bool is_frozen = is_lora<Precision>;
  static_assert(std::is_same_v<G, Fp32> || std::is_same_v<G, Bf16>,
                "Decoder: the format of gradients must be Fp32 or Bf16; for a TensorParallel, name "
                "the format first, as in Llama<config, P, D, StorageOf<P>, TensorParallel<2>>");
  static_assert(!is_frozen || tensor_parallel == 1,
                "Lora: layers with adapters cannot be shared by ranks; choose TensorParallel<1>, "
                "and DataParallel for several ranks");

  /// Returns the current device's limits for this model, including the attention library's, for
  /// plans and layouts that remain valid when the model runs.
  /// @throws ConfigError  if the chosen attention library does not support the model's attention
  [[nodiscard]] static DeviceLimits<D> limits(BatchShape batch, const Context<D>& context) {
    std::vector<AttentionShape> shapes;
    for (const BlockShape& block : Family::block_shapes) {
      shapes.push_back(attention_shape(block.with(attention_forward_of<Precision>), batch));
    }
    return attention_limits<T>(shapes, context);
  }

  /// Returns the shape in which a session runs batches of shape `batch`: each sequence is padded at
  /// its end with rows that have no targets, which do not affect causal attention. The padding
  /// makes the number of rows a multiple that FP8 GEMMs can reduce and that divides evenly among
  /// the ranks that share the layers. On `Cuda`, rows are also padded to a multiple of 64, because
  /// other GEMMs are slower, if that lengthens a sequence by at most 1/64.
  [[nodiscard]] static constexpr BatchShape run_shape(BatchShape batch);

  /// Lays the model out in the arena. Writes no values: see `initialize_sync`.
  /// @throws ConfigError  if the batch or sequence length is 0, the batch has 2^31 rows or more, a
  ///                      sequence is longer than the model has positions for, or an FP8 GEMM
  ///                      cannot reduce that number of tokens
  Decoder(Arena<D>& arena, BatchShape batch, ModelOptions options, const DeviceLimits<D>& limits)
      : batch_(batch), options_(options) {
    detail::check_decoder_batch(batch, config.name.text(), Family::longest_sequence);
    options_.head_chunk =
        detail::decoder_head_chunk(options_.head_chunk, config.padded_vocabulary(), batch.rows(),
                                   PrecisionTraits<HeadPrecision>::is_quantized);
    if constexpr (is_frozen) {
      detail::check_lora(options_.lora);
      options_.gradients_share_memory = false;  // adapters' gradients are small
    }
    if constexpr (tensor_parallel > 1) divide_rows(arena);
    allocate_parameters(arena, limits);
    detail::check_reduced_tokens(batch, options_.head_chunk, scaling_.size() != 0, head_quantises_);
    scaling_.allocate(arena);
    driver_.expert_loss.allocate(arena);
    weight_stage_.allocate(arena);
    scratch_.allocate(arena);
    if (!options_.gradients_share_memory) allocate_gradients(arena);
    allocate_activations(arena);
    const auto bytes = static_cast<Index>(detail::decoder_workspace<T>(
        manifest_, Family::block_shapes, attention_forward_of<Precision>, batch,
        options_.head_chunk, limits));
    workspace_ = {arena.template allocate<std::byte>(MemoryKind::workspace, bytes), {bytes}};
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  [[nodiscard]] BatchShape batch() const { return batch_; }
  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] const ScalingTable<D>& scaling() const { return scaling_; }
  [[nodiscard]] static std::string precision() { return precision_name<Precision>(); }
  [[nodiscard]] static ModelFacts facts() { return config.facts(); }

  /// Initialises all parameters and the scaling state, and binds the context's workspace.
  /// @param hooks  its `held_weights` selects the weights to initialise; see `StageHooks`
  void initialize_sync(std::uint64_t seed, Hooks& hooks, Context<D>& context) {
    bind(context);
    list_stages();
    offload_.start(context);
    std::uint64_t stream = 0;
    std::uint64_t adapter_stream = std::uint64_t{1} << 32;  // keeps other seeds unchanged
    for (const StageParameters<T, G, D>& stage : parameters_) {
      const WeightRange<T, D> held = hooks.held_weights(*stage.flat);
      clear_weights(held, context);
      for (const Parameter<T, G, D>* parameter : stage.parameters) {
        const RandomStream parameter_stream{seed,
                                            parameter->is_adapter ? adapter_stream++ : stream++};
        octavo::initialize(*parameter, held, parameter_stream, context);
        // In a rehearsal, stages read these values until the gathered weights arrive.
        const bool is_separate = stage.flat->weights().empty() && !parameter->has_fp8_values();
        if (is_separate) octavo::initialize(*parameter, parameter_stream, context);
      }
      if (stage.flat->has_fp8_values())
        fill_zero(stage.flat->fp8_values().data(), stage.flat->fp8_values().bytes(), context);
    }
    scaling_.initialize_sync(context);
    positions_.initialize_sync(context);
  }

  /// Returns the ranks that share this model's layers. They must be connected before the model is
  /// initialised.
  [[nodiscard]] TensorParallelGroup<D>& tensor_parallel_group()
    requires(tensor_parallel > 1)
  {
    return group_;
  }

  /// Returns the number of tokens that a step's GEMMs process.
  [[nodiscard]] GemmRows gemm_rows(Index micro_batches) const {
    return {batch_.rows(), options_.head_chunk, micro_batches};
  }

  /// Binds the workspace that this model's operations need to the context.
  void bind(Context<D>& context) const {
    context.bind_workspace({workspace_.data(), workspace_.bytes()});
  }

  /// Reports copies of offloaded activations to a timeline, which must outlive this model.
  void report_copies_to(Timeline<D>& timeline) { offload_.report_to(timeline); }

  /// Returns all flat parameters: the adapters', the embedding's, each block's and the head's.
  [[nodiscard]] const ModelParameters<T, G, D>& parameters() const { return parameters_; }

  /// Calls `visitor(parameter)` for every parameter, in a fixed order.
  template <class Visitor>
  void visit(Visitor&& visitor) {
    for (const StageParameters<T, G, D>& stage : parameters_) {
      for (Parameter<T, G, D>* parameter : stage.parameters) visitor(*parameter);
    }
  }

  /// Marks the FP8 copies of all weights as stale: call it before a step's first micro-batch
  /// (`Mode::train`) and before an evaluation (`Mode::evaluate`). The next forward, which must run
  /// in the same mode, quantises each stage's weights just before it multiplies with them. Weights
  /// that are still being gathered from other ranks therefore need not have arrived yet.
  template <class M>
  void invalidate_weight_copies(Hooks&, const Context<D>&) {
    if constexpr (!is_frozen) driver_.invalidate_copies();
  }

  /// Quantises frozen weights. Call it before their first use and after setting them.
  void cast_frozen_weights(Hooks& hooks, const Context<D>& context)
    requires(is_frozen)
  {
    driver_.cast(ForwardFor::training, hooks, context);
  }

  /// Runs the forward, the loss and the backward of one micro-batch. The first micro-batch of a
  /// step overwrites the parameters' gradients; the others add to them. Scales do not change: the
  /// caller updates `scaling()` at the end of the step.
  ///
  /// The forward visits the flat parameters in the order of `parameters`. The head of a tied model
  /// also reads the embedding's table and writes its gradient first. `before_forward` is therefore
  /// called again with the embedding's flat parameters right before the head's, and
  /// `before_backward` right after. That gradient is final after the embedding's backward.
  /// @param batch           has documents if the model was laid out for a shape with documents
  /// @param losses          [rows], written
  /// @param gradient_scale  [1]: 1 / number of targets in the step, over all ranks
  /// @param hooks           called between the stages; see `StageHooks`
  /// @note enqueues; does not synchronise
  void train_micro_batch(const DeviceBatch<D>& batch, TensorView<float, 1, D> losses,
                         TensorView<const float, 1, D> gradient_scale, Accumulation accumulation,
                         Hooks& hooks, const Context<D>& context) {
    const MicroBatch<D> stage_batch{{batch_, batch.documents},
                                    batch.tokens,
                                    batch.targets,
                                    losses,
                                    gradient_scale,
                                    accumulation,
                                    batch.padding};
    place(stage_batch, context);
    driver_.forward(ForwardFor::training, stage_batch, {}, hooks, context);
    driver_.backward(stage_batch, {}, hooks, context);
  }

  /// Returns the number of stages: the embedding, the blocks and the head.
  [[nodiscard]] static constexpr std::size_t stages() { return config.layers + std::size_t{2}; }

  /// Runs the forward of consecutive stages in training. The head's forward is part of its
  /// backward.
  /// @param batch  its losses are written by the backward
  void forward(const MicroBatch<D>& batch, StageRange range, Hooks& hooks,
               const Context<D>& context) {
    place(batch, context);
    driver_.forward(ForwardFor::training, batch, range, hooks, context);
  }

  /// Runs the backward of consecutive stages after their forward, from the last to the first.
  void backward(const MicroBatch<D>& batch, StageRange range, Hooks& hooks,
                const Context<D>& context) {
    driver_.backward(batch, range, hooks, context);
  }

  /// Computes the losses of a batch. Does not change the state of training.
  /// @param batch   as in train_micro_batch; ignored targets have loss 0
  /// @param losses  [rows], written
  /// @param hooks   called between the stages; see `StageHooks`
  /// @note enqueues; does not synchronise; `invalidate_weight_copies<Mode::evaluate>` must be
  ///   called first
  void evaluate(const DeviceBatch<D>& batch, TensorView<float, 1, D> losses, Hooks& hooks,
                const Context<D>& context) {
    const MicroBatch<D> stage_batch{{batch_, batch.documents}, batch.tokens, batch.targets, losses};
    place(stage_batch, context);
    driver_.forward(ForwardFor::evaluation, stage_batch, {}, hooks, context);
  }

  /// Computes the logits of `count` rows starting at `begin`. Sequences may have any length up to
  /// the batch's; each is one document.
  /// @param tokens  [shape.rows()]
  /// @param count   at most `logits_rows()`
  /// @param hooks   called between the stages; see `StageHooks`
  /// @return        [count, padded vocabulary], in memory that the next operation overwrites
  /// @note enqueues; does not synchronise; `invalidate_weight_copies<Mode::evaluate>` must be
  ///   called first
  [[nodiscard]] TensorView<T, 2, D> logits(TensorView<const std::int32_t, 1, D> tokens,
                                           BatchShape shape, Index begin, Index count, Hooks& hooks,
                                           const Context<D>& context) {
    require<ShapeError>(shape.rows() <= batch_.rows() && shape.tokens <= batch_.tokens,
                        "logits: ", shape.sequences, " sequences of ", shape.tokens,
                        " tokens are more than the model was laid out for, ", batch_.sequences,
                        " of ", batch_.tokens);
    require<ShapeError>(count <= logits_rows(), "logits: ", count, " rows exceed the limit of ",
                        logits_rows(), " rows at once; request fewer");
    require<ShapeError>(shape.rows() % tensor_parallel == 0, "logits: ", shape.rows(),
                        " tokens do not divide evenly among ", tensor_parallel,
                        " ranks; pass a multiple of that number");
    const MicroBatch<D> stage_batch{{shape, {}}, tokens};
    constexpr std::size_t head = stages() - 1;
    place(stage_batch, context);
    driver_.forward(ForwardFor::evaluation, stage_batch, {0, head}, hooks, context);
    const TensorView<const T, 2, D> last = driver_.stream.before(head, shape.rows());
    TensorView<T, 2, D> logits;
    driver_.begin_reading(ForwardFor::evaluation, head, hooks, context);
    if constexpr (tensor_parallel > 1) {
      logits = head_.template logits<Mode::evaluate>(last, begin, count, context);
    } else {
      logits = head_.template logits<Mode::evaluate>(last.rows(begin, count), context);
    }
    driver_.end_reading(head, hooks, context);
    return logits;
  }

  /// Returns the maximum number of rows of logits that fit at once.
  [[nodiscard]] Index logits_rows() const { return head_.chunk(); }

  /// Resets the GEMM counts.
  void reset_counts() { manifest_.reset(); }

  /// Throws unless the GEMMs executed since `reset_counts` are exactly those of a training step.
  /// @throws ManifestError  naming the first GEMM whose count differs
  void verify_step(Index micro_batches) const {
    manifest_.verify_step(static_cast<std::uint64_t>(micro_batches),
                          static_cast<std::uint64_t>(head_chunks()));
  }

  /// Returns the number of chunks in which the head processes a micro-batch.
  [[nodiscard]] Index head_chunks() const { return head_.chunks(batch_.rows()); }

 private:
  using SegmentTuple = detail::Segments<Family, T, detail::WithoutInference<Precision>, G, D>;
  /// This rank's rows of the embedding and the head.
  static constexpr int vocabulary_rows =
      tensor_parallel == 1
          ? config.padded_vocabulary()
          : static_cast<int>(round_up(config.vocabulary, 128 * tensor_parallel)) / tensor_parallel;
  using FinalNorm = typename Family::template Norm<T, G, D>;
  using HeadLayer = std::conditional_t<
      tensor_parallel == 1,
      LanguageModelHead<T, HeadPrecision, FinalNorm, config.hidden, vocabulary_rows, G, D>,
      ParallelHead<T, HeadPrecision, FinalNorm, config.hidden, vocabulary_rows, G, D,
                   tensor_parallel>>;

  using EmbeddingLayer = typename Family::template Embedding<T, G, D>;
  using Positions = typename Family::template Positions<D>;

  /// Calls `body(block, shared)` for every block in order.
  template <class Body>
  void for_each_block(const Body& body) {
    detail::for_each_block(segments_, body);
  }

  /// Returns how many of a residual stream's `rows` belong to this rank.
  static constexpr Index own_rows(Index rows) { return rows / tensor_parallel; }

  /// Returns this rank's shard of the embedding and the head.
  [[nodiscard]] ParameterPart vocabulary_part() const {
    auto part = ParameterPart::rows(tensor_parallel, options_.tensor_rank, {vocabulary_rows, 0, 0});
    part.live_rows = config.vocabulary;
    return part;
  }
  /// Returns the number of this rank's vocabulary rows that are not padding.
  [[nodiscard]] Index live_vocabulary_rows() const {
    const Index first = Index{vocabulary_rows} * options_.tensor_rank;
    return std::clamp(config.vocabulary - first, Index{0}, Index{vocabulary_rows});
  }

  /// Prepares the exchange of rows with the ranks that share the layers.
  /// @throws ConfigError  if the rows do not divide evenly among them
  void divide_rows(Arena<D>& arena);

  /// Returns the resources that the layers share.
  [[nodiscard]] LayerRegistry<D> layer_registry(const DeviceLimits<D>& limits);
  void allocate_parameters(Arena<D>& arena, const DeviceLimits<D>& limits);

  void list_parameters();
  /// Lists the stages for the driver. Separate from the layout, because memory plans are compiled
  /// without the device code that stages call.
  void list_stages();

  /// Returns the weight of the head's projection.
  [[nodiscard]] const Parameter<T, G, D>& head_weight() const {
    return config.tied_embeddings ? embedding_.weight() : head_weight_;
  }

  void allocate_activations(Arena<D>& arena);

  [[nodiscard]] auto each_of_embedding() {
    return [this](const auto& body) { embedding_.visit(body); };
  }
  [[nodiscard]] auto each_of_head() {
    return [this](const auto& body) {
      head_.visit(body);
      if constexpr (!config.tied_embeddings) body(head_weight_);
    };
  }

  /// Returns the adapters of all blocks, which share one flat buffer because they are small.
  [[nodiscard]] auto each_of_adapters() {
    return [this](const auto& body) {
      this->for_each_block([&](auto& block, auto&) { block.visit_adapters(body); });
    };
  }

  void allocate_gradients(Arena<D>& arena);

  /// A block's saved activations are no longer needed when the stage before it computes its
  /// gradients.
  void allocate_saved_and_gradients(Arena<D>& arena);

  /// Allocates scratch memory, shared because only one segment or the head runs at a time.
  template <class HeadScratch, std::size_t... I>
  void allocate_shared_buffers(Arena<D>& arena, const HeadScratch& head_scratch,
                               std::index_sequence<I...>) {
    const auto of_segment = [&](auto& segment) {
      return [&] {
        std::remove_reference_t<decltype(segment)>::Block::allocate_shared_buffers(
            arena, segment.shared, batch_.rows(), options_.recompute);
      };
    };
    arena.overlay(head_scratch, of_segment(std::get<I>(segments_))...);
  }

  /// Allocates the memory of offloaded activations. Segments use the same buffers.
  template <std::size_t... I>
  void allocate_offloaded(Arena<D>& arena, std::index_sequence<I...>) {
    const auto allocate = [&](auto& segment, std::size_t buffer) {
      return [&arena, &segment, buffer, rows = batch_.rows()] {
        std::remove_reference_t<decltype(segment)>::Block::allocate_offloaded(arena, segment.shared,
                                                                              buffer, rows);
      };
    };
    constexpr std::size_t layers = config.layers;
    for (std::size_t buffer = 0; buffer < std::min(layers, activation_buffers); ++buffer) {
      arena.overlay(allocate(std::get<I>(segments_), buffer)...);
    }
    std::size_t layer = 0;
    for_each_block([&](auto&, auto& shared) {
      offload_.add(shared.offloaded[layer++ % activation_buffers].memory);
    });
    offload_.allocate(arena);
  }

  /// Allocates the activations that a block keeps until its backward.
  template <class Block>
  void allocate_saved(Arena<D>& arena, Block& block, const typename Block::Shared& shared,
                      std::size_t number) {
    if (options_.offload_activations) {
      block.allocate_saved_offloaded(arena, shared, number % activation_buffers, batch_.rows());
    } else {
      block.allocate_saved(arena, shared, batch_.rows());
    }
  }

  /// Checks a batch, and prepares the positions of its tokens.
  void place(const MicroBatch<D>& batch, const Context<D>& context) {
    check_shape("Decoder", "tokens", batch.tokens, {batch.rows.rows()});
    positions_.place(batch.rows, context);
  }

  struct NoGroup {};

  BatchShape batch_;
  ModelOptions options_;
  std::conditional_t<tensor_parallel == 1, NoGroup, TensorParallelGroup<D>> group_;
  Manifest manifest_;
  ScalingTable<D> scaling_;
  WeightStage<D> weight_stage_;
  LayerScratch<D> scratch_;
  FlatParameters<T, G, D> adapter_parameters_;
  FlatParameters<T, G, D> embedding_parameters_;
  FlatParameters<T, G, D> head_parameters_;
  ModelParameters<T, G, D> parameters_;
  EmbeddingLayer embedding_;
  Positions positions_;
  SegmentTuple segments_;
  HeadLayer head_;
  Parameter<T, G, D> head_weight_;
  std::array<bool, static_cast<std::size_t>(config.layers)> block_quantises_{};
  bool head_quantises_ = false;
  ActivationOffload<D> offload_;
  StageDriver<T, G, D> driver_;
  TensorView<std::byte, 1, D> workspace_;
};

}  // namespace octavo

#include <octavo/models/decoder_layout.hpp>

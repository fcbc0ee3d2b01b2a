// The memory of a decoder of any shape. Allocates the same as octavo::Decoder, in the same order.
#pragma once

#include <octavo/octavo.hpp>
#include <plan_memory/block_layout.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace planner {

namespace detail {

/// Number of blocks at the beginning and at the end of a model whose precisions differ.
template <class P>
struct Edges {
  static constexpr int first = 0;
  static constexpr int last = 0;
};
template <class... Parts>
struct Edges<octavo::Layerwise<Parts...>> {
  template <class Part>
  using Of = octavo::detail::PartTraits<Part>;
  static constexpr int first = ((Of<Parts>::is_first ? Of<Parts>::blocks : 0) + ... + 0);
  static constexpr int last = ((Of<Parts>::is_last ? Of<Parts>::blocks : 0) + ... + 0);
};
template <class P>
struct Edges<octavo::Lora<P>> : Edges<P> {};

/// Number of blocks of the smallest model that has a block between its edges.
template <class P>
inline constexpr int least_depth = Edges<P>::first + Edges<P>::last + 1;

/// Blocks of one precision: those from `Begin` to `End` of the smallest model.
template <class BlockType, int Begin, int End>
struct SegmentLayout {
  using Block = BlockType;
  static constexpr int begin = Begin;
  static constexpr int end = End;
  std::vector<Block> blocks{};
};

/// Stands for the family of the smallest model. Blocks of all kinds need the same memory.
template <class P>
struct SmallestFamily {
  struct Config {
    int layers;
  };
  static constexpr Config config{least_depth<P>};
  static constexpr int block_kind(int) { return 0; }
};

/// The segments of the smallest model, which has one block between its edges; deeper models have
/// more blocks there.
template <class P, class T, octavo::Device D, int Begin = 0, class... Done>
constexpr auto segments_of() {
  constexpr int depth = least_depth<P>;
  if constexpr (Begin >= depth) {
    return std::type_identity<std::tuple<Done...>>{};
  } else {
    constexpr int end = octavo::detail::segment_end<SmallestFamily<P>, P, Begin>();
    using Block = BlockLayout<octavo::detail::BlockPrecisionAt<SmallestFamily<P>, P, Begin>, T, D>;
    return segments_of<P, T, D, end, Done..., SegmentLayout<Block, Begin, end>>();
  }
}

}  // namespace detail

/// Returns the smallest batch shape that can run this batch.
template <class P, octavo::Device D>
octavo::BatchShape run_shape_of(const Shape& shape, octavo::BatchShape batch, Index degree) {
  const Index needed = std::lcm(Index{octavo::model_quantises<P> ? 16 : 1}, degree);
  const Index longest =
      shape.model.learns_positions() ? shape.model.positions : std::numeric_limits<Index>::max();
  return octavo::detail::decoder_run_shape<D>(batch, needed, longest);
}

/// @tparam P  as in octavo::Decoder
template <class P, octavo::Device D>
class ModelLayout {
 public:
  using T = octavo::StorageOf<P>;
  static constexpr bool is_frozen = octavo::is_lora<P>;

  /// @param degree  tensor-parallel degree
  /// @throws ConfigError  like octavo::Decoder, and if the precision does not support the shape
  ModelLayout(octavo::Arena<D>& arena, const Shape& shape, Index degree, octavo::BatchShape batch,
              octavo::ModelOptions options, const octavo::DeviceLimits<D>& limits)
      : shape_(shape),
        sizes_(shape, degree),
        vocabulary_rows_(octavo::round_up(shape.model.vocabulary, 128 * degree) / degree),
        batch_(batch),
        options_(options) {
    using octavo::MemoryKind;
    octavo::detail::check_decoder_batch(
        batch, shape.name,
        shape.model.learns_positions() ? shape.model.positions : std::numeric_limits<Index>::max());
    options_.head_chunk = octavo::detail::decoder_head_chunk(
        options_.head_chunk, octavo::round_up(shape.model.vocabulary, 128), batch.rows(),
        octavo::PrecisionTraits<HeadPrecision>::is_quantized);
    if constexpr (is_frozen) {
      octavo::detail::check_lora(options_.lora);
      options_.gradients_share_memory = false;
    }
    if (degree > 1) divide_rows(arena);
    allocate_parameters(arena, limits);
    octavo::detail::check_reduced_tokens(batch, options_.head_chunk, scaling_.size() != 0,
                                         head_is_quantized_);
    scaling_.allocate(arena);
    expert_loss_.allocate(arena);
    weight_stage_.allocate(arena);
    scratch_.allocate(arena);
    if (!options_.gradients_share_memory) allocate_gradients(arena);
    allocate_activations(arena);
    (void)arena.template allocate<std::byte>(
        MemoryKind::workspace,
        static_cast<Index>(octavo::detail::decoder_workspace<T>(
            manifest_, std::array{sizes_.block_shape(shape_.model.window), sizes_.block_shape()},
            octavo::attention_forward_of<P>, batch, options_.head_chunk, limits)));
  }

  [[nodiscard]] const octavo::ModelParameters<T, T, D>& parameters() const { return parameters_; }
  [[nodiscard]] const octavo::ScalingTable<D>& scaling() const { return scaling_; }
  [[nodiscard]] const octavo::Manifest& manifest() const { return manifest_; }

 private:
  using Parameters = octavo::FlatParameters<T, T, D>;
  using Parameter = octavo::Parameter<T, T, D>;
  using Segments = typename decltype(detail::segments_of<P, T, D>())::type;
  using HeadPrecision = octavo::PrecisionOf<P, 0, detail::least_depth<P>, octavo::LinearRole::head>;
  using Head = ProjectionLayout<HeadPrecision, D>;
  static constexpr auto activations = octavo::MemoryKind::activations;

  /// Calls `body(block)` for every block in order.
  template <class Body>
  void for_each_block(const Body& body) {
    const auto in_segment = [&](auto& segment) {
      for (auto& block : segment.blocks) body(block);
    };
    std::apply([&](auto&... segment) { (in_segment(segment), ...); }, segments_);
  }

  void make_blocks() {
    constexpr int first = detail::Edges<P>::first;
    constexpr int edges = detail::least_depth<P> - 1;
    octavo::require<octavo::ConfigError>(shape_.model.layers > edges,
                                         "First and Last of the precision select ", edges,
                                         " blocks, but ", shape_.name, " has ", shape_.model.layers,
                                         " layers; choose another --precision");
    const Index deeper = shape_.model.layers - (edges + 1);
    const auto place = [&](int boundary) {
      return boundary <= first ? boundary : boundary + deeper;
    };
    const auto make = [&]<class Segment>(Segment& segment) {
      segment.blocks = std::vector<typename Segment::Block>(
          static_cast<std::size_t>(place(Segment::end) - place(Segment::begin)));
    };
    std::apply([&](auto&... segment) { (make(segment), ...); }, segments_);
  }

  void divide_rows(octavo::Arena<D>& arena) {
    octavo::require<octavo::ConfigError>(batch_.rows() % sizes_.degree == 0, "the batch has ",
                                         batch_.sequences, " x ", batch_.tokens,
                                         " tokens, which must be a multiple of the ", sizes_.degree,
                                         " ranks that share each layer");
    options_.head_chunk = octavo::round_up(options_.head_chunk, sizes_.degree);
    group_.allocate(arena, batch_.rows() * sizes_.hidden * static_cast<Index>(sizeof(T)));
    auto part = octavo::ParameterPart::rows(static_cast<int>(sizes_.degree), options_.tensor_rank,
                                            {vocabulary_rows_, 0, 0});
    part.live_rows = shape_.model.vocabulary;
    table_.part = head_weight_.part = part;
    (void)arena.template allocate<std::int32_t>(activations, batch_.rows());
  }

  void allocate_parameters(octavo::Arena<D>& arena, const octavo::DeviceLimits<D>& limits) {
    const bool ties = shape_.model.tied_embeddings;
    octavo::LayerRegistry<D> registry{
        &scaling_,
        &manifest_,
        options_.weight_copies == octavo::WeightCopies::remade ? &weight_stage_ : nullptr,
        batch_,
        limits,
        {.multiple = options_.flat_multiple,
         .fp8_values = options_.gather_weights_in_fp8,
         .gathered = options_.weights_are_gathered,
         .keeps_fp8_values = options_.weight_copies == octavo::WeightCopies::kept,
         .frozen = is_frozen}};
    registry.scratch = &scratch_;
    registry.lora = options_.lora;
    registry.tensor_rank = options_.tensor_rank;
    registry.expert_loss = &expert_loss_;
    table_.declare("embedding.weight", vocabulary_rows_, sizes_.hidden, {});
    if (shape_.model.learns_positions()) {
      positions_.declare("positions.weight", shape_.model.positions, sizes_.hidden, {});
    }
    make_blocks();
    std::size_t layer = 0;
    std::array<const Parameters*, 2> lenders{};  // two before, and the one before
    for_each_block([&](auto& block) {
      block.allocate(arena, sizes_, "blocks." + std::to_string(layer++), registry,
                     options_.recompute, options_.weights_are_gathered ? lenders[0] : nullptr);
      lenders = {lenders[1], &block.flat_parameters()};
    });
    const std::size_t operands = scaling_.size();
    final_norm_.declare("final_norm", sizes_);
    head_.declare_layer("head", registry, sizes_.hidden, vocabulary_rows_,
                        {.is_head = true, .tokens = sizes_.degree == 1 ? options_.head_chunk : 0});
    head_is_quantized_ = scaling_.size() != operands;
    if (!ties) head_weight_.declare("head.weight", vocabulary_rows_, sizes_.hidden, {});
    const octavo::FlatLayout layout{.multiple = options_.flat_multiple, .frozen = is_frozen};
    if constexpr (is_frozen) {
      adapter_parameters_.allocate_weights(arena, each_of_adapters(),
                                           {.multiple = options_.flat_multiple});
    }
    head_parameters_.allocate_weights(arena, each_of_head(), layout);
    const bool borrows = options_.weights_are_gathered && !ties;
    embedding_parameters_.allocate_weights(arena, each_of_embedding(), layout,
                                           borrows ? &head_parameters_ : nullptr);
    head_.allocate_weight_copies(arena, ties ? table_ : head_weight_);
    list_parameters();
  }

  void list_parameters() {
    const auto add = [this](const Parameters& flat, const auto& each) {
      octavo::StageParameters<T, T, D>& stage = parameters_.emplace_back();
      stage.flat = &flat;
      each([&stage](Parameter& parameter) { stage.parameters.push_back(&parameter); });
    };
    if constexpr (is_frozen) add(adapter_parameters_, each_of_adapters());
    add(embedding_parameters_, each_of_embedding());
    for_each_block([&](auto& block) {
      add(block.flat_parameters(), [&](const auto& body) { block.visit(body); });
    });
    add(head_parameters_, each_of_head());
  }

  void allocate_gradients(octavo::Arena<D>& arena) {
    if constexpr (is_frozen) {
      adapter_parameters_.allocate_gradients(arena, each_of_adapters());
    } else {
      const bool borrows = options_.gradients_are_sent;
      const bool is_dead = borrows && !shape_.model.tied_embeddings;
      head_parameters_.allocate_gradients(arena, each_of_head());
      embedding_parameters_.allocate_gradients(arena, each_of_embedding(),
                                               is_dead ? &head_parameters_ : nullptr);
      std::array<const Parameters*, 2> lenders{};
      for_each_block([&](auto& block) {
        block.allocate_gradients(arena, borrows ? lenders[0] : nullptr);
        lenders = {lenders[1], &block.flat_parameters()};
      });
    }
  }

  void allocate_activations(octavo::Arena<D>& arena) {
    const Index rows = batch_.rows();
    if (!shape_.model.learns_positions()) {
      const int tables = shape_.model.local_rope_theta == 0 ? 1 : 2;
      octavo::RoPE<D>().allocate(arena, batch_, sizes_.head_dim, tables);
    }
    const Index own = rows / sizes_.degree * sizes_.hidden;
    // The residual stream before and after each block, and its gradient.
    for (Index i = 0; i < shape_.model.layers + 2; ++i) {
      (void)arena.template allocate<T>(activations, own);
    }
    const auto of_segment = [&]<class Segment>(Segment&) {
      return
          [&] { Segment::Block::allocate_shared_buffers(arena, sizes_, rows, options_.recompute); };
    };
    std::apply(
        [&](auto&... segment) {
          arena.overlay([&] { allocate_head_scratch(arena); }, of_segment(segment)...);
        },
        segments_);
    if (options_.offload_activations) allocate_offloaded(arena);
    if (options_.gradients_share_memory) {
      allocate_saved_and_gradients(arena);
    } else {
      for_each_block([&](auto& block) { allocate_saved(arena, block); });
    }
  }

  /// Allocates the buffers for offloaded activations, and the host memory of blocks that do not
  /// remain in them.
  void allocate_offloaded(octavo::Arena<D>& arena) {
    const auto layers = static_cast<std::size_t>(shape_.model.layers);
    const std::size_t buffers = std::min(layers, octavo::activation_buffers);
    const auto of_segment = [&]<class Segment>(Segment&) {
      return [&] { (void)Segment::Block::allocate_offloaded(arena, sizes_, batch_.rows()); };
    };
    for (std::size_t buffer = 0; buffer < buffers; ++buffer) {
      std::apply([&](auto&... segment) { arena.overlay(of_segment(segment)...); }, segments_);
    }
    std::size_t layer = 0;
    for_each_block([&]<class Block>(Block&) {
      if (layer++ >= layers - buffers) return;
      octavo::Arena<D> measuring;
      const std::size_t bytes = Block::allocate_offloaded(measuring, sizes_, batch_.rows()).bytes;
      (void)arena.template allocate_host<std::byte>(static_cast<Index>(bytes));
    });
  }

  template <class Block>
  void allocate_saved(octavo::Arena<D>& arena, const Block&) const {
    Block::allocate_saved(arena, sizes_, batch_.rows(), options_.recompute,
                          options_.offload_activations);
  }

  /// Same as octavo::LanguageModelHead, or octavo::ParallelHead with tensor parallelism.
  void allocate_head_scratch(octavo::Arena<D>& arena) {
    const Index chunk = options_.head_chunk;
    const Index degree = sizes_.degree;
    const auto allocate_both = [&](auto memory, Index values_rows, Index columns) {
      memory.allocate_values(arena, activations, values_rows, columns);
      memory.allocate_row_major(arena, activations, chunk, columns);
      if constexpr (Head::Layer::quantized) {
        memory.allocate_transposed(arena, activations, chunk, columns);
      }
    };
    allocate_both(typename Head::Layer::InputMemory(), chunk, sizes_.hidden);
    allocate_both(typename Head::Layer::OutputGradientMemory(),
                  degree == 1 ? chunk : std::max(chunk, degree + 1), vocabulary_rows_);
    (void)arena.template allocate<float>(activations, sizes_.statistics() * chunk);
    (void)arena.template allocate<T>(activations, chunk / degree * sizes_.hidden);
    if (degree == 1) return;
    (void)arena.template allocate<std::int32_t>(activations, chunk);
    (void)arena.template allocate<float>(activations, chunk);
    (void)arena.template allocate<octavo::LogitSum>(activations, (degree + 1) * chunk);
  }

  /// Activations that a block saved are dead when the block before it, or the embedding, computes
  /// its gradients.
  void allocate_saved_and_gradients(octavo::Arena<D>& arena) {
    const auto allocate_embeddings = [&] {
      embedding_parameters_.allocate_gradients(arena, each_of_embedding());
    };
    std::function<void()> allocate_previous = [] {};
    if (shape_.model.tied_embeddings) {
      allocate_embeddings();
    } else {
      allocate_previous = allocate_embeddings;
    }
    head_parameters_.allocate_gradients(arena, each_of_head());
    for_each_block([&](auto& block) {
      arena.overlay([&] { allocate_saved(arena, block); }, allocate_previous);
      allocate_previous = [&arena, &block] { block.allocate_gradients(arena); };
    });
    allocate_previous();
  }

  [[nodiscard]] auto each_of_embedding() {
    return [this](const auto& body) {
      body(table_);
      if (shape_.model.learns_positions()) body(positions_);
    };
  }
  [[nodiscard]] auto each_of_head() {
    return [this](const auto& body) {
      final_norm_.visit(body);
      if (!shape_.model.tied_embeddings) body(head_weight_);
    };
  }
  [[nodiscard]] auto each_of_adapters() {
    return [this](const auto& body) {
      this->for_each_block([&](auto& block) { block.visit_adapters(body); });
    };
  }

  Shape shape_;
  BlockSizes sizes_;
  Index vocabulary_rows_;  ///< rows of the embedding and the head on this rank
  octavo::BatchShape batch_;
  octavo::ModelOptions options_;
  octavo::TensorParallelGroup<D> group_;
  octavo::Manifest manifest_;
  octavo::ScalingTable<D> scaling_;
  octavo::ExpertLoss<D> expert_loss_;
  octavo::WeightStage<D> weight_stage_;
  octavo::LayerScratch<D> scratch_;
  Parameters adapter_parameters_;
  Parameters embedding_parameters_;
  Parameters head_parameters_;
  octavo::ModelParameters<T, T, D> parameters_;
  Parameter table_;
  Parameter positions_;
  Segments segments_;
  bool head_is_quantized_ = false;
  NormLayout<T, D> final_norm_;
  Head head_;
  Parameter head_weight_;
};

}  // namespace planner

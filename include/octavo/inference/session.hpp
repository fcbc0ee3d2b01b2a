/// @file
/// An inference session: a model, its memory, and one text.
#pragma once

#include <octavo/inference/inferring.hpp>
#include <octavo/inference/model.hpp>
#include <octavo/session/weight_upload.hpp>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// The content of an inference session's arena.
template <class Family, class Precision, Device D>
struct InferenceParts {
  using T = StorageOf<Precision>;

  InferenceParts(Arena<D>& arena, InferenceShape shape, const DeviceLimits<D>& limits)
      : model(arena, shape, limits) {
    const Index elements = 2 * model.shape().piece;
    inputs = {arena.template allocate<std::int32_t>(MemoryKind::activations, elements), {elements}};
    logits = arena.template allocate_host<T>(decltype(model)::config.vocabulary);
  }

  InferenceModel<Family, Precision, D> model;
  TensorView<std::int32_t, 1, D> inputs;  ///< [2 · piece]: tokens of a piece, then their positions
  T* logits;                              ///< [vocabulary], pinned host memory
};

}  // namespace detail

/// Computes the memory that an inference session needs, without allocating it.
/// @throws ConfigError  for an invalid shape
template <class Family, class Precision, Device D>
[[nodiscard]] MemoryPlan plan_inference(InferenceShape shape, const DeviceLimits<D>& limits) {
  Arena<D> arena;
  const detail::InferenceParts<Family, Precision, D> parts(arena, shape, limits);
  return arena.plan();
}

/// An inference session: the weights of one model and a text with its KV cache. Reading the weights
/// and the cache once determines the time per token. The constructor allocates all memory. On
/// `Cuda`, the step by one token is recorded and launched as a graph.
/// @tparam Family     such as `LlamaFamily<llama3_8b>`; see `PresetFamily`
/// @tparam Precision  as of a `Decoder`; `Inference` defines its meaning here
template <class Family, class Precision, Device D>
class InferenceSession final : public Inferring {
 public:
  using Model = InferenceModel<Family, Precision, D>;
  using T = typename Model::T;

  /// @param context  outlives the session
  /// @throws ConfigError  for an invalid shape
  InferenceSession(InferenceShape shape, Context<D>& context)
      : context_(context),
        arena_(plan_inference<Family, Precision, D>(shape, context), context),
        parts_(arena_, shape, context),
        facts_(Model::facts()),
        staging_(parts_.inputs.bytes(), context) {
    fill([&](const Parameter<T, T, D>& parameter) {
      weights_.push_back(info(parameter));
      fill_zero(parameter.weight.data(), parameter.weight.bytes(), context);
    });
    multiplied_bytes_ = parts_.model.multiplied_bytes();
  }

  [[nodiscard]] const ModelFacts& facts() const override { return facts_; }
  [[nodiscard]] Index length() const override { return length_; }
  [[nodiscard]] Index longest() const override { return parts_.model.shape().longest; }
  [[nodiscard]] Index piece() const override { return parts_.model.shape().piece; }
  [[nodiscard]] std::string precision() const override { return Model::precision(); }
  [[nodiscard]] const MemoryPlan& memory() const override { return arena_.plan(); }
  [[nodiscard]] const ReplayCounts& replays() const override { return replay_.counts(); }

  void truncate(Index length) override {
    detail::check_truncated(length, length_);
    length_ = length;
  }

  void append(std::span<const std::int32_t> tokens, std::span<float> logits) override {
    require<UsageError>(has_weights_, "the inference of ", facts_.name,
                        " has no weights yet; load weights, for example with load_hugging_face, or "
                        "create random ones with initialize_sync");
    detail::check_appended(*this, tokens, logits.size());
    parts_.model.bind(context_);
    const auto piece = static_cast<std::size_t>(parts_.model.shape().piece);
    while (tokens.size() > piece) {
      copy_inputs(tokens.first(piece));
      extend(static_cast<Index>(piece));
      context_.synchronize();  // the next piece is copied to the same memory
      length_ += static_cast<Index>(piece);
      tokens = tokens.subspan(piece);
    }
    const auto count = static_cast<Index>(tokens.size());
    copy_inputs(tokens);
    const auto last = [&] {
      extend(count);
      if (logits.empty()) return;
      const auto result = parts_.model.next_logits(count, context_);
      copy_to_host(parts_.logits, result.data(), logits.size() * sizeof(T), context_);
    };
    if (count == 1 && !logits.empty()) {
      replay_.run(context_, last);
    } else {
      last();
    }
    context_.synchronize();
    length_ += count;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits[i] = static_cast<float>(parts_.logits[i]);
    }
  }

  [[nodiscard]] std::vector<WeightInfo> weights() const override { return weights_; }

  void load_sync(const ModelWeights& source) override {
    using Upload = detail::WeightUpload<T, D>;
    using Piece = typename Upload::Piece;
    Upload upload(context_);
    fill([&](const Parameter<T, T, D>& parameter) {
      const WeightInfo weight = info(parameter);
      const WeightSource of_weight = [&](Index begin, std::span<float> values) {
        source(weight, begin, values);
      };
      upload.run_sync(
          parameter.weight.size(),
          [&](const Piece& piece) {
            detail::take_elements(parameter.part, parameter.weight.shape(), parameter.full_size(),
                                  of_weight, piece.begin, piece.values);
            std::transform(piece.values.begin(), piece.values.end(), piece.rounded.begin(),
                           [](float value) { return T(value); });
            check_finite(weight.name, piece.begin, piece.rounded);
          },
          [&](const Piece& piece) {
            copy_to_device(parameter.weight.data() + piece.begin, piece.rounded.data(),
                           piece.rounded.size_bytes(), context_);
          });
    });
    has_weights_ = true;
  }

  void initialize_sync(std::uint64_t seed) override {
    std::uint64_t stream = 0;
    fill([&](const Parameter<T, T, D>& parameter) {
      octavo::initialize(parameter, RandomStream{seed, stream++}, context_);
    });
    has_weights_ = true;
  }

  [[nodiscard]] std::size_t bytes_of_step(Index length) const override {
    Index cached = 0;  // values that attention reads
    for (int layer = 0; layer < Model::config.layers; ++layer) {
      const auto kind = static_cast<std::size_t>(Model::FamilyType::block_kind(layer));
      const BlockShape block = Model::FamilyType::block_shapes[kind];
      const Index tokens = block.window == 0 ? length : std::min<Index>(length, block.window);
      cached += 2 * tokens * block.kv_heads * block.head_dim;
    }
    return multiplied_bytes_ + static_cast<std::size_t>(cached) * sizeof(T);
  }

 private:
  static WeightInfo info(const Parameter<T, T, D>& parameter) {
    const Index columns = parameter.weight.extent(1);
    return {parameter.name, FormatTraits<T>::name, parameter.full_size() / columns, columns};
  }

  static void check_finite(const std::string& name, Index begin, std::span<const T> values) {
    const auto wrong = std::find_if(values.begin(), values.end(), [](T value) {
      return !std::isfinite(static_cast<float>(value));
    });
    require<ConfigError>(wrong == values.end(), name, ": element ",
                         begin + (wrong - values.begin()), " must be finite in ",
                         FormatTraits<T>::name, ", the weight's format, but is ",
                         wrong == values.end() ? 0.0f : static_cast<float>(*wrong));
  }

  /// Sets every parameter by `set(parameter)` and clears the text.
  template <class Set>
  void fill(const Set& set) {
    length_ = 0;
    parts_.model.bind(context_);
    parts_.model.fill_weights(set, context_);
    context_.synchronize();
  }

  /// Copies the tokens of a piece and then their positions to the device.
  void copy_inputs(std::span<const std::int32_t> tokens) {
    input_.assign(tokens.begin(), tokens.end());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      input_.push_back(static_cast<std::int32_t>(length_) + static_cast<std::int32_t>(i));
    }
    staging_.begin();
    staging_.copy(parts_.inputs.data(), input_.data(), input_.size() * sizeof(std::int32_t),
                  context_);
  }

  void extend(Index count) {
    parts_.model.extend(parts_.inputs.rows(0, count), parts_.inputs.rows(count, count), context_);
  }

  Context<D>& context_;
  Arena<D> arena_;
  detail::InferenceParts<Family, Precision, D> parts_;
  ModelFacts facts_;
  std::vector<WeightInfo> weights_;
  std::size_t multiplied_bytes_ = 0;
  Staging<D> staging_;
  Replay<D> replay_;
  std::vector<std::int32_t> input_;  ///< staging memory for the device
  Index length_ = 0;
  bool has_weights_ = false;  ///< weights were loaded or initialized
};

}  // namespace octavo

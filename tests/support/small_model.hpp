#pragma once

#include <octavo/models/models.hpp>
#include <octavo/session/session.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

/// A model that trains in milliseconds in every recipe, its data, and views of its state.
namespace support {

/// Every recipe can serve its shape: all features are multiples of 128.
inline constexpr octavo::LlamaConfig small{.name = "small",
                                           .layers = 3,
                                           .hidden = 128,
                                           .ffn = 128,
                                           .heads = 2,
                                           .kv_heads = 1,
                                           .head_dim = 64,
                                           .vocabulary = 96,
                                           .rope_theta = 10000.0f};

template <class Precision>
using SmallModel = octavo::Llama<small, Precision, octavo::Cpu>;
template <class Precision, class Optimizer = octavo::AdamW<>>
using SmallSession = octavo::ModelSession<SmallModel<Precision>, Optimizer>;

/// Blocks of three precisions: BF16, a recipe, BF16.
using MixedPrecision =
    octavo::Layerwise<octavo::First<1, octavo::Bf16>, octavo::Fp8Recipe<octavo::Delayed>,
                      octavo::Last<1, octavo::Bf16>>;

/// Tokens and the tokens that follow them.
struct TokenBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
};

/// A text in which three of four tokens follow from the one before: something to learn, and noise
/// that keeps the loss away from 0.
inline TokenBatch make_batch(std::size_t rows, int vocabulary, unsigned seed) {
  std::mt19937 random(seed);
  const auto size = static_cast<std::uint32_t>(vocabulary);
  TokenBatch batch;
  std::uint32_t token = static_cast<std::uint32_t>(random()) % size;
  for (std::size_t i = 0; i < rows; ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(token));
    const bool noise = random() % 4 == 0;
    token = (noise ? static_cast<std::uint32_t>(random()) : 5 * token + 7) % size;
    batch.targets.push_back(static_cast<std::int32_t>(token));
  }
  return batch;
}

inline octavo::SessionOptions small_options() {
  octavo::SessionOptions options;
  options.batch = {2, 48};
  options.seed = 7;
  return options;
}

/// The batch of step `number` of a run with `options`.
inline TokenBatch step_batch(const octavo::SessionOptions& options, unsigned number) {
  return make_batch(static_cast<std::size_t>(options.batch.rows() * options.micro_batches),
                    small.vocabulary, 100 + number);
}

template <class View>
void append_bytes(std::vector<std::byte>& bytes, const View& view) {
  const auto* begin = reinterpret_cast<const std::byte*>(view.data());
  bytes.insert(bytes.end(), begin, begin + view.bytes());
}

/// The bits of all weights.
template <class Session>
std::vector<std::byte> weights(Session& session) {
  std::vector<std::byte> bytes;
  session.model().visit([&](auto& parameter) { append_bytes(bytes, parameter.weight); });
  return bytes;
}

/// The bits of all gradients of the last step.
template <class Session>
std::vector<std::byte> weight_gradients(Session& session) {
  std::vector<std::byte> bytes;
  session.model().visit([&](auto& parameter) { append_bytes(bytes, parameter.gradient); });
  return bytes;
}

/// The bits of all scaling slots and amax histories.
template <class Session>
std::vector<std::byte> scaling_state(Session& session) {
  std::vector<std::byte> bytes;
  append_bytes(bytes, session.model().scaling().state());
  return bytes;
}

/// The weight called `name`.
template <class Session>
auto weight(Session& session, const std::string& name) {
  using Element = typename std::remove_reference_t<decltype(session.model())>::T;
  octavo::TensorView<Element, 2, octavo::Cpu> found;
  session.model().visit([&](auto& parameter) {
    if (parameter.name == name) found = parameter.weight;
  });
  octavo::require<octavo::ConfigError>(!found.empty(), "the model has no parameter ", name);
  return found;
}

}  // namespace support

// Adapters that are merged into weights which come in pieces: W + alpha / rank · B · A.
#include <gtest/gtest.h>
#include <octavo/models/llama_config.hpp>
#include <octavo/models/model_description.hpp>
#include <octavo/session/merged_adapters.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace merged_adapters_test {

using namespace octavo;

constexpr LlamaConfig config{.name = "tiny",
                             .layers = 2,
                             .hidden = 16,
                             .ffn = 24,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 4,
                             .vocabulary = 20,
                             .rope_theta = 100.0f};
constexpr std::size_t columns = 16;
constexpr std::size_t queries = 16;  // rows of queries, then of keys, then of values
constexpr std::size_t keys = 8;
constexpr std::size_t rows = queries + 2 * keys;
constexpr std::size_t rank = 3;

std::vector<float> telling_values(std::size_t count, std::size_t factor) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(i * factor % 31) / 16 - 1;
  }
  return values;
}

TEST(MergedAdapters, PiecesMayBeginWithinRow) {
  LoraOptions options{.rank = rank, .alpha = 5};
  set_lora_targets(options, {"q_proj", "v_proj"});
  detail::MergedAdapters merged(description_of(config), options);
  const std::vector<float> a = telling_values(2 * rank * columns, 7);
  const std::vector<float> b = telling_values((queries + keys) * rank, 11);
  // Ranks that share a layer give their parts in any order.
  merged.take("blocks.1.qkv.lora_A", 20, std::span(a).subspan(20, 30));
  merged.take("blocks.1.qkv.lora_A", 0, std::span(a).first(20));
  merged.take("blocks.1.qkv.lora_A", 50, std::span(a).subspan(50));
  merged.take("blocks.1.qkv.lora_B", 0, b);
  const std::vector<float> before = telling_values(rows * columns, 13);
  for (const std::size_t size : {std::size_t{7}, std::size_t{100}, rows * columns}) {
    std::vector<float> weight = before;
    for (std::size_t begin = 0; begin < weight.size(); begin += size) {
      merged.merge("blocks.1.qkv.weight", static_cast<Index>(begin),
                   std::span(weight).subspan(begin, std::min(size, weight.size() - begin)));
    }
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const std::size_t row = i / columns;
      double expected = static_cast<double>(before[i]);
      const bool is_value = row >= queries + keys;
      for (std::size_t k = 0; k < rank && (row < queries || is_value); ++k) {
        const std::size_t row_of_b = is_value ? row - keys : row;
        const std::size_t row_of_a = is_value ? rank + k : k;
        expected += 5.0 / rank * static_cast<double>(b[row_of_b * rank + k]) *
                    static_cast<double>(a[row_of_a * columns + i % columns]);
      }
      ASSERT_NEAR(weight[i], expected, 1e-5) << i << " in pieces of " << size;
    }
  }
}

}  // namespace merged_adapters_test

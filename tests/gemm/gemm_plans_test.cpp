// What the choice of GEMMs' algorithms depends on, and the records that are kept of it. All of it
// needs no GPU.
#include <octavo/attention/cuda/workspace.hpp>
#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/gemm/gemm_plans.hpp>
#include <octavo/octavo.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/small_model.hpp"

namespace octavo {

// What gtest, which knows it by this name, prints of a product: a line with every field.
void PrintTo(  // NOLINT(readability-identifier-naming)
    const GemmKey& key, std::ostream* out) {
  GemmPlanRecord record;
  record.key = key;
  *out << '\n' << detail::record_text(record).substr(0, 250);
}

namespace gemm_plans_test {

using enum GemmFormat;

GemmPlanRecord record(Index m, const char* card = "NVIDIA H200") {
  GemmPlanRecord made;
  made.library = {detail::without_blanks(card), 132, 130100};
  made.key.m = m;
  made.key.n = 6144;
  made.key.k = 4096;
  made.key.a = e5m2;
  made.key.b = e4m3;
  made.key.result = bf16;
  made.key.scales_a = GemmScales::rows_of_128;
  made.key.scales_b = GemmScales::squares_of_128;
  made.key.transpose_b = true;
  made.microseconds = 251.5;
  for (std::size_t i = 0; i < made.algorithm.size(); ++i) {
    made.algorithm[i] = 0x0123456789abcdefu * (i + 1) * static_cast<std::uint64_t>(m);
  }
  return made;
}

/// Records that differ in every field.
std::vector<GemmPlanRecord> many_records() {
  std::vector<GemmPlanRecord> records{record(16), record(8192, "NVIDIA H100 80GB HBM3")};
  GemmPlanRecord dense = record(1);
  dense.library = {"other", 1, 1};
  dense.key.a = dense.key.b = dense.key.result = fp32;
  dense.key.scales_a = dense.key.scales_b = GemmScales::none;
  dense.key.transpose_a = dense.key.adds = true;
  dense.key.transpose_b = false;
  dense.key.bias = true;
  dense.key.alignment = 16;
  dense.microseconds = 0;
  dense.algorithm.fill(~std::uint64_t{0});
  records.push_back(dense);
  GemmPlanRecord fast = record(2);
  fast.key.scales_a = fast.key.scales_b = GemmScales::tensor;
  fast.key.fast_accumulation = fast.key.bias = true;
  records.push_back(fast);
  GemmPlanRecord nvfp4 = record(4);
  nvfp4.key.a = nvfp4.key.b = e2m1;
  nvfp4.key.scales_a = GemmScales::rows_of_16;
  nvfp4.key.scales_b = GemmScales::squares_of_16;
  records.push_back(nvfp4);
  return records;
}

/// What reading complains about, or nothing.
std::string complaint(const std::string& text) {
  try {
    (void)read_gemm_plans(text, "plans.txt");
    return "";
  } catch (const IoError& error) {
    return error.what();
  }
}

TEST(GemmPlanText, RoundTrips) {
  const std::vector<GemmPlanRecord> records = many_records();
  const std::string text = gemm_plans_text(records);
  EXPECT_EQ(read_gemm_plans(text, "plans.txt"), records);
  EXPECT_EQ(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')),
            records.size() + 1);
  EXPECT_TRUE(read_gemm_plans(gemm_plans_text({}), "plans.txt").empty());
  EXPECT_TRUE(read_gemm_plans("", "plans.txt").empty());
}

TEST(GemmPlanText, FormatIsStable) {
  // Files of earlier versions stay readable. The checksum, FNV-1a, was computed with Python.
  const std::string line =
      "card=NVIDIA_H200 multiprocessors=132 cublaslt=130100 m=8192 n=6144 k=4096 a=E4M3 b=E4M3 "
      "result=bf16 scales_a=tensor scales_b=tensor transpose_a=0 transpose_b=1 adds=0 "
      "fast_accumulation=1 alignment=256 microseconds=251.3 "
      "algorithm=00000000000000420000000000000001000000000000000200000000000000030000000000000004"
      "00000000000000050000000000000006ffffffffffffffff checksum=27842923\n";
  const auto records = read_gemm_plans("# octavo gemm plans 2\n" + line, "plans.txt");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].library, (GemmLibrary{"NVIDIA_H200", 132, 130100}));
  EXPECT_EQ(gemm_text(records[0].key),
            "E4M3 x E4M3 transposed -> bf16, 8192 x 6144 x 4096 (m x n x k), addresses at "
            "multiples of 256 bytes");
  EXPECT_TRUE(records[0].key.fast_accumulation);
  EXPECT_EQ(records[0].key.scales_a, GemmScales::tensor);
  EXPECT_DOUBLE_EQ(records[0].microseconds, 251.3);
  EXPECT_EQ(records[0].algorithm[0], 0x42u);
  EXPECT_EQ(records[0].algorithm[7], ~std::uint64_t{0});
  EXPECT_EQ(gemm_plans_text(records), "# octavo gemm plans 2\n" + line);
}

TEST(GemmPlanText, ReportsFileAndLineOfEveryChangedCharacter) {
  const std::string text = gemm_plans_text(many_records());
  const std::size_t second = text.find('\n') + 1;
  const std::size_t third = text.find('\n', second) + 1;
  for (std::size_t i = second; i + 1 < third; ++i) {
    for (const char letter : {'0', '7', 'a', ' ', '=', '\t'}) {
      std::string changed = text;
      if (changed[i] == letter) continue;
      changed[i] = letter;
      ASSERT_EQ(complaint(changed).find("plans.txt:2: "), 0u)
          << "letter " << i << " became '" << letter << "': " << complaint(changed);
    }
  }
}

TEST(GemmPlanText, DetectsEveryTruncationWithinLine) {
  const std::string text = gemm_plans_text(many_records());
  for (std::size_t size = 1; size < text.size(); ++size) {
    const bool whole = text[size] == '\n' || text[size - 1] == '\n';
    const std::string message = complaint(text.substr(0, size));
    ASSERT_EQ(message.empty(), whole) << size << " letters: " << message;
    if (whole) continue;
    const auto line =
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size), '\n');
    ASSERT_EQ(message.find(octavo::message("plans.txt:", line + 1, ": ")), 0u) << message;
  }
}

TEST(GemmPlanText, WritesCardNameAsOneWord) {
  GemmPlanRecord spaced = record(16);
  spaced.library.card = "NVIDIA H200\tSXM";
  GemmPlanRecord nameless = record(32);
  nameless.library.card = "";
  const auto read = read_gemm_plans(gemm_plans_text(std::vector{spaced, nameless}), "plans.txt");
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].library.card, "NVIDIA_H200_SXM");
  EXPECT_EQ(read[1].library.card, "_");
}

/// A line with a checksum that fits.
std::string signed_line(const std::string& line) {
  std::ostringstream text;
  text << "# octavo gemm plans 2\n"
       << line << " checksum=" << std::hex << std::setw(8) << std::setfill('0')
       << detail::text_checksum(line) << '\n';
  return text.str();
}

TEST(GemmPlanText, MessagesSayWhatIsWrong) {
  const std::string good = detail::record_text(record(16));
  ASSERT_EQ(complaint(signed_line(good)), "");
  const auto replaced = [&](const std::string& what, const std::string& with) {
    std::string line = good;
    return complaint(signed_line(line.replace(line.find(what), what.size(), with)));
  };
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos ? "" : text + " lacks " + part;
  };
  EXPECT_EQ(says(replaced("m=16", "m=0"), "m is '0', but must be a number from 1"), "");
  EXPECT_EQ(says(replaced("m=16", "m=16x"), "m is '16x'"), "");
  EXPECT_EQ(says(replaced("a=E5M2", "a=E3M4"), "a is 'E3M4', which is unknown"), "");
  EXPECT_EQ(says(replaced("adds=0", "adds=4"), "adds is '4', but must be a number from 0 to 3"),
            "");
  EXPECT_EQ(says(replaced("alignment=256", "align=256"), "expected 'alignment='"), "");
  EXPECT_EQ(says(replaced("microseconds=251.5", "microseconds=inf"), "not a number"), "");
  EXPECT_EQ(says(replaced("algorithm=", "algorithm=0"), "129 digits instead of 128"), "");
  EXPECT_EQ(says(complaint(signed_line(good + " more=1")), "must not follow the last value"), "");
  EXPECT_EQ(says(complaint("# octavo gemm plans 1\n"), "plans.txt:1: the title"), "");
  EXPECT_EQ(says(complaint("# octavo gemm plans 2\n" + good + '\n'), "checksum"), "");
  EXPECT_EQ(says(complaint("# octavo gemm plans 2\n\n"), "plans.txt:2: "), "");
}

TEST(GemmPlanText, MergeReplacesOnlySameProductAndLibrary) {
  GemmPlanRecord newer = record(16);
  newer.algorithm.fill(7);
  GemmPlanRecord updated_library = record(16);
  updated_library.library.version = 130200;
  GemmPlanRecord half_card = record(16);
  half_card.library.multiprocessors = 66;
  const std::vector<GemmPlanRecord> known{record(32), record(16)};
  const auto merged = merged_gemm_plans(known, std::vector{newer, updated_library, half_card});
  ASSERT_EQ(merged.size(), 4u);
  const auto has = [&](const GemmPlanRecord& wanted) {
    return std::count(merged.begin(), merged.end(), wanted) == 1;
  };
  EXPECT_TRUE(has(newer));
  EXPECT_TRUE(has(updated_library));
  EXPECT_TRUE(has(half_card));
  EXPECT_TRUE(has(record(32)));
  EXPECT_FALSE(has(record(16)));
  EXPECT_EQ(merged_gemm_plans(merged, std::vector{newer}), merged);
  EXPECT_EQ(merged_gemm_plans({record(16), record(32)}, {}),
            merged_gemm_plans({record(32), record(16)}, {}));
}

TEST(GemmPlanText, SummaryCountsPlansBySource) {
  EXPECT_EQ(GemmPlanSummary{}.text(), "");
  GemmPlanSummary summary;
  summary.rehearsed = 20;
  summary.recorded = 2;
  summary.seconds = 9.84;
  EXPECT_EQ(summary.text(), "20 chosen in a rehearsal, 2 taken from records, in 9.8 s");
  summary.heuristic_pass = 955.04;
  summary.rehearsed_pass = 951.2;
  EXPECT_EQ(summary.text(),
            "20 chosen in a rehearsal, 2 taken from records, in 9.8 s\n"
            "  rehearsed passes took 955.04 ms by heuristics, 951.20 ms with the fastest of each; "
            "used: the fastest");
  summary.keeps_first = true;
  EXPECT_NE(summary.text().find("used: the heuristics'"), std::string::npos);
  summary.heuristic = 3;
  EXPECT_EQ(summary.text().find("20 chosen in a rehearsal, 3 by heuristics, 2 taken"), 0u);
  summary.refused.emplace_back("bf16 x bf16");
  EXPECT_NE(summary.text().find("refused by this cuBLASLt, not used: bf16 x bf16"),
            std::string::npos);
}

// ---- the products of a model
// ----------------------------------------------------------------------

TEST(GemmKeys, TextNamesEveryField) {
  GemmKey key;
  key.m = 1;
  key.n = 2;
  key.k = 3;
  key.a = e5m2;
  key.b = bf16;
  key.transpose_a = key.adds = true;
  key.alignment = 16;
  EXPECT_EQ(gemm_text(key),
            "E5M2 transposed x bf16 -> fp32, 1 x 2 x 3 (m x n x k), addresses at multiples of 16 "
            "bytes, with addend");
  key.bias = true;
  EXPECT_EQ(gemm_text(key),
            "E5M2 transposed x bf16 -> fp32, 1 x 2 x 3 (m x n x k), addresses at multiples of 16 "
            "bytes, with addend, with bias");
}

/// A product with both operands contiguous along k, as quantised ones are.
GemmKey quantized(Index m, Index n, Index k, GemmFormat a, GemmScales scales_a, GemmScales scales_b,
                  bool adds = false) {
  GemmKey key;
  key.m = m;
  key.n = n;
  key.k = k;
  key.a = a;
  key.b = e4m3;
  key.result = bf16;
  key.scales_a = scales_a;
  key.scales_b = scales_b;
  key.transpose_b = true;
  key.adds = adds;
  return key;
}
GemmKey dense(Index m, Index n, Index k, bool transpose_a, bool transpose_b, bool adds = false) {
  GemmKey key;
  key.m = m;
  key.n = n;
  key.k = k;
  key.a = key.b = key.result = bf16;
  key.transpose_a = transpose_a;
  key.transpose_b = transpose_b;
  key.adds = adds;
  return key;
}

std::vector<GemmKey> sorted(std::vector<GemmKey> keys) {
  std::sort(keys.begin(), keys.end());
  return keys;
}

template <class Precision>
std::vector<GemmKey> keys_of(Index micro_batches, Index head_chunk) {
  Arena<Cuda> arena;
  ModelOptions options;
  options.head_chunk = head_chunk;
  const BatchShape batch{5, 64};
  const Llama<::support::small, Precision, Cuda> model(arena, batch, options, DeviceLimits<Cuda>{});
  return sorted(gemm_keys(model.manifest(), {batch.rows(), head_chunk, micro_batches}));
}

// The small model: hidden and FFN of 128, two heads of 64 and one KV head, vocabulary of 96 padded
// to 128; 320 tokens.
constexpr Index hidden = 128, qkv = 256, gate_up = 256, rows = 320;
const Index padded = ::support::small.padded_vocabulary();

/// The head's products in BF16: three chunks of 96 tokens and one of 32.
std::vector<GemmKey> head_keys() {
  return {dense(96, padded, hidden, false, true),      dense(32, padded, hidden, false, true),
          dense(96, hidden, padded, false, false),     dense(32, hidden, padded, false, false),
          dense(padded, hidden, 96, true, false),      dense(padded, hidden, 96, true, false, true),
          dense(padded, hidden, 32, true, false, true)};
}

TEST(GemmKeys, CoverBf16Model) {
  // Output and down projection have one shape, as have the fused projections.
  std::vector<GemmKey> expected = head_keys();
  for (const GemmKey& key :
       {dense(rows, qkv, hidden, false, true), dense(rows, hidden, hidden, false, true, true),
        dense(rows, hidden, qkv, false, false), dense(rows, hidden, hidden, false, false),
        dense(qkv, hidden, rows, true, false), dense(hidden, hidden, rows, true, false)}) {
    expected.push_back(key);
  }
  EXPECT_EQ(gate_up, qkv);
  EXPECT_EQ(keys_of<Bf16>(1, 96), sorted(expected));
}

TEST(GemmKeys, CoverFp8ModelWithMicroBatches) {
  std::vector<GemmKey> expected = head_keys();
  constexpr auto tensor = GemmScales::tensor;
  for (GemmKey key : {quantized(rows, qkv, hidden, e4m3, tensor, tensor),
                      quantized(rows, hidden, hidden, e4m3, tensor, tensor, true)}) {
    key.fast_accumulation = true;
    expected.push_back(key);
  }
  for (const GemmKey& key : {quantized(rows, hidden, qkv, e5m2, tensor, tensor),
                             quantized(rows, hidden, hidden, e5m2, tensor, tensor)}) {
    expected.push_back(key);
  }
  for (const bool adds : {false, true}) {
    expected.push_back(quantized(qkv, hidden, rows, e5m2, tensor, tensor, adds));
    expected.push_back(quantized(hidden, hidden, rows, e5m2, tensor, tensor, adds));
  }
  EXPECT_EQ(keys_of<Fp8Recipe<Delayed>>(2, 96), sorted(expected));
  EXPECT_EQ(keys_of<Fp8Recipe<Tensorwise>>(2, 96), sorted(expected));
}

// They multiply values, both contiguous along the reduced dimension.
TEST(GemmKeys, CoverEmulatedModelInBf16) {
  std::vector<GemmKey> expected = head_keys();
  for (const GemmKey& key :
       {dense(rows, qkv, hidden, false, true), dense(rows, hidden, hidden, false, true, true),
        dense(rows, hidden, qkv, false, true), dense(rows, hidden, hidden, false, true),
        dense(qkv, hidden, rows, false, true), dense(hidden, hidden, rows, false, true)}) {
    expected.push_back(key);
  }
  EXPECT_EQ(keys_of<Emulated<Nvfp4>>(1, 96), sorted(expected));
  EXPECT_EQ(keys_of<Emulated<Fp8Recipe<Tensorwise>>>(1, 96), sorted(expected));
}

// Only the selected gradients differ.
TEST(GemmKeys, CoverModelWithFastGradients) {
  const auto expected = [](bool fast_input, bool fast_weight) {
    std::vector<GemmKey> keys = head_keys();
    constexpr auto tensor = GemmScales::tensor;
    const auto add = [&](GemmKey key, bool fast) {
      key.fast_accumulation = fast;
      keys.push_back(key);
    };
    add(quantized(rows, qkv, hidden, e4m3, tensor, tensor), true);
    add(quantized(rows, hidden, hidden, e4m3, tensor, tensor, true), true);
    add(quantized(rows, hidden, qkv, e5m2, tensor, tensor), fast_input);
    add(quantized(rows, hidden, hidden, e5m2, tensor, tensor), fast_input);
    add(quantized(qkv, hidden, rows, e5m2, tensor, tensor), fast_weight);
    add(quantized(hidden, hidden, rows, e5m2, tensor, tensor), fast_weight);
    return sorted(keys);
  };
  constexpr auto full = GemmAccumulation::full;
  constexpr auto fast = GemmAccumulation::fast;
  EXPECT_EQ((keys_of<Fp8Recipe<Delayed, Hybrid, fast>>(1, 96)), expected(true, false));
  EXPECT_EQ((keys_of<Fp8Recipe<Delayed, Hybrid, full, fast>>(1, 96)), expected(false, true));
  EXPECT_EQ((keys_of<Fp8Recipe<Delayed, Hybrid, fast, fast>>(1, 96)), expected(true, true));
}

TEST(GemmKeys, CoverModelWithRowScales) {
  std::vector<GemmKey> expected = head_keys();
  constexpr auto row = GemmScales::row;
  for (GemmKey key : {quantized(rows, qkv, hidden, e4m3, row, row),
                      quantized(rows, hidden, hidden, e4m3, row, row, true)}) {
    key.fast_accumulation = true;
    expected.push_back(key);
  }
  for (const GemmKey& key : {quantized(rows, hidden, qkv, e5m2, row, row),
                             quantized(rows, hidden, hidden, e5m2, row, row),
                             quantized(qkv, hidden, rows, e5m2, row, row),
                             quantized(hidden, hidden, rows, e5m2, row, row)}) {
    expected.push_back(key);
  }
  EXPECT_EQ(keys_of<Fp8Recipe<Rowwise>>(1, 96), sorted(expected));
}

TEST(GemmKeys, CoverModelWithBlockScales) {
  std::vector<GemmKey> expected = head_keys();
  constexpr auto row = GemmScales::rows_of_128, square = GemmScales::squares_of_128;
  for (const GemmKey& key : {quantized(rows, qkv, hidden, e4m3, row, square),
                             quantized(rows, hidden, hidden, e4m3, row, square, true),
                             quantized(rows, hidden, qkv, e4m3, row, square),
                             quantized(rows, hidden, hidden, e4m3, row, square),
                             quantized(qkv, hidden, rows, e4m3, row, row),
                             quantized(hidden, hidden, rows, e4m3, row, row)}) {
    expected.push_back(key);
  }
  EXPECT_EQ(keys_of<Fp8Recipe<Blockwise>>(1, 96), sorted(expected));
}

TEST(GemmKeys, UnchunkedHeadAddsOnlyOverMicroBatches) {
  const auto adding = [](const std::vector<GemmKey>& keys) {
    return std::count_if(keys.begin(), keys.end(),
                         [](const GemmKey& key) { return key.adds && key.transpose_a; });
  };
  EXPECT_EQ(adding(keys_of<Bf16>(1, rows)), 0);
  EXPECT_EQ(adding(keys_of<Bf16>(2, rows)), 2);  // the head's has the output projection's shape
  EXPECT_EQ(adding(keys_of<Bf16>(1, 160)), 1);
}

}  // namespace gemm_plans_test
}  // namespace octavo

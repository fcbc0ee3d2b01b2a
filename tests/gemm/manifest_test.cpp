#include <octavo/gemm/manifest.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace manifest_test {

using namespace octavo;

constexpr GemmRun fp8{"E4M3", "E4M3", "loops"};
constexpr GemmRun mixed{"E5M2", "E4M3", "loops"};
constexpr GemmRun bf16{"bf16", "bf16", "loops"};

GemmEntry make_entry(const char* layer, GemmPass pass, const GemmRun& run, bool recomputed = false,
                     bool is_head = false) {
  return {layer, pass, 64, 32, run, "fp8-delayed", "bf16", recomputed, is_head, 0};
}

/// A manifest of a plain GEMM, one that is recomputed, and a head in chunks.
struct ThreeGemms : Manifest {
  ThreeGemms() {
    add(make_entry("blocks.0.qkv", GemmPass::input_gradient, mixed));
    add(make_entry("blocks.1.down", GemmPass::forward, fp8, true));
    add(make_entry("head", GemmPass::weight_gradient, bf16, false, true));
  }
};

void run(Manifest& manifest, std::size_t number, int times) {
  for (int i = 0; i < times; ++i) manifest.entry(number).count(manifest.entries()[number].expected);
}

/// What `verify_step` complains about, or nothing.
std::string complaint(const Manifest& manifest, std::uint64_t micro_batches,
                      std::uint64_t head_chunks) {
  try {
    manifest.verify_step(micro_batches, head_chunks);
    return "";
  } catch (const ManifestError& error) {
    return error.what();
  }
}

TEST(Manifest, AcceptsAStepThatRanAsAnnounced) {
  ThreeGemms manifest;
  run(manifest, 0, 2);
  run(manifest, 1, 4);
  run(manifest, 2, 6);
  EXPECT_EQ(complaint(manifest, 2, 3), "");
  manifest.reset();
  EXPECT_NE(complaint(manifest, 2, 3), "");
  EXPECT_EQ(manifest.entries()[1].executed, 0u);
}

TEST(Manifest, NamesTheGemmThatRanTooRarelyOrTooOften) {
  ThreeGemms missing;
  run(missing, 0, 1);
  run(missing, 1, 1);  // its recomputation is missing
  run(missing, 2, 1);
  EXPECT_NE(complaint(missing, 1, 1).find("blocks.1.down forward ran 1 time in"), std::string::npos)
      << complaint(missing, 1, 1);
  ThreeGemms extra;
  run(extra, 0, 2);
  run(extra, 1, 2);
  run(extra, 2, 1);
  EXPECT_NE(complaint(extra, 1, 1).find("blocks.0.qkv dgrad ran 2 times"), std::string::npos)
      << complaint(extra, 1, 1);
  ThreeGemms chunks;
  run(chunks, 0, 1);
  run(chunks, 1, 2);
  run(chunks, 2, 1);  // one chunk of two
  EXPECT_NE(complaint(chunks, 1, 2).find("head wgrad"), std::string::npos);
}

TEST(Manifest, RejectsDuplicateLayerNames) {
  ThreeGemms manifest;
  EXPECT_NO_THROW(manifest.add(make_entry("blocks.0.qkv", GemmPass::forward, fp8)));
  try {
    manifest.add(make_entry("blocks.1.down", GemmPass::forward, fp8));
    FAIL() << "a second blocks.1.down is not refused";
  } catch (const ConfigError& error) {
    const std::string what = error.what();
    EXPECT_EQ(
        what.find("two layers have the name blocks.1.down; use a separate prefix for each branch"),
        0u)
        << what;
  }
}

TEST(Manifest, CountRejectsOtherFormatOrImplementation) {
  ThreeGemms manifest;
  EXPECT_NO_THROW(manifest.entry(1).count({"E4M3", "E4M3", "loops"}));
  EXPECT_THROW(manifest.entry(1).count(bf16), ManifestError);
  EXPECT_THROW(manifest.entry(1).count(mixed), ManifestError);
  EXPECT_THROW(manifest.entry(1).count({"E4M3", "E5M2", "loops"}), ManifestError);
  EXPECT_THROW(manifest.entry(1).count({"E4M3", "E4M3", "another"}), ManifestError);
  try {
    manifest.entry(1).count(bf16);
  } catch (const ManifestError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("blocks.1.down forward"), std::string::npos) << what;
    EXPECT_NE(what.find("bf16 x bf16"), std::string::npos) << what;
  }
}

/// A manifest of one attention, whose forward is recomputed.
struct Attention : Manifest {
  Attention() {
    add(AttentionEntry{"blocks.0.attention", "forward", "2 x 64, 4/2 heads of 32", "bf16", "loops",
                       true});
    add(AttentionEntry{"blocks.0.attention", "backward", "2 x 64, 4/2 heads of 32", "bf16",
                       "others", false});
  }
};

TEST(Manifest, CountsAttention) {
  Attention manifest;
  for (int i = 0; i < 4; ++i) manifest.attention(0).count("loops");
  for (int i = 0; i < 2; ++i) manifest.attention(1).count("others");
  EXPECT_EQ(complaint(manifest, 2, 1), "");
  EXPECT_NE(complaint(manifest, 1, 1).find("blocks.0.attention forward ran 4 times"),
            std::string::npos)
      << complaint(manifest, 1, 1);
  manifest.reset();
  EXPECT_NE(complaint(manifest, 2, 1), "");
  try {
    manifest.attention(1).count("loops");
    FAIL() << "another implementation is not refused";
  } catch (const ManifestError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("blocks.0.attention backward ran through loops, but the manifest expects "
                        "others"),
              std::string::npos)
        << what;
  }
}

TEST(Manifest, TextHasALineForEachPassOfAttention) {
  EXPECT_EQ(Attention{}.text(),
            "attention | blocks.0.attention forward  | 2 x 64, 4/2 heads of 32 | bf16 | loops\n"
            "attention | blocks.0.attention backward | 2 x 64, 4/2 heads of 32 | bf16 | others\n");
}

TEST(Manifest, TextSaysWhyAttentionFellBack) {
  Attention manifest;
  manifest.attention(1).fallback = "cuDNN refuses";
  EXPECT_NE(manifest.text().find("| bf16 | others: cuDNN refuses\n"), std::string::npos)
      << manifest.text();
}

TEST(Manifest, DistinguishesFp8FromOtherFormats) {
  EXPECT_TRUE(fp8.is_fp8());
  EXPECT_TRUE(mixed.is_fp8());
  EXPECT_FALSE(bf16.is_fp8());
  EXPECT_FALSE((GemmRun{"fp32", "fp32", ""}.is_fp8()));
}

TEST(Manifest, TextHasALineForEachGemm) {
  const std::string text = ThreeGemms{}.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  for (const char* part : {"blocks.0.qkv ", "dgrad", "E5M2 x E4M3 -> bf16", "64 x 32", "loops"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in\n" << text;
}

TEST(Manifest, TextAlignsColumnsForLongPrecisionNames) {
  Manifest manifest;
  GemmEntry entry = make_entry("blocks.0.qkv", GemmPass::forward, fp8);
  manifest.add(entry);
  entry.layer = "blocks.1.qkv";
  entry.precision = "a precision with a long name";
  manifest.add(entry);
  const std::string text = manifest.text();
  const std::size_t second = text.find('\n') + 1;
  EXPECT_EQ(text.find("| loops"), text.find("| loops", second) - second) << text;
}

}  // namespace manifest_test

/// @file
/// The expected formats and implementations of every GEMM and attention of a model, and counts of
/// executions.
#pragma once

#include <octavo/core/error.hpp>
#include <octavo/precision/policy.hpp>
#include <octavo/tensor/operand.hpp>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

/// The three GEMMs of a linear layer.
enum class GemmPass { forward, input_gradient, weight_gradient };

/// Returns the pass's name for display.
constexpr const char* name_of(GemmPass pass) {
  constexpr std::array names{"forward", "dgrad", "wgrad"};
  return names[static_cast<std::size_t>(pass)];
}

/// The granularity of the factors that convert an operand's elements back to values. Only the `Cpu`
/// device multiplies `other` blocks.
enum class GemmScales : std::uint8_t {
  none,
  tensor,
  row,
  rows_of_32,
  rows_of_128,
  squares_of_128,
  rows_of_16,
  squares_of_16,
  other
};

/// Returns the name of scales in files: their granularity, or the rows and columns of a block.
constexpr const char* name_of(GemmScales scales) {
  constexpr std::array names{"none",    "tensor", "row",   "1x32", "1x128",
                             "128x128", "1x16",   "16x16", "other"};
  return names[static_cast<std::size_t>(scales)];
}

/// Returns the scales of a granularity.
template <class Granularity>
inline constexpr GemmScales gemm_scales = [] {
  if (std::is_same_v<Granularity, PerTensor>) return GemmScales::tensor;
  if (std::is_same_v<Granularity, PerRow>) return GemmScales::row;
  if (std::is_same_v<Granularity, PerBlock<1, 32, E8M0>>) return GemmScales::rows_of_32;
  if (std::is_same_v<Granularity, PerBlock<1, 128>>) return GemmScales::rows_of_128;
  if (std::is_same_v<Granularity, PerBlock<128, 128>>) return GemmScales::squares_of_128;
  if (std::is_same_v<Granularity, PerBlock<1, 16, E4M3>>) return GemmScales::rows_of_16;
  if (std::is_same_v<Granularity, PerBlock<16, 16, E4M3>>) return GemmScales::squares_of_16;
  return GemmScales::other;
}();

/// How a GEMM ran; returned by `matmul`.
struct GemmRun {
  const char* a = "";               ///< format of the first operand
  const char* b = "";               ///< format of the second operand
  const char* implementation = "";  ///< the library or loops that ran

  /// Whether the operands are quantised, to 8 or 4 bits.
  [[nodiscard]] bool is_fp8() const { return a[0] == 'E' && b[0] == 'E'; }
  friend bool operator==(const GemmRun& x, const GemmRun& y) {
    return std::strcmp(x.a, y.a) == 0 && std::strcmp(x.b, y.b) == 0 &&
           std::strcmp(x.implementation, y.implementation) == 0;
  }
};

/// One GEMM of the model: its expected formats and implementation, and the number of executions.
struct GemmEntry {
  std::string layer;  ///< such as "blocks.0.qkv"
  GemmPass pass = GemmPass::forward;
  Index out = 0;  ///< output features of the layer
  Index in = 0;   ///< input features of the layer
  GemmRun expected;
  std::string precision;      ///< such as "fp8-delayed"
  std::string output_format;  ///< format of the result
  int recomputed = 0;         ///< number of times that the backward runs the forward again
  bool is_head = false;       ///< runs once per chunk of tokens
  std::uint64_t executed = 0;
  bool adds = false;        ///< adds to existing values: for a forward, to the residual stream
  bool bias = false;        ///< the forward adds the layer's bias
  bool overwrites = false;  ///< the weight gradient is never added to existing values
  int experts = 0;          ///< number of layers of this shape in a mixture of experts; 0: one
                            ///< layer for all tokens
  int choices = 0;          ///< number of experts that process each token
  bool emulated = false;    ///< multiplies the operands' values: see `Emulated`
  GemmScales scales_a = GemmScales::none;
  GemmScales scales_b = GemmScales::none;
  /// Fast accumulation is used only if the scales support it: see accumulates_fast. GEMMs of
  /// experts have no fast accumulation.
  GemmAccumulation accumulation = GemmAccumulation::full;

  /// Returns the expected number of executions in a training micro-batch.
  [[nodiscard]] std::uint64_t planned(std::uint64_t head_chunks) const {
    return (is_head ? head_chunks : 1) * static_cast<std::uint64_t>(1 + recomputed);
  }

  /// Counts an executed GEMM.
  /// @throws ManifestError  if it did not run as expected
  void count(const GemmRun& run) {
    ++executed;
    require<ManifestError>(run == expected, layer, " ", name_of(pass), " ran as ", run.a, " x ",
                           run.b, " through ", run.implementation, ", but the manifest expects ",
                           expected.a, " x ", expected.b, " through ", expected.implementation,
                           "; this is a bug in the library, please report it");
  }
};

/// One attention pass of a layer: its expected implementation, and the number of executions.
struct AttentionEntry {
  std::string layer;        ///< such as "blocks.0.attention"
  const char* pass = "";    ///< "forward" or "backward"
  std::string shape;        ///< such as "4 x 2048, 32/8 heads of 128"
  const char* format = "";  ///< of queries, keys and values
  std::string expected;     ///< what runs it, such as "cudnn"
  bool recomputed = false;  ///< runs again in the backward
  std::uint64_t executed = 0;
  std::string fallback{};  ///< why a backward uses a different implementation than the forward, or
                           ///< empty

  /// Counts an executed pass.
  /// @throws ManifestError  if it ran through a different implementation than expected
  void count(const char* by) {
    ++executed;
    require<ManifestError>(by == expected, layer, " ", pass, " ran through ", by,
                           ", but the manifest expects ", expected,
                           "; do not change limits of the context after a model is laid out");
  }
};

/// Counts of GEMMs.
struct GemmCount {
  std::uint64_t fp8 = 0;
  std::uint64_t total = 0;
};

/// Every GEMM and every attention of a model, listed before the first step and counted during each
/// step.
class Manifest {
 public:
  Manifest() = default;
  Manifest(const Manifest&) = delete;  // layers point to it
  Manifest& operator=(const Manifest&) = delete;

  /// Adds a GEMM and returns its number.
  /// @throws ConfigError  if another layer has the same name
  std::size_t add(GemmEntry entry) {
    for (const GemmEntry& other : entries_) {
      require<ConfigError>(other.pass != entry.pass || other.layer != entry.layer,
                           "two layers have the name ", entry.layer,
                           "; use a separate prefix for each branch");
    }
    entries_.push_back(std::move(entry));
    return entries_.size() - 1;
  }

  /// Adds an attention pass and returns its number.
  std::size_t add(AttentionEntry entry) {
    attentions_.push_back(std::move(entry));
    return attentions_.size() - 1;
  }

  [[nodiscard]] const std::vector<GemmEntry>& entries() const { return entries_; }
  [[nodiscard]] const std::vector<AttentionEntry>& attentions() const { return attentions_; }
  [[nodiscard]] AttentionEntry& attention(std::size_t number) { return attentions_[number]; }
  [[nodiscard]] GemmEntry& entry(std::size_t number) { return entries_[number]; }

  /// Resets all counts before a step.
  void reset() {
    for (GemmEntry& entry : entries_) entry.executed = 0;
    for (AttentionEntry& entry : attentions_) entry.executed = 0;
  }

  /// Throws unless every entry ran as often as a training step of `micro_batches` requires.
  /// @param head_chunks  chunks in which the head processes the tokens of a micro-batch
  /// @throws ManifestError  naming the first entry that did not
  void verify_step(std::uint64_t micro_batches, std::uint64_t head_chunks) const {
    const auto check = [](const std::string& layer, const char* pass, std::uint64_t executed,
                          std::uint64_t wanted) {
      require<ManifestError>(executed == wanted, layer, " ", pass, " ran ", executed,
                             executed == 1 ? " time" : " times",
                             " in this step, but the manifest expects ", wanted,
                             "; this is a bug in the library, please report it");
    };
    for (const GemmEntry& entry : entries_) {
      check(entry.layer, name_of(entry.pass), entry.executed,
            micro_batches * entry.planned(head_chunks));
    }
    for (const AttentionEntry& entry : attentions_) {
      check(entry.layer, entry.pass, entry.executed, micro_batches * (entry.recomputed ? 2 : 1));
    }
  }

  /// Returns the expected GEMMs of one micro-batch.
  [[nodiscard]] GemmCount planned(std::uint64_t head_chunks) const {
    return counted([&](const GemmEntry& entry) { return entry.planned(head_chunks); });
  }

  /// Returns the GEMMs that ran in the last step, per micro-batch.
  [[nodiscard]] GemmCount executed(std::uint64_t micro_batches) const {
    return counted([&](const GemmEntry& entry) { return entry.executed / micro_batches; });
  }

  /// Returns one aligned line per GEMM, then one per attention pass.
  [[nodiscard]] std::string text() const {
    std::size_t longest = 0;
    std::size_t precision = 13;
    for (const GemmEntry& entry : entries_) {
      longest = std::max(longest, entry.layer.size());
      precision = std::max(precision, entry.precision.size());
    }
    std::string lines;
    const auto pad = [&lines](const std::string& word, std::size_t width) {
      lines += word + std::string(width > word.size() ? width - word.size() : 0, ' ');
    };
    for (const GemmEntry& entry : entries_) {
      lines += "gemm | ";
      pad(entry.layer, longest);
      pad(std::string(" ") + name_of(entry.pass), 9);
      const auto experts =
          entry.experts == 0 ? "" : message(entry.choices, " of ", entry.experts, " x ");
      pad(message("| ", experts, entry.out, " x ", entry.in), 16);
      pad(message("| ", entry.expected.a, " x ", entry.expected.b, " -> ", entry.output_format),
          25);
      pad("| " + entry.precision, precision + 3);
      lines += message("| ", entry.expected.implementation, '\n');
    }
    for (const AttentionEntry& entry : attentions_) {
      lines += "attention | " + entry.layer + ' ';
      pad(entry.pass, 8);
      lines += message(" | ", entry.shape, " | ", entry.format, " | ", entry.expected,
                       entry.fallback.empty() ? "" : ": ", entry.fallback, '\n');
    }
    return lines;
  }

 private:
  /// Sums `count(entry)` over all GEMMs.
  template <class Count>
  [[nodiscard]] GemmCount counted(const Count& count) const {
    GemmCount sum;
    for (const GemmEntry& entry : entries_) {
      sum.total += count(entry);
      if (entry.expected.is_fp8()) sum.fp8 += count(entry);
    }
    return sum;
  }

  std::vector<GemmEntry> entries_;
  std::vector<AttentionEntry> attentions_;
};

}  // namespace octavo

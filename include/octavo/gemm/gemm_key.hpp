/// @file
/// Keys of GEMM algorithms, and the GEMMs that a manifest lists. Needs no CUDA.
#pragma once

#include <octavo/gemm/manifest.hpp>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace octavo OCTAVO_ABI {

/// Formats of a GEMM's matrices.
enum class GemmFormat : std::uint8_t { fp32, bf16, e4m3, e5m2, e2m1 };

/// Returns the format's name, as in `FormatTraits`.
constexpr const char* name_of(GemmFormat format) {
  constexpr std::array names{FormatTraits<Fp32>::name, FormatTraits<Bf16>::name,
                             FormatTraits<E4M3>::name, FormatTraits<E5M2>::name,
                             FormatTraits<E2M1>::name};
  return names[static_cast<std::size_t>(format)];
}

/// Properties of result = op(a) · op(b) + addend + bias on which the choice of an algorithm
/// depends; addresses are not included.
struct GemmKey {
  Index m = 0;  ///< rows of the result
  Index n = 0;  ///< columns of the result
  Index k = 0;  ///< the reduced dimension
  GemmFormat a = GemmFormat::fp32;
  GemmFormat b = GemmFormat::fp32;
  GemmFormat result = GemmFormat::fp32;
  GemmScales scales_a = GemmScales::none;
  GemmScales scales_b = GemmScales::none;
  bool transpose_a = false;  ///< a is stored as [k, m] rather than [m, k]
  bool transpose_b = false;  ///< b is stored as [n, k] rather than [k, n]
  bool adds = false;         ///< an addend of the result's shape
  bool bias = false;         ///< a vector is added to each row
  bool fast_accumulation = false;
  std::uint32_t alignment = 256;  ///< alignment of every matrix's address, in bytes

  friend auto operator<=>(const GemmKey&, const GemmKey&) = default;
  friend bool operator==(const GemmKey&, const GemmKey&) = default;  // nvcc 13 requires an explicit
                                                                     // declaration
};

/// Returns a text such as "E4M3 x E4M3 transposed -> bf16, 16 x 384 x 256 (m x n x k), …", for
/// messages.
inline std::string gemm_text(const GemmKey& key) {
  return message(name_of(key.a), key.transpose_a ? " transposed x " : " x ", name_of(key.b),
                 key.transpose_b ? " transposed -> " : " -> ", name_of(key.result), ", ", key.m,
                 " x ", key.n, " x ", key.k, " (m x n x k), addresses at multiples of ",
                 key.alignment, " bytes", key.adds ? ", with addend" : "",
                 key.bias ? ", with bias" : "");
}

/// The numbers of tokens that the GEMMs of a training step process.
struct GemmRows {
  Index rows = 0;           ///< tokens of a micro-batch
  Index head_chunk = 0;     ///< tokens that the head processes at once, at most `rows`
  Index micro_batches = 1;  ///< number of micro-batches over which weight gradients are accumulated
};

namespace detail {

/// Whether GEMMs with such scales support fast accumulation; in cuBLASLt, block scales do not.
constexpr bool supports_fast_accumulation(GemmScales scales) {
  return scales == GemmScales::tensor || scales == GemmScales::row;
}

/// Whether a GEMM uses fast accumulation.
constexpr bool accumulates_fast(GemmAccumulation accumulation, GemmScales a, GemmScales b) {
  return accumulation == GemmAccumulation::fast && supports_fast_accumulation(a) &&
         supports_fast_accumulation(b);
}

/// Returns the format with this name.
/// @throws ConfigError  if no device has a GEMM for it
inline GemmFormat gemm_format_named(std::string_view name) {
  for (const GemmFormat format :
       {GemmFormat::fp32, GemmFormat::bf16, GemmFormat::e4m3, GemmFormat::e5m2, GemmFormat::e2m1}) {
    if (name == name_of(format)) return format;
  }
  throw ConfigError(
      message("'", name, "' is not a GEMM format; known are fp32, bf16, E4M3, E5M2 and E2M1"));
}

/// Returns the GEMM of a manifest entry for this number of tokens. Quantised operands are both
/// contiguous along the reduced dimension; others are read as stored.
inline GemmKey gemm_key(const GemmEntry& entry, Index tokens, bool adds) {
  GemmKey key;
  key.a = entry.emulated ? GemmFormat::bf16 : gemm_format_named(entry.expected.a);
  key.b = entry.emulated ? GemmFormat::bf16 : gemm_format_named(entry.expected.b);
  key.result = gemm_format_named(entry.output_format);
  if (!entry.emulated) {
    key.scales_a = entry.scales_a;
    key.scales_b = entry.scales_b;
  }
  key.adds = adds;
  key.bias = entry.bias;
  const bool quantized = entry.scales_a != GemmScales::none;
  const bool forward = entry.pass == GemmPass::forward;
  const bool weight_gradient = entry.pass == GemmPass::weight_gradient;
  key.transpose_a = !quantized && weight_gradient;
  key.transpose_b = quantized || forward;
  key.fast_accumulation = accumulates_fast(entry.accumulation, key.scales_a, key.scales_b);
  key.m = weight_gradient ? entry.out : tokens;
  key.n = forward ? entry.out : entry.in;
  key.k = forward ? entry.in : weight_gradient ? tokens : entry.out;
  return key;
}

/// Calls `add(tokens, adds)` for each way in which a training step runs an entry's GEMM.
template <class Add>
void for_each_use(const GemmEntry& entry, const GemmRows& rows, const Add& add) {
  const bool weight_gradient = entry.pass == GemmPass::weight_gradient;
  const Index tokens = entry.is_head ? rows.head_chunk : rows.rows;
  const Index rest = rows.rows % tokens;  // tokens of the head's last chunk; earlier chunks are
                                          // full
  const bool repeated = rows.micro_batches > 1 || rows.rows / tokens > 1;
  add(tokens, entry.adds);
  if (weight_gradient && repeated && !entry.overwrites) add(tokens, true);
  if (rest > 0) add(rest, entry.adds || weight_gradient);
}

}  // namespace detail

/// Returns every distinct GEMM that training steps and evaluations of a model run on the `Cuda`
/// device, in the order of the manifest.
[[nodiscard]] inline std::vector<GemmKey> gemm_keys(const Manifest& manifest,
                                                    const GemmRows& rows) {
  std::vector<GemmKey> keys;
  for (const GemmEntry& entry : manifest.entries()) {
    if (entry.experts != 0) continue;  // cuBLASLt does not run it
    detail::for_each_use(entry, rows, [&](Index tokens, bool adds) {
      const GemmKey key = detail::gemm_key(entry, tokens, adds);
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    });
  }
  return keys;
}

}  // namespace octavo

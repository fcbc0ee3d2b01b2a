/// @file
/// A GEMM in cuBLASLt's terms. Host code.
#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/gemm/gemm_key.hpp>
#include <octavo/gemm/matmul.hpp>
#include <octavo/precision/policy.hpp>

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// The format of a matrix on the `Cuda` device.
template <class T>
inline constexpr GemmFormat gemm_format = [] {
  static_assert(sizeof(T) == 0, "cuBLASLt supports fp32, bf16, E4M3, E5M2 and E2M1");
  return GemmFormat::fp32;
}();
template <>
inline constexpr GemmFormat gemm_format<float> = GemmFormat::fp32;
template <>
inline constexpr GemmFormat gemm_format<Bf16> = GemmFormat::bf16;
template <>
inline constexpr GemmFormat gemm_format<E4M3> = GemmFormat::e4m3;
template <>
inline constexpr GemmFormat gemm_format<E5M2> = GemmFormat::e5m2;
template <>
inline constexpr GemmFormat gemm_format<E2M1> = GemmFormat::e2m1;

/// Returns cuBLASLt's name of a format.
constexpr cudaDataType_t cublas_type(GemmFormat format) {
  constexpr std::array types{CUDA_R_32F, CUDA_R_16BF, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2,
                             CUDA_R_4F_E2M1};
  return types[static_cast<std::size_t>(format)];
}

/// The scales of an operand of this granularity.
template <class Granularity>
constexpr GemmScales cublas_scales() {
  static_assert(Granularity::required_feature != nullptr,
                "matmul: the Cuda device does not multiply such blocks; choose Fp8Recipe<Delayed>, "
                "Fp8Recipe<Tensorwise>, Fp8Recipe<Rowwise>, Fp8Recipe<Blockwise>, Mxfp8 or Nvfp4, "
                "or run it on Cpu, which emulates it");
  return gemm_scales<Granularity>;
}

/// Returns cuBLASLt's name of a granularity.
constexpr cublasLtMatmulMatrixScale_t cublas_scale_mode(GemmScales scales) {
  switch (scales) {
    case GemmScales::row:
      return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case GemmScales::rows_of_32:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    case GemmScales::rows_of_128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case GemmScales::squares_of_128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case GemmScales::rows_of_16:
    case GemmScales::squares_of_16:  // repeated for each row of a square
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    default:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

/// Throws CublasError unless a cuBLASLt call for this GEMM succeeded.
inline void check_cublas(cublasStatus_t status, const char* call, const GemmKey& key) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CublasError(message(call, " failed for ", gemm_text(key), ": ",
                            cublasLtGetStatusString(status), " (status ", static_cast<int>(status),
                            "); FP8 and NVFP4 need a GPU that supports the recipe (see doctor "
                            "--table), cuBLAS 12.9 or newer, a reduced dimension and row lengths "
                            "that are multiples of 16 (NVFP4: 32), and addresses at "
                            "multiples of 16 bytes"));
}

/// Vectors in device memory that are part of a GEMM's description: the factors that convert
/// elements of a and b back to values, null if they are not quantised, and the bias, in the
/// result's format, null if there is none.
struct GemmVectors {
  const void* scales_a = nullptr;
  const void* scales_b = nullptr;
  const void* bias = nullptr;
};

/// The addresses and factors of one GEMM.
struct GemmAddresses {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* addend = nullptr;
  void* result = nullptr;
  void* workspace = nullptr;  ///< of `cublas_workspace_bytes`
  GemmFactors factors{};
  const GemmFactors* device_factors = nullptr;  ///< in device memory; replaces `factors`
};

/// A GEMM of given matrices.
struct GemmCall {
  GemmKey key;
  GemmVectors vectors;
  GemmAddresses addresses;
};

/// An algorithm. A named type, because nvcc 13 requires one for a vector's elements, and cuBLASLt's
/// type is unnamed.
struct GemmAlgorithm {
  cublasLtMatmulAlgo_t words{};
};

/// A GEMM that can be launched with an algorithm and addresses. cuBLASLt is column-major, so a
/// row-major matrix is its transpose: it computes resultᵀ = bᵀ · aᵀ, with b as its first operand.
class CublasGemm {
 public:
  explicit CublasGemm(const GemmKey& key) : key_(key) {
    check_cublas(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "cublasLtMatmulDescInit", key);
    const auto operation = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(CUBLASLT_MATMUL_DESC_TRANSA, operation(key.transpose_b));
    set(CUBLASLT_MATMUL_DESC_TRANSB, operation(key.transpose_a));
    if (key.fast_accumulation) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
    if (key.bias) {
      // A bias for each row corresponds to one for each column in cuBLASLt, as its epilogue
      // expects.
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cublas_type(key.result));
    }
    if (key.scales_a != GemmScales::none) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, cublas_scale_mode(key.scales_b));
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, cublas_scale_mode(key.scales_a));
    }
    // Its factors are always in device memory, which not every algorithm supports.
    if (key.a == GemmFormat::e2m1) {
      set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
    }
    lay_out(first_, key.b, key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n);
    lay_out(second_, key.a, key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k);
    lay_out(result_, key.result, key.m, key.n);
    addend_ = result_;
    // cuBLASLt requires a layout in BF16 of the addend, also if there is none.
    if (writes_fp8()) lay_out(addend_, GemmFormat::bf16, key.m, key.n);
  }

  [[nodiscard]] const GemmKey& key() const { return key_; }

  void set_vectors(const GemmVectors& vectors) {
    if (key_.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vectors.bias);
    if (key_.scales_a == GemmScales::none) return;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, vectors.scales_b);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, vectors.scales_a);
  }

  /// Returns the algorithms that cuBLASLt's heuristics propose, best first. None of them rounds
  /// partial sums to the result's format.
  [[nodiscard]] std::vector<GemmAlgorithm> algorithms(cublasLtHandle_t handle, int most) {
    cublasLtMatmulPreferenceOpaque_t preference = preferences();
    const auto found =
        std::make_unique<cublasLtMatmulHeuristicResult_t[]>(static_cast<std::size_t>(most));
    int count = 0;
    check_cublas(cublasLtMatmulAlgoGetHeuristic(handle, &operation_, &first_, &second_, &addend_,
                                                &result_, &preference, most, found.get(), &count),
                 "cublasLtMatmulAlgoGetHeuristic", key_);
    std::vector<GemmAlgorithm> algorithms;
    for (const auto& result : std::span(found.get(), static_cast<std::size_t>(count))) {
      if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back({result.algo});
    }
    check_cublas(algorithms.empty() ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS,
                 "cublasLtMatmulAlgoGetHeuristic", key_);
    return algorithms;
  }

  /// Whether cuBLASLt can run this algorithm within the workspace.
  [[nodiscard]] bool accepts(cublasLtHandle_t handle, const GemmAlgorithm& algorithm) {
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(handle, &operation_, &first_, &second_, &addend_, &result_,
                                   &algorithm.words, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= cublas_workspace_bytes;
  }

  /// Enqueues the GEMM.
  [[nodiscard]] cublasStatus_t start(cublasLtHandle_t handle, const GemmAlgorithm& algorithm,
                                     const GemmAddresses& addresses, cudaStream_t stream) {
    const bool on_device = addresses.device_factors != nullptr;
    set(CUBLASLT_MATMUL_DESC_POINTER_MODE,
        on_device ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST);
    const GemmFactors here{addresses.factors.product, key_.adds ? addresses.factors.addend : 0.0f};
    const GemmFactors* factors = on_device ? addresses.device_factors : &here;
    return cublasLtMatmul(handle, &operation_, &factors->product, addresses.b, &first_, addresses.a,
                          &second_, &factors->addend, writes_fp8() ? nullptr : addresses.addend,
                          &addend_, addresses.result, &result_, &algorithm.words,
                          addresses.workspace, cublas_workspace_bytes, stream);
  }

 private:
  [[nodiscard]] bool writes_fp8() const { return key_.result == GemmFormat::e4m3; }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check_cublas(cublasLtMatmulDescSetAttribute(&operation_, attribute, &value, sizeof(value)),
                 "cublasLtMatmulDescSetAttribute", key_);
  }

  /// A row-major [rows, columns] matrix is a column-major matrix of `columns` rows.
  void lay_out(cublasLtMatrixLayoutOpaque_t& matrix, GemmFormat format, Index rows, Index columns) {
    check_cublas(
        cublasLtMatrixLayoutInit(&matrix, cublas_type(format), static_cast<std::uint64_t>(columns),
                                 static_cast<std::uint64_t>(rows), columns),
        "cublasLtMatrixLayoutInit", key_);
  }

  [[nodiscard]] cublasLtMatmulPreferenceOpaque_t preferences() const {
    cublasLtMatmulPreferenceOpaque_t preference;
    check_cublas(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit", key_);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_cublas(
          cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute", key_);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{cublas_workspace_bytes});
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(attribute, key_.alignment);
    }
    return preference;
  }

  GemmKey key_;
  cublasLtMatmulDescOpaque_t operation_{};
  cublasLtMatrixLayoutOpaque_t first_{};
  cublasLtMatrixLayoutOpaque_t second_{};
  cublasLtMatrixLayoutOpaque_t result_{};
  cublasLtMatrixLayoutOpaque_t addend_{};
};

}  // namespace octavo::detail

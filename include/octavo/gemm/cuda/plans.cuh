/// @file
/// cuBLASLt's handle, and the algorithm that was chosen for each kind of matrix product.
#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/formats/formats.hpp>

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>

namespace octavo::detail {

/// cuBLASLt gets as much workspace as its documentation advises for Hopper.
inline constexpr std::size_t cublas_workspace_bytes = std::size_t{32} << 20;

/// cuBLASLt's name of a format.
template <class T>
inline constexpr cudaDataType_t cublas_type = [] {
  static_assert(sizeof(T) == 0, "cuBLASLt multiplies fp32, bf16, E4M3 and E5M2 on this GPU");
  return CUDA_R_32F;
}();
template <>
inline constexpr cudaDataType_t cublas_type<float> = CUDA_R_32F;
template <>
inline constexpr cudaDataType_t cublas_type<Bf16> = CUDA_R_16BF;
template <>
inline constexpr cudaDataType_t cublas_type<E4M3> = CUDA_R_8F_E4M3;
template <>
inline constexpr cudaDataType_t cublas_type<E5M2> = CUDA_R_8F_E5M2;

/// All that the choice of an algorithm for result = op(a) · op(b) + addend depends on.
struct GemmKey {
  Index m = 0;  ///< rows of the result
  Index n = 0;  ///< columns of the result
  Index k = 0;  ///< the reduced dimension
  cudaDataType_t a = CUDA_R_32F;
  cudaDataType_t b = CUDA_R_32F;
  cudaDataType_t result = CUDA_R_32F;
  bool transpose_a = false;  ///< a is stored as [k, m] rather than [m, k]
  bool transpose_b = false;  ///< b is stored as [n, k] rather than [k, n]
  bool adds = false;
  bool fast_accumulation = false;
  std::uint32_t alignment = 256;  ///< bytes that every matrix's address is a multiple of

  friend auto operator<=>(const GemmKey&, const GemmKey&) = default;
};

inline std::string type_name(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_32F:
      return FormatTraits<Fp32>::name;
    case CUDA_R_16BF:
      return FormatTraits<Bf16>::name;
    case CUDA_R_8F_E4M3:
      return FormatTraits<E4M3>::name;
    default:
      return FormatTraits<E5M2>::name;
  }
}

/// "E4M3 x E4M3 -> bf16, 16 x 384 x 256 (m x n x k)", for messages.
inline std::string gemm_text(const GemmKey& key) {
  return message(type_name(key.a), key.transpose_a ? " transposed x " : " x ", type_name(key.b),
                 key.transpose_b ? " transposed -> " : " -> ", type_name(key.result), ", ", key.m,
                 " x ", key.n, " x ", key.k, " (m x n x k), addresses at multiples of ",
                 key.alignment, " bytes", key.adds ? ", with addend" : "");
}

/// Throws CublasError unless a call of cuBLASLt for this product succeeded.
inline void check_cublas(cublasStatus_t status, const char* call, const GemmKey& key) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CublasError(message(call, " failed for ", gemm_text(key), ": ",
                            cublasLtGetStatusString(status), " (status ", static_cast<int>(status),
                            "); FP8 needs an sm_90 GPU, cuBLAS 12.9 or newer, a reduced "
                            "dimension and row lengths that are multiples of 16, and addresses at "
                            "multiples of 16 bytes"));
}

/// A product that is ready to be launched: descriptions of the matrices and the algorithm. cuBLASLt
/// is column-major, where a row-major matrix is its own transpose: it computes resultᵀ = bᵀ · aᵀ,
/// so that its first operand is b.
struct GemmPlan {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t first;
  cublasLtMatrixLayoutOpaque_t second;
  cublasLtMatrixLayoutOpaque_t result;
  cublasLtMatmulAlgo_t algorithm;
};

template <class Value>
void set_attribute(GemmPlan& plan, cublasLtMatmulDescAttributes_t attribute, const Value& value,
                   const GemmKey& key) {
  check_cublas(cublasLtMatmulDescSetAttribute(&plan.operation, attribute, &value, sizeof(value)),
               "cublasLtMatmulDescSetAttribute", key);
}

/// Describes the operation and the matrices of `plan`.
inline void describe(GemmPlan& plan, const GemmKey& key) {
  check_cublas(cublasLtMatmulDescInit(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "cublasLtMatmulDescInit", key);
  const auto operation = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set_attribute(plan, CUBLASLT_MATMUL_DESC_TRANSA, operation(key.transpose_b), key);
  set_attribute(plan, CUBLASLT_MATMUL_DESC_TRANSB, operation(key.transpose_a), key);
  if (key.fast_accumulation) {
    set_attribute(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1}, key);
  }
  // A row-major [rows, columns] matrix is a column-major matrix of `columns` rows.
  const auto layout = [&](cublasLtMatrixLayoutOpaque_t& matrix, cudaDataType_t type, Index rows,
                          Index columns) {
    check_cublas(cublasLtMatrixLayoutInit(&matrix, type, static_cast<std::uint64_t>(columns),
                                          static_cast<std::uint64_t>(rows), columns),
                 "cublasLtMatrixLayoutInit", key);
  };
  layout(plan.first, key.b, key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n);
  layout(plan.second, key.a, key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k);
  layout(plan.result, key.result, key.m, key.n);
}

/// Factors that turn the elements of a and b back into values, in device memory.
struct GemmScales {
  const float* a = nullptr;
  const float* b = nullptr;
};

inline void set_scales(GemmPlan& plan, const GemmKey& key, const GemmScales& scales) {
  if (scales.a == nullptr) return;
  set_attribute(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.b, key);
  set_attribute(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.a, key);
}

/// The algorithm that cuBLASLt's heuristics put first.
inline cublasLtMatmulAlgo_t choose_algorithm(cublasLtHandle_t handle, GemmPlan& plan,
                                             const GemmKey& key) {
  cublasLtMatmulPreferenceOpaque_t preference;
  check_cublas(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit", key);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check_cublas(
        cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute", key);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{cublas_workspace_bytes});
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    prefer(attribute, key.alignment);
  }
  cublasLtMatmulHeuristicResult_t candidate{};
  int found = 0;
  check_cublas(cublasLtMatmulAlgoGetHeuristic(handle, &plan.operation, &plan.first, &plan.second,
                                              &plan.result, &plan.result, &preference, 1,
                                              &candidate, &found),
               "cublasLtMatmulAlgoGetHeuristic", key);
  check_cublas(found == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : candidate.state,
               "cublasLtMatmulAlgoGetHeuristic", key);
  return candidate.algo;
}

/// cuBLASLt's handle and all plans of one context.
class GemmPlans {
 public:
  GemmPlans() { check_cublas(cublasLtCreate(&handle_), "cublasLtCreate", GemmKey{}); }
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;
  ~GemmPlans() { cublasLtDestroy(handle_); }

  [[nodiscard]] cublasLtHandle_t handle() const { return handle_; }

  /// The plan of this product, with these factors; made at first use, outside of any capture of a
  /// graph.
  /// @param scales  factors of a and b in device memory; null where they are not quantised
  GemmPlan& plan(const GemmKey& key, const GemmScales& scales) {
    auto place = plans_.find(key);
    if (place == plans_.end()) {
      GemmPlan plan{};
      describe(plan, key);
      set_scales(plan, key, scales);
      plan.algorithm = choose_algorithm(handle_, plan, key);
      place = plans_.emplace(key, plan).first;
    }
    set_scales(place->second, key, scales);
    return place->second;
  }

 private:
  cublasLtHandle_t handle_ = nullptr;
  std::map<GemmKey, GemmPlan> plans_;
};

}  // namespace octavo::detail

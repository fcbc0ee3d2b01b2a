/// @file
/// cuBLASLt's handle, and the algorithm that was chosen for each kind of matrix product.
#pragma once

#include <octavo/core/cuda/context.cuh>
#include <octavo/gemm/cuda/limits.hpp>
#include <octavo/precision/precision.hpp>

#include <cublasLt.h>

#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace octavo::detail {

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

/// What the factors that turn an operand's elements back into values cover, as cuBLASLt calls it.
template <class Granularity>
inline constexpr cublasLtMatmulMatrixScale_t cublas_scale = [] {
  static_assert(sizeof(Granularity) == 0,
                "matmul on Cuda: no GPU that this library serves multiplies MX blocks; choose "
                "Fp8Recipe<Delayed>, Fp8Recipe<Tensorwise> or Fp8Recipe<Blockwise>, or run Mxfp8 "
                "on Cpu, which emulates it");
  return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}();
template <>
inline constexpr cublasLtMatmulMatrixScale_t cublas_scale<PerTensor> =
    CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
template <>
inline constexpr cublasLtMatmulMatrixScale_t cublas_scale<PerBlock<1, 128, float>> =
    CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
template <>
inline constexpr cublasLtMatmulMatrixScale_t cublas_scale<PerBlock<128, 128, float>> =
    CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;

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
  cublasLtMatmulMatrixScale_t scale_a = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  cublasLtMatmulMatrixScale_t scale_b = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
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
  set_attribute(plan, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, key.scale_b, key);
  set_attribute(plan, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, key.scale_a, key);
  set_attribute(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.b, key);
  set_attribute(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.a, key);
}

/// Algorithms of which the fastest is taken.
inline constexpr int gemm_candidates = 8;
/// Times that each of them is timed.
inline constexpr int gemm_trials = 3;

/// Has a name, which nvcc 13 needs of a vector's elements; cuBLASLt's own type has none.
struct GemmCandidate {
  cublasLtMatmulAlgo_t algorithm;
};

/// The addresses of one product.
struct GemmAddresses {
  const void* a;
  const void* b;
  const void* addend;
  void* result;
  void* workspace;
};

/// Enqueues a product.
/// @param adds  whether the addend counts
inline cublasStatus_t start_product(cublasLtHandle_t handle, GemmPlan& plan, bool adds,
                                    const cublasLtMatmulAlgo_t& algorithm,
                                    const GemmAddresses& addresses, cudaStream_t stream) {
  const float alpha = 1.0f;
  const float beta = adds ? 1.0f : 0.0f;
  return cublasLtMatmul(handle, &plan.operation, &alpha, addresses.b, &plan.first, addresses.a,
                        &plan.second, &beta, addresses.addend, &plan.result, addresses.result,
                        &plan.result, &algorithm, addresses.workspace, cublas_workspace_bytes,
                        stream);
}

/// The algorithms that cuBLASLt's heuristics put first, the best guess first. None of them rounds
/// partial sums to the result's format.
inline std::vector<GemmCandidate> find_candidates(cublasLtHandle_t handle, GemmPlan& plan,
                                                  const GemmKey& key) {
  cublasLtMatmulPreferenceOpaque_t preference;
  check_cublas(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit", key);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check_cublas(
        cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute", key);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{cublas_workspace_bytes});
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    prefer(attribute, key.alignment);
  }
  std::array<cublasLtMatmulHeuristicResult_t, gemm_candidates> found{};
  int count = 0;
  check_cublas(cublasLtMatmulAlgoGetHeuristic(handle, &plan.operation, &plan.first, &plan.second,
                                              &plan.result, &plan.result, &preference,
                                              gemm_candidates, found.data(), &count),
               "cublasLtMatmulAlgoGetHeuristic", key);
  std::vector<GemmCandidate> candidates;
  for (int i = 0; i < count; ++i) {
    if (found[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS) {
      candidates.push_back({found[static_cast<std::size_t>(i)].algo});
    }
  }
  check_cublas(candidates.empty() ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS,
               "cublasLtMatmulAlgoGetHeuristic", key);
  return candidates;
}

/// A pair of events around work on a stream.
class GemmTimer {
 public:
  GemmTimer() {
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event), "cudaEventCreate");
  }
  GemmTimer(const GemmTimer&) = delete;
  GemmTimer& operator=(const GemmTimer&) = delete;
  ~GemmTimer() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }

  /// Milliseconds that `work()` takes on the GPU; waits for it.
  template <class Work>
  float time(cudaStream_t stream, const Work& work) {
    check(cudaEventRecord(events_[0], stream), "cudaEventRecord");
    work();
    check(cudaEventRecord(events_[1], stream), "cudaEventRecord");
    check(cudaEventSynchronize(events_[1]), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]), "cudaEventElapsedTime");
    return milliseconds;
  }

 private:
  std::array<cudaEvent_t, 2> events_{};
};

/// cuBLASLt's handle and all plans of one context.
class GemmPlans {
 public:
  GemmPlans() { check_cublas(cublasLtCreate(&handle_), "cublasLtCreate", GemmKey{}); }
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;
  ~GemmPlans() { cublasLtDestroy(handle_); }

  /// Enqueues the product that `key` describes.
  ///
  /// The first one of a key also chooses its algorithm, outside of any capture of a graph, and
  /// waits for the GPU: by timing the candidates on these very operands, or, in a deterministic
  /// context, by taking the heuristics' first. A product that adds to its own result cannot be
  /// repeated; its algorithm is therefore chosen together with that of the same product without
  /// addend, which the first micro-batch runs, and otherwise by the heuristics.
  /// @param scales  factors of a and b in device memory; null where they are not quantised
  void run(const GemmKey& key, const GemmScales& scales, const GemmAddresses& addresses,
           const Context<Cuda>& context) {
    auto place = plans_.find(key);
    if (place == plans_.end()) {
      const bool repeatable = !key.adds || addresses.addend != addresses.result;
      if (!key.adds) {
        GemmKey adding = key;
        adding.adds = true;
        if (!plans_.contains(adding)) make(adding, scales, addresses, true, context);
      }
      place = make(key, scales, addresses, repeatable, context);
    }
    GemmPlan& plan = place->second;
    set_scales(plan, key, scales);
    check_cublas(
        start_product(handle_, plan, key.adds, plan.algorithm, addresses, context.stream()),
        "cublasLtMatmul", key);
  }

 private:
  std::map<GemmKey, GemmPlan>::iterator make(const GemmKey& key, const GemmScales& scales,
                                             const GemmAddresses& addresses, bool repeatable,
                                             const Context<Cuda>& context) {
    GemmPlan plan{};
    describe(plan, key);
    set_scales(plan, key, scales);
    const std::vector<GemmCandidate> candidates = find_candidates(handle_, plan, key);
    plan.algorithm = candidates.front().algorithm;
    if (repeatable && candidates.size() > 1 && !context.limits().deterministic) {
      plan.algorithm = fastest(plan, key, candidates, addresses, context.stream());
    }
    return plans_.emplace(key, plan).first;
  }

  /// The candidate whose best time is shortest.
  cublasLtMatmulAlgo_t fastest(GemmPlan& plan, const GemmKey& key,
                               const std::vector<GemmCandidate>& candidates,
                               const GemmAddresses& addresses, cudaStream_t stream) {
    GemmTimer timer;
    cublasLtMatmulAlgo_t best = candidates.front().algorithm;
    float shortest = std::numeric_limits<float>::infinity();
    for (const auto& [algorithm] : candidates) {
      for (int trial = 0; trial <= gemm_trials; ++trial) {
        cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
        const float time = timer.time(stream, [&] {
          status = start_product(handle_, plan, key.adds, algorithm, addresses, stream);
        });
        if (status != CUBLAS_STATUS_SUCCESS) break;
        // The first trial may load the kernel.
        if (trial > 0 && time < shortest) {
          shortest = time;
          best = algorithm;
        }
      }
    }
    return best;
  }

  cublasLtHandle_t handle_ = nullptr;
  std::map<GemmKey, GemmPlan> plans_;
};

}  // namespace octavo::detail

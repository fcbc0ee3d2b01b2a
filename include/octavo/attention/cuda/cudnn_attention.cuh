/// @file
/// Interface of causal attention through cuDNN. Kept small, because cuDNN's frontend takes half a
/// minute to compile. cudnn_attention_impl.cuh implements it; a program compiled with
/// OCTAVO_WITH_CUDNN includes that file in one source file and links cuDNN. CMake's octavo::cuda
/// includes and links both.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/core/cuda/context.cuh>

#include <cstdint>
#include <memory>

namespace octavo OCTAVO_ABI::detail {

/// Tables that describe the documents to cuDNN, on the GPU: see cudnn_documents.cuh. Null if each
/// sequence is one document.
struct CudnnDocuments {
  std::int32_t* lengths = nullptr;      ///< [maximum documents]: rows of each document, 0 for
                                        ///< unused entries
  std::int64_t* qkv_offsets = nullptr;  ///< [maximum documents + 1]: number of elements before each
                                        ///< document
  std::int64_t* output_offsets = nullptr;     ///< [maximum documents + 1]
  std::int64_t* statistic_offsets = nullptr;  ///< [maximum documents + 1]
};

/// cuDNN's handle and plans of one context. A plan is created at the first use of a shape, which
/// must be outside any graph capture: run each shape once beforehand.
class CudnnAttention {
 public:
  /// @throws ConfigError  if cuDNN cannot be initialised
  CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;
  ~CudnnAttention();

  /// See attention_forward; the pointers are those of its views. The documents' tables occupy the
  /// beginning of the workspace.
  /// @throws ConfigError  if cuDNN does not support this shape
  /// @throws UsageError   if the workspace is too small
  void forward(const AttentionShape& shape, const CudnnDocuments& documents, const Bf16* qkv,
               Bf16* output, float* log_sum_exp, const Context<Cuda>& context);

  /// See attention_backward; the pointers are those of its views. Unless the context is
  /// deterministic, cuDNN sums the gradient of queries with atomics, so that two runs may differ in
  /// the last bits.
  /// @throws ConfigError  if cuDNN does not support this shape
  /// @throws UsageError   if the workspace is too small
  void backward(const AttentionShape& shape, const CudnnDocuments& documents, const Bf16* qkv,
                const Bf16* output, const Bf16* output_gradient, const float* log_sum_exp,
                Bf16* qkv_gradient, const Context<Cuda>& context);

  /// Returns the workspace that cuDNN requires, or the reason why it does not support a shape or
  /// its backward.
  /// @throws CudaError  if it failed for another reason; a later call may succeed
  [[nodiscard]] CudnnSupport query_support(const AttentionShape& shape, bool deterministic);

  /// Returns cuDNN's version, such as 91900.
  [[nodiscard]] static std::size_t version();

 private:
  struct Plans;
  std::unique_ptr<Plans> plans_;
};

}  // namespace octavo::detail

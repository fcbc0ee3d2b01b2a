/// @file
/// Causal attention through cuDNN: a narrow interface, because cuDNN's frontend takes half a minute
/// to include. cudnn_attention_impl.cuh implements it; a program that is compiled with
/// OCTAVO_WITH_CUDNN includes that in one source file and links cuDNN. CMake's octavo::cuda does.
#pragma once

#include <octavo/attention/attention.hpp>
#include <octavo/core/cuda/context.cuh>

#include <cstdint>
#include <memory>

namespace octavo OCTAVO_ABI::detail {

/// Tables that tell cuDNN where documents lie, on the GPU: see cudnn_documents.cuh. Null where each
/// sequence is one.
struct CudnnDocuments {
  std::int32_t* lengths = nullptr;      ///< [most documents]: rows of each, 0 where there is none
  std::int64_t* qkv_offsets = nullptr;  ///< [most documents + 1]: elements before each
  std::int64_t* output_offsets = nullptr;     ///< [most documents + 1]
  std::int64_t* statistic_offsets = nullptr;  ///< [most documents + 1]
};

/// cuDNN's handle and plans of one context. Plans are made at a shape's first use, outside of any
/// capture of a graph: run each shape once before.
class CudnnAttention {
 public:
  /// @throws ConfigError  if cuDNN cannot start
  CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;
  ~CudnnAttention();

  /// See attention_forward; the pointers are those of its views. The documents' tables take the
  /// beginning of the workspace.
  /// @throws ConfigError  if cuDNN does not serve this shape
  /// @throws UsageError   if the workspace is too small
  void forward(const AttentionShape& shape, const CudnnDocuments& documents, const Bf16* qkv,
               Bf16* output, float* log_sum_exp, const Context<Cuda>& context);

  /// See attention_backward; the pointers are those of its views. Unless the context is to be
  /// deterministic, cuDNN adds up the gradient of queries with atomics, so that two runs may differ
  /// in the last bits.
  /// @throws ConfigError  if cuDNN does not serve this shape
  /// @throws UsageError   if the workspace is too small
  void backward(const AttentionShape& shape, const CudnnDocuments& documents, const Bf16* qkv,
                const Bf16* output, const Bf16* output_gradient, const float* log_sum_exp,
                Bf16* qkv_gradient, const Context<Cuda>& context);

  /// The workspace that cuDNN asks for, or why it does not serve a shape or its backward.
  /// @throws CudaError  if it failed for another reason; a later question may succeed
  [[nodiscard]] CudnnAnswer ask(const AttentionShape& shape, bool deterministic);

  /// cuDNN's version, such as 91900.
  [[nodiscard]] static std::size_t version();

 private:
  struct Plans;
  std::unique_ptr<Plans> plans_;
};

}  // namespace octavo::detail

/// @file
/// Lengths and offsets of documents for cuDNN, on the GPU, so that one recorded graph works for
/// every batch.
#pragma once

#include <octavo/attention/cuda/cudnn_attention.cuh>
#include <octavo/attention/cuda/workspace.hpp>
#include <octavo/kernels/cuda/launch.cuh>

#include <cstdint>

namespace octavo OCTAVO_ABI::detail {

/// Distance between rows of each tensor, in elements.
struct CudnnRowStrides {
  std::int64_t qkv, output, statistics;
};

/// Writes the tables of all documents; those beyond the batch's last have no rows. A template,
/// because a non-template kernel in a header would be defined in each file that includes it.
template <class T>
OCTAVO_KERNEL void cudnn_documents_kernel(const std::int32_t* begins, Index most,
                                          CudnnRowStrides strides, CudnnDocuments tables) {
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i > most) return;
  const T begin = begins[i];
  tables.qkv_offsets[i] = begin * strides.qkv;
  tables.output_offsets[i] = begin * strides.output;
  tables.statistic_offsets[i] = begin * strides.statistics;
  if (i < most) tables.lengths[i] = begins[i + 1] - begins[i];
}

/// Writes the tables at the beginning of the context's workspace; enqueues. Does nothing without
/// documents.
/// @throws UsageError  if the workspace is too small
inline CudnnDocuments make_cudnn_documents(const AttentionShape& shape,
                                           const Documents<Cuda>& documents,
                                           const Context<Cuda>& context) {
  if (shape.most_documents == 0) return {};
  auto* const memory =
      workspace_of<std::byte>(context, cudnn_document_tables(shape), "attention of documents");
  const std::size_t table = cudnn_document_table(shape);
  const CudnnDocuments tables{reinterpret_cast<std::int32_t*>(memory),
                              reinterpret_cast<std::int64_t*>(memory + table),
                              reinterpret_cast<std::int64_t*>(memory + 2 * table),
                              reinterpret_cast<std::int64_t*>(memory + 3 * table)};
  const CudnnRowStrides strides{shape.heads.columns(), shape.heads.heads * shape.heads.head_dim,
                                shape.heads.heads};
  constexpr int threads = 128;
  launch("attention of documents", cudnn_documents_kernel<std::int64_t>,
         ceil_divide(shape.most_documents + 1, threads), threads, 0, context,
         documents.begins.data(), shape.most_documents, strides, tables);
  return tables;
}

}  // namespace octavo::detail

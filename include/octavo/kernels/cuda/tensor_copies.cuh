/// @file
/// Copies of boxes of a matrix to shared memory by the tensor memory accelerator of GPUs of compute
/// capability 9.0 or later. Source: PTX ISA 9.0, section on cp.async.bulk.tensor; CUDA driver API,
/// cuTensorMapEncodeTiled.
#pragma once

#include <octavo/kernels/cuda/copy_barrier.cuh>
#include <octavo/kernels/cuda/tensor_core.cuh>

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace octavo OCTAVO_ABI::detail {

/// Returns the description of boxes of a row-major matrix: `box_rows` rows of 128 bytes, in the
/// order of `SharedTile`. Elements outside the matrix are read as 0.
/// @param bytes_per_element  1 or 2
inline CUtensorMap describe_boxes(const char* name, const void* data, int bytes_per_element,
                                  Index rows, Index columns, int box_rows) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion", " in ", name);
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  const auto bytes = static_cast<cuuint64_t>(bytes_per_element);
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(columns) * bytes};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(panel_row_bytes / bytes_per_element),
                            static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMap map{};
  const CUresult result = encode(
      &map,
      bytes_per_element == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
      const_cast<void*>(data), extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require<CudaError>(result == CUDA_SUCCESS, name, ": cuTensorMapEncodeTiled failed with error ",
                     static_cast<int>(result), " for a matrix of ", rows, " by ", columns);
  return map;
}

/// Starts copying a box. One thread calls it.
__device__ inline void copy_box(std::uint32_t target, const CUtensorMap& map, Index column,
                                Index row, CopyBarrier barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(target),
      "l"(&map), "r"(static_cast<int>(column)), "r"(static_cast<int>(row)), "r"(barrier.address)
      : "memory");
}

/// Starts copying a box to both blocks of a cluster of two, to the same addresses, where the
/// barrier of each counts the bytes. One thread calls it.
__device__ inline void copy_box_to_both(std::uint32_t target, const CUtensorMap& map, Index column,
                                        Index row, CopyBarrier barrier) {
  constexpr std::uint16_t both = 3;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(target),
      "l"(&map), "r"(static_cast<int>(column)), "r"(static_cast<int>(row)), "r"(barrier.address),
      "h"(both)
      : "memory");
}

}  // namespace octavo::detail

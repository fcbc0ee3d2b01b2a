/// @file
/// Elementwise loops over indices on the `Cuda` device.
#pragma once

#include <octavo/kernels/cuda/launch.cuh>

#include <cub/device/device_for.cuh>

namespace octavo OCTAVO_ABI::kernels {

/// Enqueues `body(i)` for 0 ≤ i < count, in any order.
/// @param name  the operation, for error messages
/// @param body  copied to the GPU: a struct with `__device__ void operator()(Index i) const`
template <class Body>
void for_each_index(const char* name, Index count, const Context<Cuda>& context, const Body& body) {
  check(cub::DeviceFor::Bulk(count, body, context.stream()), "cub::DeviceFor::Bulk", " in ", name);
}

}  // namespace octavo::kernels

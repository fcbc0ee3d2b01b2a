// The checks that need the Cuda device, implemented in cuda_checks.cu.
#pragma once

#include <doctor/findings.hpp>
#include <doctor/table_card.hpp>

namespace doctor {

/// Reports each GPU and whether it is supported. For GPU `gpu`, also reports its libraries,
/// compares it with the results of the `Cpu` device for each recipe, and measures the speed of BF16
/// and FP8. If no GPU is available or supported, or `gpu` is not, a check fails with the reason.
/// @param references  results of each recipe on the `Cpu` device
void check_cuda(int gpu, const std::vector<Reference>& references, Report& report);

/// Returns the GPU of this index, with the features that its kernels have in this program.
/// @throws CudaError    if there is none
/// @throws ConfigError  if Octavo does not support it
TableCard card_here(int gpu);

}  // namespace doctor

// The part of the doctor that needs the Cuda device; cuda_checks.cu implements it.
#pragma once

#include <doctor/findings.hpp>

namespace doctor {

/// Says what a GPU and its libraries are, compares them with what the `Cpu` device made of each
/// recipe, and prints the speed of BF16 and FP8. Without a GPU it says so, and nothing fails.
/// @param references  of "bf16", "fp8 delayed", "fp8 tensorwise", "fp8 blockwise"
void check_cuda(int gpu, const std::vector<Reference>& references, Report& report);

}  // namespace doctor

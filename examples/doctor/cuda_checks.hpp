// The part of the doctor that needs the Cuda device; cuda_checks.cu implements it.
#pragma once

#include <doctor/findings.hpp>

namespace doctor {

/// Says what each GPU is and whether it is served; then, of one, what its libraries are, how it
/// compares with what the `Cpu` device made of each recipe, and the speed of BF16 and FP8. Where no
/// GPU answers, none is served, or `gpu` is not, a check fails and says why.
/// @param references  of each recipe that the `Cpu` device was examined with
void check_cuda(int gpu, const std::vector<Reference>& references, Report& report);

}  // namespace doctor

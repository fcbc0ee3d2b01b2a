// nvcc: -gencode=arch=compute_75,code=sm_75
// expect: Octavo's kernels need compute capability 8.0 or later: pass nvcc an architecture such as
#include <octavo/core/cuda/architecture.cuh>

// nvcc: -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_100a,code=sm_100a
// expect: Octavo's kernels are for sm_90a alone: pass nvcc -gencode=arch=compute_90a,code=sm_90a
#include <octavo/core/cuda/architecture.cuh>

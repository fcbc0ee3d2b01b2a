// expect: octavo/cuda.cuh is for files that nvcc compiles: name this one NAME.cu
#if defined(OCTAVO_COMPILE_FAIL_CONTROL)
#include <octavo/octavo.hpp>
#else
#include <octavo/cuda.cuh>
#endif

// The only source file of our own programs and tests that compiles Octavo's attention kernels.
#include <octavo/attention/cuda/compiled_attention.cuh>

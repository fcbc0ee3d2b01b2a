// Compiled with OpenMP, beside a file that is not.
#include <octavo/core/context.hpp>

int threads_with_openmp(int threads) { return octavo::Context<octavo::Cpu>(threads).threads(); }

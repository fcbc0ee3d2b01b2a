// The build compiles this file for the oldest processors, unlike the others of the same program, as
// happens if a project's files have different flags.

#include "gemm/other_flags.hpp"

#include <octavo/gemm/matmul.hpp>
#include <octavo/memory/buffer.hpp>

#include <gtest/gtest.h>

#include "gemm/matmul_reference.hpp"

namespace other_flags {

using octavo::Cpu;
using octavo::GemmOutput;
using support::Matrix;

Parts parts() {
  return {octavo::detail::sgemm_lanes, reinterpret_cast<const void*>(&octavo::detail::sgemm)};
}

Matrix<float> product(const Matrix<float>& x, const Matrix<float>& w) {
  // Not by a class of tests, which the other files compile, too, with more threads.
  octavo::Context<Cpu> context(1);
  octavo::Buffer<Cpu> workspace(octavo::matmul_workspace(x.rows, w.rows, x.columns, context),
                                context);
  context.bind_workspace({workspace.data(), workspace.size()});
  Matrix<float> result(x.rows, w.rows);
  (void)octavo::matmul_forward(x.input(), w.input(), GemmOutput<float, Cpu>{result.view(), {}},
                               context);
  return result;
}

TEST(CompilerFlags, ExcludeAvx) {
#if defined(__AVX__)
  FAIL() << "tests/CMakeLists.txt does not give this file flags of its own";
#endif
}

}  // namespace other_flags

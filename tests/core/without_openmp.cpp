// Compiled without OpenMP: the Cpu device has one thread, and says so to who asks for more. In the
// other file of the program it has what it was asked for.
#include <octavo/core/context.hpp>

#include <cstdio>
#include <string_view>

int threads_with_openmp(int threads);

int main() try {
  using octavo::Context;
  using octavo::Cpu;
  if (threads_with_openmp(4) != 4) return 1;
  if (Context<Cpu>(0).threads() != 1 || Context<Cpu>(1).threads() != 1) return 1;
  const Context<Cpu> context(8);
  return 1;
} catch (const octavo::ConfigError& error) {
  std::puts(error.what());
  const std::string_view text = error.what();
  return text.starts_with("threads is 8") && text.ends_with("or give 0 or 1") ? 0 : 1;
}

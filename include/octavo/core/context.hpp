/// @file
/// The execution context of the `Cpu` device, loops over its threads, and what plans need to know
/// of each device.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/macros.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace octavo OCTAVO_ABI {

template <>
struct DeviceLimits<Cpu> {
  int threads = 1;  ///< threads of each operation
};

/// What cuDNN says of an attention on the GPU at hand.
struct CudnnAnswer {
  std::size_t forward = 0;   ///< bytes of workspace
  std::size_t backward = 0;  ///< bytes of workspace
  std::string refusal;  ///< why it has no backward, a deterministic one where that is asked for
  std::string forward_refusal;  ///< why it does not run the shape at all
};

/// Plans of the `Cuda` device depend on no property of a GPU, so that any machine can make them;
/// but where one is there, its libraries can be asked for what is otherwise computed.
template <>
struct DeviceLimits<Cuda> {
  /// Attention in BF16 may run through cuDNN; unless said, as this program is compiled.
#if defined(OCTAVO_WITH_CUDNN)
  bool cudnn = true;
#else
  bool cudnn = false;
#endif
  /// Equal inputs give equal bits in every run: nothing adds in an order of its own, and no
  /// algorithm is chosen by timing it. Algorithms that were chosen before (`take_gemm_plans`) are
  /// inputs.
  bool deterministic = false;
  /// Bytes that cuDNN's deterministic backward may take, which grow with the square of a sequence's
  /// length; where it needs more, Octavo's own backward runs, which is deterministic, too.
  std::size_t most_deterministic_workspace = std::size_t{8} << 30;
  /// Of the attention that is planned with these limits; none: cuDNN was not asked.
  std::optional<CudnnAnswer> cudnn_answer{};
};

// A program may have files that are compiled with OpenMP and files that are not. The functions here
// that differ between the two have a namespace for each, or the linker would keep either one's code
// for both. Operations that call them, such as `quantize`, have one name in both kinds of files:
// the linker keeps one, with threads or without. Results do not differ; compile all files alike.
#if defined(_OPENMP)
#define OCTAVO_LOOPS openmp_loops
#else
#define OCTAVO_LOOPS serial_loops
#endif
namespace detail {
inline namespace OCTAVO_LOOPS {

/// The threads of a context that is asked for so many: see Context<Cpu>.
inline int checked_threads(int threads) {
#if defined(_OPENMP)
  constexpr int many = 256;  // whoever tests with more threads than processors is served, too
  const int most = std::max(many, omp_get_num_procs());
  require<ConfigError>(threads >= 0 && threads <= most, "threads is ", threads,
                       "; give 0 (all) or a number up to ", most);
  const int all = omp_get_max_threads();
  require<ConfigError>(threads > 0 || all <= most, "OpenMP offers ", all,
                       " threads; set OMP_NUM_THREADS to a number up to ", most);
  return threads > 0 ? threads : all;
#else
  require<ConfigError>(
      threads == 0 || threads == 1, "threads is ", threads,
      ", but this file of the program, or another that uses the same functions, is "
      "compiled without OpenMP; compile all with -fopenmp, or give 0 or 1");
  return 1;
#endif
}

}  // namespace OCTAVO_LOOPS
}  // namespace detail

/// Threads and workspace for operations on the `Cpu` device. Not copyable: operations that share
/// a context share its workspace, so they must not run at the same time.
template <>
class Context<Cpu> : detail::FindsBodies {
 public:
  /// @param threads  number of threads for each operation; 0 takes all that OpenMP offers
  /// @throws ConfigError  for a negative number; for one above both 256 and the processors; for
  ///                      more than 1 where the caller is compiled without OpenMP
  [[gnu::always_inline]] explicit Context(int threads = 0)  // each file has its own
      : threads_(detail::checked_threads(threads)) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] int threads() const { return threads_; }
  operator DeviceLimits<Cpu>() const { return {threads_}; }  // NOLINT: a context says all of it

  /// Memory that one operation at a time may use; its content does not outlive the operation.
  [[nodiscard]] std::span<std::byte> workspace() const { return workspace_; }
  void bind_workspace(std::span<std::byte> workspace) { workspace_ = workspace; }

  /// Waits until all that was enqueued has run; the `Cpu` device never runs late.
  void synchronize() const {}

 private:
  int threads_;
  std::span<std::byte> workspace_;
};

/// The context's workspace, for an operation that needs `bytes` of it.
/// @throws UsageError  if it is smaller
template <class T, Device D>
[[nodiscard]] T* workspace_of(const Context<D>& context, std::size_t bytes, const char* operation) {
  require<UsageError>(context.workspace().size() >= bytes, operation, " needs a workspace of ",
                      bytes, " bytes, but the context has ", context.workspace().size(),
                      "; bind a larger one, such as a model's bind() does");
  return reinterpret_cast<T*>(context.workspace().data());
}

inline namespace OCTAVO_LOOPS {

/// Calls `body(i)` for 0 ≤ i < count, spread over the context's threads. Results must not depend
/// on the order of calls; work is dealt out in equal runs, so they do not depend on the number of
/// threads either.
template <class Body>
void parallel_for(Index count, const Context<Cpu>& context, const Body& body) {
#if defined(_OPENMP)
  if (context.threads() > 1 && count > 1) {
#pragma omp parallel for schedule(static) num_threads(context.threads())
    for (Index i = 0; i < count; ++i) body(i);
    return;
  }
#else
  (void)context;
#endif
  for (Index i = 0; i < count; ++i) body(i);
}

/// Index of the calling thread inside `parallel_for`, below `Context<Cpu>::threads()`.
inline int thread_index() {
#if defined(_OPENMP)
  return omp_get_thread_num();
#else
  return 0;
#endif
}

}  // namespace OCTAVO_LOOPS
#undef OCTAVO_LOOPS

/// Number of equal pieces of at most `size` that cover `count`.
OCTAVO_HOST_DEVICE constexpr Index ceil_divide(Index count, Index size) {
  return (count + size - 1) / size;
}

/// The smallest multiple of `size` that is at least `count`.
OCTAVO_HOST_DEVICE constexpr Index round_up(Index count, Index size) {
  return ceil_divide(count, size) * size;
}

}  // namespace octavo

/// @file
/// The execution context of the `Cpu` device, loops over its threads, and what plans need to know
/// of each device.
#pragma once

#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/macros.hpp>
#include <octavo/core/thread_pool.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include <sched.h>

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

namespace detail {

/// Processors that this process may run on.
inline int available_processors() {
  cpu_set_t mask;
  if (::sched_getaffinity(0, sizeof(mask), &mask) == 0) return CPU_COUNT(&mask);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// Threads of a context that is created for `threads`: see Context<Cpu>.
inline int checked_threads(int threads) {
  const int most = std::max(256, available_processors());
  require<ConfigError>(threads >= 0 && threads <= most, "threads must be 0 (all) to ", most,
                       ", but is ", threads);
  const char* variable = std::getenv("OMP_NUM_THREADS");
  if (threads > 0) return threads;
  if (variable == nullptr || *variable == '\0') return available_processors();
  const int wanted = std::atoi(variable);
  require<ConfigError>(wanted >= 1 && wanted <= most, "OMP_NUM_THREADS must be 1 to ", most,
                       ", but is '", variable, "'; change or unset it");
  return wanted;
}

}  // namespace detail

/// Threads and workspace for operations on the `Cpu` device. Not copyable: operations that share
/// a context share its workspace, so they must not run at the same time.
template <>
class Context<Cpu> : detail::FindsBodies {
 public:
  /// @param threads  number of threads for each operation; 0: as many as the variable
  ///                 OMP_NUM_THREADS says, which launchers set, else one for each processor that
  ///                 the process may use
  /// @throws ConfigError  for a negative number, and for one above both 256 and the processors
  explicit Context(int threads = 0) : pool_(detail::checked_threads(threads)) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] int threads() const { return pool_.threads(); }
  /// The threads that `parallel_for` shares a loop with.
  [[nodiscard]] ThreadPool& pool() const { return pool_; }
  operator DeviceLimits<Cpu>() const { return {threads()}; }  // NOLINT: a context says all of it

  /// Memory that one operation at a time may use; its content does not outlive the operation.
  [[nodiscard]] std::span<std::byte> workspace() const { return workspace_; }
  void bind_workspace(std::span<std::byte> workspace) { workspace_ = workspace; }

  /// Waits until all that was enqueued has run; the `Cpu` device never runs late.
  void synchronize() const {}

 private:
  mutable ThreadPool pool_;
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

/// Number of equal pieces of at most `size` that cover `count`.
OCTAVO_HOST_DEVICE constexpr Index ceil_divide(Index count, Index size) {
  return (count + size - 1) / size;
}

/// The smallest multiple of `size` that is at least `count`.
OCTAVO_HOST_DEVICE constexpr Index round_up(Index count, Index size) {
  return ceil_divide(count, size) * size;
}

/// Elements of a loop below which it runs on the calling thread: a few microseconds of work, for
/// which waking other threads does not pay, and on a busy machine costs milliseconds.
inline constexpr Index least_parallel_elements = 8192;
/// Of calls that take long: the loop is always shared.
inline constexpr Index many_elements = least_parallel_elements;

/// Calls `body(i)` for 0 ≤ i < count, spread over the context's threads. Results must not depend
/// on the order of calls, nor on which thread makes which. A loop inside a loop runs on the thread
/// that meets it.
/// @param elements  that one call works on, roughly: decides whether the loop is worth several
///                  threads
template <class Body>
void parallel_for(Index count, Index elements, const Context<Cpu>& context, const Body& body) {
  const bool is_small = count < 2 || elements < ceil_divide(least_parallel_elements, count);
  const bool is_nested = detail::loop_place().is_inside;
  if (!is_nested && !is_small && context.threads() > 1) return context.pool().run(count, body);
  std::optional<detail::InLoop> inside;
  if (is_nested) inside.emplace(0);
  for (Index i = 0; i < count; ++i) body(i);
}

/// Number of the calling thread inside `parallel_for`, below `Context<Cpu>::threads()`.
inline int thread_index() { return detail::loop_place().thread; }

}  // namespace octavo

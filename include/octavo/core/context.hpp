/// @file
/// The execution context of the `Cpu` device, loops over its threads, and the properties of each
/// device that plans need.
#pragma once

#include <octavo/core/capability.hpp>
#include <octavo/core/device.hpp>
#include <octavo/core/error.hpp>
#include <octavo/core/macros.hpp>
#include <octavo/core/thread_pool.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>

namespace octavo OCTAVO_ABI {

template <>
struct DeviceLimits<Cpu> {
  int threads = 1;  ///< threads of each operation
};

/// Describes how cuDNN supports an attention on the current GPU.
struct CudnnSupport {
  std::size_t forward = 0;   ///< bytes of workspace
  std::size_t backward = 0;  ///< bytes of workspace
  std::string refusal;  ///< why it has no backward, or no deterministic one if that is requested
  std::string forward_refusal;  ///< why it does not support the shape at all
};

/// Plans of the `Cuda` device depend only on these features of a GPU, so that any machine can
/// compute them. If the GPU is available, its libraries can report values that are otherwise
/// computed.
template <>
struct DeviceLimits<Cuda> {
  /// Features of the GPU; by default, those of an H100.
  GpuFeatures gpu{};
  /// Name of the GPU in messages, such as "GPU 0 (NVIDIA A100-SXM4-80GB)".
  std::string card = "the GPU";
  /// Whether attention in BF16 may run through cuDNN; by default, if this program is compiled with
  /// it.
#if defined(OCTAVO_WITH_CUDNN)
  bool cudnn = true;
#else
  bool cudnn = false;
#endif
  /// Whether equal inputs give equal bits in every run: every sum has a fixed order, and no
  /// algorithm is chosen by timing it. Algorithms that were chosen earlier (`take_gemm_plans`) are
  /// inputs.
  bool deterministic = false;
  /// Maximum workspace in bytes of cuDNN's deterministic backward, which grows with the square of
  /// the sequence length. If cuDNN needs more, Octavo's backward runs, which is also deterministic.
  std::size_t max_deterministic_workspace = std::size_t{8} << 30;
  /// cuDNN's support for each attention that is planned with these limits, by its number of heads
  /// and KV heads, head_dim and window. Without an entry, cuDNN was not queried.
  std::vector<std::pair<std::array<Index, 4>, CudnnSupport>> cudnn_support{};
};

namespace detail {

/// Returns the number of processors that this process may run on.
inline int available_processors() {
  cpu_set_t mask;
  if (::sched_getaffinity(0, sizeof(mask), &mask) == 0) return CPU_COUNT(&mask);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// Returns the number of threads of a context that is created for `threads`: see Context<Cpu>.
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

/// Threads and workspace for operations on the `Cpu` device. Not copyable. Operations that share a
/// context share its workspace, so they must not run at the same time.
template <>
class Context<Cpu> : detail::FindsBodies {
 public:
  /// @param threads  number of threads for each operation; 0: the value of OMP_NUM_THREADS, which
  ///                 launchers set, or if that is unset, one for each processor that the process
  ///                 may use
  /// @throws ConfigError  if it is negative, or above both 256 and the number of processors
  explicit Context(int threads = 0) : pool_(detail::checked_threads(threads)) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] int threads() const { return pool_.threads(); }
  /// Returns the threads that `parallel_for` shares a loop with.
  [[nodiscard]] ThreadPool& pool() const { return pool_; }
  operator DeviceLimits<Cpu>() const { return {threads()}; }  // NOLINT: implicit

  /// Returns memory that one operation at a time may use; its content does not outlive the
  /// operation.
  [[nodiscard]] std::span<std::byte> workspace() const { return workspace_; }
  void bind_workspace(std::span<std::byte> workspace) { workspace_ = workspace; }

  /// Waits until all enqueued work has run; the `Cpu` device never runs work asynchronously.
  void synchronize() const {}

 private:
  mutable ThreadPool pool_;
  std::span<std::byte> workspace_;
};

/// Returns the context's workspace for an operation that needs `bytes` of it.
/// @throws UsageError  if it is smaller
template <class T, Device D>
[[nodiscard]] T* workspace_of(const Context<D>& context, std::size_t bytes, const char* operation) {
  require<UsageError>(context.workspace().size() >= bytes, operation, " needs a workspace of ",
                      bytes, " bytes, but the context has ", context.workspace().size(),
                      "; bind a larger one, as a model's bind() does");
  return reinterpret_cast<T*>(context.workspace().data());
}

/// Returns the number of equal pieces of at most `size` that cover `count`.
OCTAVO_HOST_DEVICE constexpr Index ceil_divide(Index count, Index size) {
  return (count + size - 1) / size;
}

/// Returns the smallest multiple of `size` that is at least `count`.
OCTAVO_HOST_DEVICE constexpr Index round_up(Index count, Index size) {
  return ceil_divide(count, size) * size;
}

/// Loops over fewer elements run on the calling thread. They take a few microseconds; waking other
/// threads would take longer, and on a busy machine even milliseconds.
inline constexpr Index least_parallel_elements = 8192;
/// For loops with long calls, which always use several threads.
inline constexpr Index many_elements = least_parallel_elements;

/// Calls `body(i)` for 0 ≤ i < count, spread over the context's threads. Results must depend
/// neither on the order of the calls nor on which thread runs which call. A nested loop runs on the
/// thread that reaches it.
/// @param elements  approximate number of elements that one call processes: decides whether the
///                  loop is worth several threads
template <class Body>
void parallel_for(Index count, Index elements, const Context<Cpu>& context, const Body& body) {
  const bool is_small = count < 2 || elements < ceil_divide(least_parallel_elements, count);
  const bool is_nested = detail::loop_place().is_inside;
  if (!is_nested && !is_small && context.threads() > 1) return context.pool().run(count, body);
  std::optional<detail::InLoop> inside;
  if (is_nested) inside.emplace(0);
  for (Index i = 0; i < count; ++i) body(i);
}

/// Returns the index of the calling thread inside `parallel_for`, below `Context<Cpu>::threads()`.
inline int thread_index() { return detail::loop_place().thread; }

}  // namespace octavo

/// @file
/// The execution context of the `Cuda` device. Host code: it needs the CUDA runtime's headers, not
/// nvcc.
#pragma once

#include <octavo/core/capability.hpp>
#include <octavo/core/context.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <typeindex>
#include <unordered_map>

/// Marks a kernel. Hidden, so that two shared libraries cannot launch each other's kernels.
#define OCTAVO_KERNEL __attribute__((visibility("hidden"))) __global__

namespace octavo OCTAVO_ABI {

/// Throws CudaError unless a call of the CUDA runtime succeeded; MemoryError where the GPU's memory
/// did not suffice.
/// @param call    the call's name, such as "cudaStreamCreate"
/// @param advice  further parts of the message: what to do
template <class... Parts>
void check(cudaError_t status, const char* call, const Parts&... advice) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // forgets the error, or the check of the next launch would meet it again
  const std::string what = message(call, " failed: ", cudaGetErrorString(status), " (",
                                   cudaGetErrorName(status), ")", advice...);
  if (status == cudaErrorMemoryAllocation) throw MemoryError(what);
  throw CudaError(what, status);
}

/// GPUs that this process sees.
/// @throws CudaError  if it sees none
[[nodiscard]] inline int visible_gpus() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount",
        "; see nvidia-smi and CUDA_VISIBLE_DEVICES");
  return count;
}

/// A stream of one GPU, and the workspace of the operations on it. All that is launched with one
/// context runs in the order of the launches. Not copyable, and for one thread at a time:
/// operations that share a context share its workspace. A thread may use several contexts, of one
/// GPU or of several, by turns: an operation makes its context's GPU the thread's current one, and
/// leaves it so.
template <>
class Context<Cuda> : detail::FindsBodies {
 public:
  /// Whose blocks of threads run first where those of two contexts wait for room.
  enum class Priority { normal, high };

  /// @param gpu       index of the GPU, as CUDA counts them
  /// @param priority  of the context's work
  /// @throws CudaError    if there is no such GPU
  /// @throws ConfigError  if Octavo's kernels do not run on it
  explicit Context(int gpu = 0, Priority priority = Priority::normal) : gpu_(gpu) {
    check(cudaSetDevice(gpu), "cudaSetDevice", " for GPU ", gpu,
          "; see nvidia-smi for the GPUs of this machine and CUDA_VISIBLE_DEVICES for those that "
          "the program may use");
    read_card();
    int lowest = 0;
    int highest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                       priority == Priority::high ? highest : lowest),
          "cudaStreamCreateWithPriority");
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() {
    cudaSetDevice(gpu_);
    states_.clear();
    // An error of a kernel that ran earlier cannot be thrown here; synchronize() reports it.
    cudaStreamDestroy(stream_);
  }

  [[nodiscard]] int gpu() const { return gpu_; }
  /// The GPU's name, such as "NVIDIA H200".
  [[nodiscard]] const std::string& card() const { return card_; }
  /// The GPU's compute capability, times ten.
  [[nodiscard]] int capability() const { return capability_; }

  /// The stream to launch on now. Makes its GPU the thread's current one, without which a launch on
  /// it fails; so ask for it at each launch.
  [[nodiscard]] cudaStream_t stream() const {
    make_current();
    return stream_;
  }

  /// Makes the GPU the calling thread's current one, for calls of the CUDA runtime that take no
  /// stream.
  void make_current() const {
    int current = -1;
    check(cudaGetDevice(&current), "cudaGetDevice");
    if (current != gpu_) check(cudaSetDevice(gpu_), "cudaSetDevice", " for GPU ", gpu_);
  }

  operator DeviceLimits<Cuda>() const { return limits_; }  // NOLINT: a context says all of it

  /// Memory of the GPU that one operation at a time may use; its content does not outlive the
  /// operation.
  [[nodiscard]] std::span<std::byte> workspace() const { return workspace_; }
  void bind_workspace(std::span<std::byte> workspace) { workspace_ = workspace; }

  [[nodiscard]] const DeviceLimits<Cuda>& limits() const { return limits_; }
  /// See DeviceLimits. To be called before a model is laid out and before the first operation.
  void set_deterministic(bool deterministic) { limits_.deterministic = deterministic; }
  /// See DeviceLimits. To be called before a model is laid out and before the first operation.
  /// @throws ConfigError  for true in a program that is compiled without cuDNN
  void set_cudnn(bool cudnn) {
    require<ConfigError>(!cudnn || DeviceLimits<Cuda>().cudnn,
                         "attention is to run through cuDNN, but this program is compiled without "
                         "it; configure the build where cuDNN and its frontend are found");
    limits_.cudnn = cudnn;
  }

  /// Waits until all that was enqueued has run.
  /// @throws CudaError  if any of it failed
  void synchronize() const { check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize"); }

  /// The context's one `State`, made at first use and destroyed with the context: where later
  /// rooms keep library handles and what they learned about this GPU, which becomes the thread's
  /// current one.
  template <class State>
  [[nodiscard]] State& state() const {
    make_current();
    std::shared_ptr<void>& state = states_[std::type_index(typeid(State))];
    if (state == nullptr) state = std::make_shared<State>();
    return *static_cast<State*>(state.get());
  }

 private:
  void read_card() {
    cudaDeviceProp card{};
    check(cudaGetDeviceProperties(&card, gpu_), "cudaGetDeviceProperties");
    card_ = card.name;
    capability_ = 10 * card.major + card.minor;
    require_served(gpu_, card.name, capability_);
  }

  int gpu_;
  std::string card_;
  int capability_ = 0;
  cudaStream_t stream_ = nullptr;
  DeviceLimits<Cuda> limits_;
  std::span<std::byte> workspace_;
  mutable std::unordered_map<std::type_index, std::shared_ptr<void>> states_;
};

}  // namespace octavo

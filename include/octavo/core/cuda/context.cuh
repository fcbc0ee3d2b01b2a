/// @file
/// The execution context of the `Cuda` device. Host code: it needs the CUDA runtime's headers, but
/// not nvcc.
#pragma once

#include <octavo/core/capability.hpp>
#include <octavo/core/context.hpp>

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <typeindex>
#include <unordered_map>

/// Marks a kernel. Hidden, so that two shared libraries cannot launch each other's kernels.
#define OCTAVO_KERNEL __attribute__((visibility("hidden"))) __global__

namespace octavo OCTAVO_ABI {

namespace detail {
/// Returns which architecture of this program's kernels the current GPU runs. Null in a program
/// without kernels; headers with kernels set it.
inline KernelArchitecture (*kernel_architecture)(int gpu,
                                                 const DeviceLimits<Cuda>& limits) = nullptr;
}  // namespace detail

/// Throws CudaError unless a call of the CUDA runtime succeeded; MemoryError if the GPU has too
/// little memory.
/// @param call    the call's name, such as "cudaStreamCreate"
/// @param advice  further parts of the message: what to do
template <class... Parts>
void check(cudaError_t status, const char* call, const Parts&... advice) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // otherwise the check of the next launch would report it again
  const std::string what = message(call, " failed: ", cudaGetErrorString(status), " (",
                                   cudaGetErrorName(status), ")", advice...);
  if (status == cudaErrorMemoryAllocation) throw MemoryError(what);
  throw CudaError(what, status);
}

/// Returns the number of GPUs that this process can use.
/// @throws CudaError  if there are none
[[nodiscard]] inline int visible_gpus() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount",
        "; see nvidia-smi and CUDA_VISIBLE_DEVICES");
  return count;
}

/// A stream of one GPU, and the workspace of the operations on it. All work launched with one
/// context runs in launch order. Not copyable, and for one thread at a time: operations that share
/// a context share its workspace. A thread may alternate between several contexts, of one GPU or of
/// several: an operation makes its context's GPU current in the calling thread, and does not
/// restore the previous one.
template <>
class Context<Cuda> : detail::FindsBodies {
 public:
  /// If two contexts wait for free multiprocessors, thread blocks of the one with high priority are
  /// scheduled first.
  enum class Priority { normal, high };

  /// @param gpu       index of the GPU, as CUDA counts them
  /// @param priority  of the context's work
  /// @throws CudaError    if there is no such GPU
  /// @throws ConfigError  if the GPU is too old for Octavo's kernels, or the kernels are compiled
  ///                      for other GPUs
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
    // An error of an earlier kernel cannot be thrown here; `synchronize()` reports it.
    cudaStreamDestroy(stream_);
  }

  [[nodiscard]] int gpu() const { return gpu_; }
  /// The GPU's name, such as "NVIDIA H200".
  [[nodiscard]] const std::string& card() const { return card_; }
  /// Returns the GPU's PCI bus id, such as "0000:3b:00.0", by which other libraries know it.
  [[nodiscard]] std::string bus_id() const {
    std::array<char, 32> text{};
    check(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), gpu_),
          "cudaDeviceGetPCIBusId");
    return text.data();
  }
  /// The GPU's compute capability, times ten.
  [[nodiscard]] int capability() const { return capability_; }
  /// Returns the number of multiprocessors of the GPU, or of its MIG partition.
  [[nodiscard]] int multiprocessors() const { return multiprocessors_; }

  /// Returns the stream to launch on, and makes the context's GPU current in the calling thread.
  /// Call it before each launch, which fails otherwise.
  [[nodiscard]] cudaStream_t stream() const {
    make_current();
    return stream_;
  }

  /// Makes the GPU the calling thread's current one, for calls of the CUDA runtime without a stream
  /// parameter.
  void make_current() const {
    int current = -1;
    check(cudaGetDevice(&current), "cudaGetDevice");
    if (current != gpu_) check(cudaSetDevice(gpu_), "cudaSetDevice", " for GPU ", gpu_);
  }

  operator DeviceLimits<Cuda>() const { return limits_; }  // NOLINT: implicit

  /// Returns memory of the GPU that one operation at a time may use; its content does not outlive
  /// the operation.
  [[nodiscard]] std::span<std::byte> workspace() const { return workspace_; }
  void bind_workspace(std::span<std::byte> workspace) { workspace_ = workspace; }

  [[nodiscard]] const DeviceLimits<Cuda>& limits() const { return limits_; }
  /// See DeviceLimits. Must be called before a model is laid out and before the first operation.
  void set_deterministic(bool deterministic) { limits_.deterministic = deterministic; }
  /// Limits the features that kernels are chosen by to those of another GPU, such as
  /// features_of(80), to run its kernels on this one. Must be called before a model is laid out and
  /// before the first operation.
  void set_gpu(const GpuFeatures& gpu) { limits_.gpu = common_features(gpu, limits_.gpu); }
  /// See DeviceLimits. Must be called before a model is laid out and before the first operation.
  /// @throws ConfigError  for true in a program that is compiled without cuDNN
  void set_cudnn(bool cudnn) {
    require<ConfigError>(
        !cudnn || DeviceLimits<Cuda>().cudnn,
        "attention through cuDNN needs a program that is compiled with cuDNN; install cuDNN and "
        "its frontend, and configure the build again");
    limits_.cudnn = cudnn;
  }

  /// Waits until all enqueued work has run.
  /// @throws CudaError  if any of it failed
  void synchronize() const { check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize"); }

  /// Returns the context's only `State`, created at first use and destroyed with the context.
  /// Higher rooms keep library handles and measurements of this GPU in it. Makes the GPU the
  /// thread's current one.
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
    multiprocessors_ = card.multiProcessorCount;
    limits_.card = message("GPU ", gpu_, " (", card_, ")");
    const std::string refusal = capability_refusal(capability_);
    require<ConfigError>(refusal.empty(), limits_.card, ": ", refusal,
                         "; choose another GPU, or the Cpu device");
    limits_.gpu = features_of(capability_);
    limits_.gpu.shared_bytes = static_cast<Index>(card.sharedMemPerBlockOptin);
    if (detail::kernel_architecture == nullptr) return;
    limits_.gpu = compiled_features(limits_.gpu, detail::kernel_architecture(gpu_, limits_));
  }

  int gpu_;
  std::string card_;
  int capability_ = 0;
  int multiprocessors_ = 0;
  cudaStream_t stream_ = nullptr;
  DeviceLimits<Cuda> limits_;
  std::span<std::byte> workspace_;
  mutable std::unordered_map<std::type_index, std::shared_ptr<void>> states_;
};

}  // namespace octavo

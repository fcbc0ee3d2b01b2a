/// @file
/// The execution context of the `Cuda` device. Host code: it needs the CUDA runtime's headers, not
/// nvcc.
#pragma once

#include <octavo/core/context.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>
#include <typeindex>
#include <unordered_map>

/// Marks a kernel. Hidden, so that two shared libraries cannot launch each other's kernels.
#define OCTAVO_KERNEL __attribute__((visibility("hidden"))) __global__

namespace octavo {

/// Throws CudaError unless a call of the CUDA runtime succeeded.
/// @param call    the call's name, such as "cudaStreamCreate"
/// @param advice  further parts of the message: what to do
template <class... Parts>
void check(cudaError_t status, const char* call, const Parts&... advice) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // forgets the error, or the check of the next launch would meet it again
  throw CudaError(message(call, " failed: ", cudaGetErrorString(status), " (",
                          cudaGetErrorName(status), ")", advice...));
}

/// A stream of one GPU, and the workspace of the operations on it. All that is launched with one
/// context runs in the order of the launches. Not copyable, and for one thread at a time:
/// operations that share a context share its workspace.
template <>
class Context<Cuda> {
 public:
  /// Makes the GPU the calling thread's current one; use the context on that thread.
  /// @param gpu  index of the GPU, as CUDA counts them
  /// @throws CudaError    if there is no such GPU
  /// @throws ConfigError  if it is too old
  explicit Context(int gpu = 0) : gpu_(gpu) {
    check(cudaSetDevice(gpu), "cudaSetDevice", " for GPU ", gpu,
          "; see nvidia-smi for the GPUs of this machine and CUDA_VISIBLE_DEVICES for those that "
          "the program may use");
    check_capability();
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() {
    states_.clear();
    // An error of a kernel that ran earlier cannot be thrown here; synchronize() reports it.
    cudaStreamDestroy(stream_);
  }

  [[nodiscard]] int gpu() const { return gpu_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  operator DeviceLimits<Cuda>() const {  // NOLINT: a context says all of it
    DeviceLimits<Cuda> limits;
    limits.deterministic = deterministic_;
    return limits;
  }

  /// Memory of the GPU that one operation at a time may use; its content does not outlive the
  /// operation.
  [[nodiscard]] std::span<std::byte> workspace() const { return workspace_; }
  void bind_workspace(std::span<std::byte> workspace) { workspace_ = workspace; }

  /// Whether equal inputs give equal bits in every run: nothing adds in an order of its own, and
  /// algorithms are not chosen by timing them.
  [[nodiscard]] bool deterministic() const { return deterministic_; }
  /// To be called before the first operation.
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }

  /// Waits until all that was enqueued has run.
  /// @throws CudaError  if any of it failed
  void synchronize() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  /// The context's one `State`, made at first use and destroyed with the context: where later
  /// rooms keep library handles and what they learned about this GPU.
  template <class State>
  [[nodiscard]] State& state() const {
    std::shared_ptr<void>& state = states_[std::type_index(typeid(State))];
    if (state == nullptr) state = std::make_shared<State>();
    return *static_cast<State*>(state.get());
  }

 private:
  void check_capability() const {
    cudaDeviceProp card{};
    check(cudaGetDeviceProperties(&card, gpu_), "cudaGetDeviceProperties");
    const int capability = 10 * card.major + card.minor;
    require<ConfigError>(capability >= least_cuda_capability, "GPU ", gpu_, " (", card.name,
                         ") has compute capability ", card.major, ".", card.minor,
                         ", but Octavo's kernels need ", least_cuda_capability / 10, ".",
                         least_cuda_capability % 10,
                         " and, for FP8, tensor cores for it; choose "
                         "another GPU, or the Cpu device");
  }

  int gpu_;
  cudaStream_t stream_ = nullptr;
  bool deterministic_ = false;
  std::span<std::byte> workspace_;
  mutable std::unordered_map<std::type_index, std::shared_ptr<void>> states_;
};

}  // namespace octavo

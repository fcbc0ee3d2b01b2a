// RMSNorm's blocks wait for each other: whatever else the GPU runs, in whichever order it starts
// them, and however often a graph is launched, their result is that of the Cpu's cast to the bit.
#include "kernels/cuda_support.cuh"

#include <cstdio>
#include <cstring>

namespace octavo {
namespace rms_norm_cuda_test {

using support::constant;
using support::normal_values;
using support::OperandBytes;
using support::TestDevice;
using support::TestOperand;

class RmsNormBesideOthersOnCuda : public support::OnGpu {};

/// Keeps a place on a multiprocessor, each block for a time of its own.
__global__ void occupy(unsigned seed, unsigned most_nanoseconds) {
  extern __shared__ std::byte memory[];
  unsigned hash = (blockIdx.x + 1) * 2654435761u ^ seed * 40503u;
  hash ^= hash >> 15;
  const unsigned long long wait = hash % most_nanoseconds;
  unsigned long long begin = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  unsigned long long now = begin;
  // A bound of rounds, should the timer stand still.
  for (int round = 0; round < 100'000 && now - begin < wait; ++round) {
    __nanosleep(200);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  }
  if (now < begin) memory[threadIdx.x] = std::byte{0};  // never: it keeps the memory in use
}

/// Kernels that come and go on a stream of their own.
class Others {
 public:
  Others() {
    int gpu = 0;
    check(cudaGetDevice(&gpu), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, gpu),
          "cudaDeviceGetAttribute");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaFuncSetAttribute(occupy, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10),
          "cudaFuncSetAttribute");
  }
  Others(const Others&) = delete;
  Others& operator=(const Others&) = delete;
  ~Others() { cudaStreamDestroy(stream_); }

  /// @param seed          makes each launch another
  /// @param shared_bytes  of a block: how much of a multiprocessor it leaves to others
  void start(unsigned seed, int shared_bytes) const {
    // In the last wave, some multiprocessors are left over.
    const unsigned blocks = static_cast<unsigned>(multiprocessors_) * 3 + seed % 61;
    occupy<<<blocks, 128, static_cast<std::size_t>(shared_bytes), stream_>>>(seed, 40'000);
    check(cudaGetLastError(), "the launch of another kernel");
  }
  void synchronize() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  int multiprocessors_ = 0;
  cudaStream_t stream_ = nullptr;
};

/// A normalisation whose result is a quantised operand.
template <class P>
class Norm {
 public:
  static constexpr OperandKind kind = OperandKind::input;
  static constexpr float scale = 37.0f;

  Norm(Index rows, Index columns)
      : rows_(rows),
        columns_(columns),
        device_(detail::kernel_workspace_bytes),
        x_(constant(device_.matrix(values(rows, columns), columns))),
        weight_(constant(device_.vector(normal_values<Bf16>(columns, 1.0f, 2)))),
        inverse_rms_(device_.template make_poisoned<float>(rows), {rows}),
        y_(device_, std::vector<Bf16>(static_cast<std::size_t>(rows * columns)), columns, scale) {}

  void enqueue() const {
    rms_norm_forward(x_, weight_, 1e-5f, y_.operand({}, false), inverse_rms_, context());
  }
  /// Makes the results wrong.
  void poison() const {
    const auto operand = y_.operand();
    const auto poison = [&](void* memory, Index bytes) {
      check(cudaMemsetAsync(memory, 0xa5, static_cast<std::size_t>(bytes), context().stream()),
            "cudaMemsetAsync");
    };
    poison(operand.row_major.data(), rows_ * columns_);
    poison(operand.transposed.data(), rows_ * columns_);
    poison(inverse_rms_.data(), rows_ * 4);
  }
  [[nodiscard]] OperandBytes result() const { return y_.read(); }
  [[nodiscard]] std::vector<float> roots() const { return device_.read(inverse_rms_); }

  /// The Cpu's cast of the values that a dense normalisation makes.
  [[nodiscard]] OperandBytes expected() {
    const Operand<Bf16, kind, Cuda> dense{
        {device_.template make<Bf16>(rows_ * columns_), {rows_, columns_}}};
    rms_norm_forward(x_, weight_, 1e-5f, dense, inverse_rms_, context());
    TestDevice<Cpu> device;
    const TestOperand<P, kind, Cpu> cpu(device, device_.read(dense.values), columns_, scale);
    quantize(cpu.operand({}, false), device.context());
    return cpu.read();
  }
  [[nodiscard]] const Context<Cuda>& context() const { return device_.context(); }

 private:
  /// Row 3 is all NaN, of the bits with which blocks mark a root that is not known yet.
  static std::vector<Bf16> values(Index rows, Index columns) {
    std::vector<Bf16> all = normal_values<Bf16>(rows * columns, 2.0f, 1);
    for (Index c = 0; c < columns; ++c) {
      all[static_cast<std::size_t>(3 * columns + c)].bits = 0xffff;
    }
    return all;
  }

  Index rows_;
  Index columns_;
  TestDevice<Cuda> device_;
  TensorView<const Bf16, 2, Cuda> x_;
  TensorView<const Bf16, 1, Cuda> weight_;
  TensorView<float, 1, Cuda> inverse_rms_;
  TestOperand<P, kind, Cuda> y_;
};

template <class P>
void compare_beside_others() {
  const Others others;
  for (const auto& [rows, columns] :
       {std::pair<Index, Index>{17, 64}, {272, 4096}, {2048, 4096}, {8208, 512}, {4100, 1032}}) {
    std::printf("  %s, %d x %d\n", PrecisionTraits<P>::name().c_str(), static_cast<int>(rows),
                static_cast<int>(columns));
    std::fflush(stdout);  // should the blocks wait for ever, this says where
    Norm<P> norm(rows, columns);
    const OperandBytes expected = norm.expected();
    const std::vector<float> roots = norm.roots();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    const cudaStream_t stream = norm.context().stream();
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    norm.enqueue();
    norm.enqueue();
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    for (unsigned seed = 0; seed < 24; ++seed) {
      SCOPED_TRACE(message(rows, " x ", columns, ", seed ", seed));
      norm.poison();
      norm.context().synchronize();
      // No room beside them, room for one block or two, and much.
      constexpr int shared_bytes[] = {200 << 10, 180 << 10, 100 << 10, 0};
      others.start(seed, shared_bytes[seed % 4]);
      if (seed / 4 % 2 == 0) {
        norm.enqueue();
      } else {
        check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
      }
      norm.context().synchronize();
      expect_same(expected, norm.result());
      EXPECT_EQ(std::memcmp(norm.roots().data(), roots.data(), roots.size() * sizeof(float)), 0);
      others.synchronize();
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
}

TEST_F(RmsNormBesideOthersOnCuda, DelayedCastIsBitwiseEqualToCpu) {
  compare_beside_others<Fp8Recipe<Delayed>>();
}

TEST_F(RmsNormBesideOthersOnCuda, RowwiseCastIsBitwiseEqualToCpu) {
  compare_beside_others<Fp8Recipe<Rowwise>>();
}

TEST_F(RmsNormBesideOthersOnCuda, BlockwiseCastIsBitwiseEqualToCpu) {
  compare_beside_others<Fp8Recipe<Blockwise>>();
}

}  // namespace rms_norm_cuda_test
}  // namespace octavo

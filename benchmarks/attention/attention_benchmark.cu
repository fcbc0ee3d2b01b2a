// Causal attention on one GPU: time and speed of forward and backward, through cuDNN where the
// program has it, through the built-in kernels for the GPU, through those for every GPU from 8.0
// on, and with the 8-bit forward. Counts the products that causal attention needs: two in the
// forward and five in the backward, of half the pairs of tokens each, or of the pairs in the
// window.
#include <octavo/attention/cuda/attention.cuh>
#include <octavo/memory/cuda/buffer.cuh>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

using namespace octavo;

/// Median of times of `work`, in milliseconds.
template <class Work>
double milliseconds(const Context<Cuda>& context, const Work& work) {
  constexpr int warm_ups = 3;
  constexpr int rounds = 15;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int i = 0; i < warm_ups + rounds; ++i) {
    check(cudaEventRecord(begin, context.stream()), "cudaEventRecord");
    work();
    check(cudaEventRecord(end, context.stream()), "cudaEventRecord");
    context.synchronize();
    float time = 0;
    check(cudaEventElapsedTime(&time, begin, end), "cudaEventElapsedTime");
    if (i >= warm_ups) times.push_back(time);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return static_cast<double>(times[rounds / 2]);
}

/// One tensor of `rows` rows.
class Matrix {
 public:
  Matrix(Index rows, Index columns, const Context<Cuda>& context)
      : buffer_(static_cast<std::size_t>(rows * columns) * sizeof(Bf16), context),
        view_(reinterpret_cast<Bf16*>(buffer_.data()), {rows, columns}) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<Bf16> values(static_cast<std::size_t>(rows * columns));
    for (Bf16& value : values) value = Bf16(normal(random));
    copy_to_device_sync(buffer_.data(), values.data(), buffer_.size(), context);
  }
  [[nodiscard]] TensorView<Bf16, 2, Cuda> view() const { return view_; }
  [[nodiscard]] TensorView<const Bf16, 2, Cuda> constant() const { return view_; }

 private:
  Buffer<Cuda> buffer_;
  TensorView<Bf16, 2, Cuda> view_;
};

/// @param generic  whether the kernels for every GPU from 8.0 on run, instead of those for this one
void measure(const AttentionShape& shape, bool cudnn, bool deterministic, bool generic = false) {
  Context<Cuda> context;
  if (generic) context.set_gpu(features_of(86));
  context.set_cudnn(cudnn);
  context.set_deterministic(deterministic);
  const DeviceLimits<Cuda> limits = attention_limits<Bf16>(shape, context);
  const Buffer<Cuda> workspace(attention_workspace(shape, limits), context);
  context.bind_workspace({workspace.data(), workspace.size()});
  const Index out_columns = shape.heads.heads * shape.heads.head_dim;
  const Matrix qkv(shape.rows(), shape.heads.columns(), context);
  const Matrix qkv_gradient(shape.rows(), shape.heads.columns(), context);
  const Matrix output(shape.rows(), out_columns, context);
  const Matrix output_gradient(shape.rows(), out_columns, context);
  const Index statistics = shape.rows() * shape.heads.heads;
  const Buffer<Cuda> sums(static_cast<std::size_t>(statistics) * sizeof(float), context);
  const TensorView<float, 1, Cuda> log_sum_exp{reinterpret_cast<float*>(sums.data()), {statistics}};
  const TensorView<const float, 1, Cuda> constant_sums = log_sum_exp;

  const double forward = milliseconds(context, [&] {
    (void)attention_forward(shape, qkv.view(), {}, output.view(), log_sum_exp, context);
  });
  const double backward = milliseconds(context, [&] {
    (void)attention_backward(shape, qkv.constant(), {}, output.constant(),
                             output_gradient.constant(), constant_sums, qkv_gradient.view(),
                             context);
  });
  // The row of an 8-bit forward names the forward, because its backward is that of another row.
  const AttentionPass named = shape.options.forward == AttentionForward::eight_bit
                                  ? AttentionPass::forward
                                  : AttentionPass::backward;
  const double product = static_cast<double>(shape.rows() * out_columns) * 2.0 *
                         shape.options.mean_visible(shape.tokens);
  std::printf(
      "%9lld %7lld %7lld %6lld/%-5lld %8lld  %-19s %9.3f %8.0f %10.3f %9.0f %9.2f\n",
      static_cast<long long>(shape.sequences), static_cast<long long>(shape.tokens),
      static_cast<long long>(shape.options.window), static_cast<long long>(shape.heads.heads),
      static_cast<long long>(shape.heads.kv_heads), static_cast<long long>(shape.heads.head_dim),
      generic ? "octavo generic" : attention_implementation<Bf16>(named, shape, limits), forward,
      2.0 * product / forward * 1e-9, backward, 5.0 * product / backward * 1e-9,
      static_cast<double>(workspace.size()) * 0x1p-30);
}

void run() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::puts("attention_benchmark: no GPU answers on this machine; nothing is measured");
    return;
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s; attention runs through %s unless said otherwise\n", properties.name,
              DeviceLimits<Cuda>().cudnn ? "cudnn" : "octavo");
  std::puts(
      "sequences  tokens  window heads/kv    head_dim  backward through      forward  TFLOP/s   "
      "backward   "
      "TFLOP/s workspace");
  std::puts(
      "                                                                         ms                 "
      " ms"
      "                 GiB");
  constexpr AttentionShape shapes[] = {{1, 8192, {32, 8, 128}},
                                       {4, 2048, {16, 4, 128}},
                                       {4, 2048, {32, 8, 64}},
                                       {1, 8192, {32, 8, 128}, 0, false, {4096}},
                                       {1, 8192, {32, 8, 128}, 0, false, {1024}},
                                       {1, 8192, {4, 1, 256}, 0, false, {0}},
                                       {1, 8192, {4, 1, 256}, 0, false, {512}}};
  for (const AttentionShape& shape : shapes) {
#if defined(OCTAVO_WITH_CUDNN)
    measure(shape, true, false);
    measure(shape, true, true);
#endif
    measure(shape, false, true);
    measure(shape, false, true, true);
    const bool has_wgmma = Context<Cuda>().limits().gpu.warpgroup_mma;
    if (!has_wgmma || shape.heads.head_dim > detail::eight_bit_attention_dim) continue;
    AttentionShape in_eight_bits = shape;
    in_eight_bits.options.forward = AttentionForward::eight_bit;
    measure(in_eight_bits, false, true);
  }
}

}  // namespace

int main() {
  try {
    run();
    return EXIT_SUCCESS;
  } catch (const octavo::Error& error) {
    std::fprintf(stderr, "attention_benchmark: %s\n", error.what());
    return EXIT_FAILURE;
  }
}

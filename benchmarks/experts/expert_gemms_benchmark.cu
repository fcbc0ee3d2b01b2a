// The GEMMs of a mixture of experts on the Cuda device, and dense ones with the same operations,
// without padding, through cuBLASLt: 8192 tokens that choose 2 of 8 experts, in BF16 and in FP8
// with one scale per tensor, on random data. Times are medians over recordings.
#include <support/gpu.cuh>
#include <support/machine.hpp>

#include <cstdio>
#include <random>

using namespace benchmarks;

namespace {

constexpr Index tokens = 8192;
constexpr Index experts = 8;
constexpr Index choices = 2;
constexpr Index pairs = tokens * choices;

/// Random choices of experts, ordered.
class RandomExperts {
 public:
  explicit RandomExperts(Gpu& gpu)
      : rows{memory(expert_row_count(pairs, experts), gpu),
             {memory(pairs, gpu).data(), {tokens, choices}},
             memory(experts + 1, gpu),
             memory(expert_row_count(pairs, experts) / expert_tile, gpu)} {
    gpu.need_workspace(expert_order_workspace(pairs));
    std::mt19937 random(1);
    std::vector<std::int32_t> chosen;
    for (Index token = 0; token < tokens; ++token) {
      const auto first = static_cast<std::int32_t>(random() % experts);
      const auto distance = static_cast<std::int32_t>(1 + random() % (experts - 1));
      chosen.push_back(first);
      chosen.push_back((first + distance) % static_cast<std::int32_t>(experts));
    }
    const auto on_gpu = memory(pairs, gpu);
    copy_to_device_sync(on_gpu.data(), chosen.data(), chosen.size() * sizeof(std::int32_t),
                        gpu.context());
    order_by_expert(TensorView<const std::int32_t, 2, Cuda>{on_gpu.data(), {tokens, choices}}, rows,
                    gpu.context());
  }

 private:
  TensorView<std::int32_t, 1, Cuda> memory(Index count, Gpu& gpu) {
    buffers_.emplace_back(static_cast<std::size_t>(count) * sizeof(std::int32_t), gpu.context());
    return {reinterpret_cast<std::int32_t*>(buffers_.back().data()), {count}};
  }
  std::vector<Buffer<Cuda>> buffers_;

 public:
  ExpertRows<Cuda> rows;
};

void report(const char* format, const char* pass, Index out, Index in, double seconds,
            double dense) {
  const double operations = 2.0 * static_cast<double>(pairs * out) * static_cast<double>(in);
  std::printf("%-5s %-16s %5lld x %5lld %9.1f us %7.0f TFLOP/s %9.1f us %7.0f TFLOP/s %6.2f\n",
              format, pass, static_cast<long long>(out), static_cast<long long>(in), seconds * 1e6,
              operations / seconds * 1e-12, dense * 1e6, operations / dense * 1e-12,
              dense / seconds);
  std::fflush(stdout);
}

GemmOutput<Bf16, Cuda> output(TensorView<Bf16, 2, Cuda> view) { return {view, {}, {}}; }

void measure_bf16(Gpu& gpu, const ExpertRows<Cuda>& rows, Index out, Index in) {
  const auto& context = gpu.context();
  const auto x = gpu.make<Bf16>(rows.rows() * in);
  const auto dy = gpu.make<Bf16>(rows.rows() * out);
  const auto w = gpu.make<Bf16>(experts * out * in);
  const auto dw = gpu.make<Bf16>(experts * out * in);
  const auto at = [](const auto& arrays, int turn) {
    return arrays[static_cast<std::size_t>(turn)];
  };
  report("BF16", "forward", out, in, gpu.seconds([&](int i) {
    (void)experts_forward(input(at(x, i), rows.rows(), in), input(at(w, i), experts * out, in),
                          rows, matrix(at(dy, i), rows.rows(), out), context);
  }),
         gpu.seconds([&](int i) {
           (void)matmul_forward(input(at(x, i), pairs, in), input(at(w, i), out, in),
                                output(matrix(at(dy, i), pairs, out)), context);
         }));
  report("BF16", "input gradient", out, in, gpu.seconds([&](int i) {
    (void)experts_input_gradient(input(at(dy, i), rows.rows(), out),
                                 input(at(w, i), experts * out, in), rows,
                                 matrix(at(x, i), rows.rows(), in), context);
  }),
         gpu.seconds([&](int i) {
           (void)matmul_input_gradient(input(at(dy, i), pairs, out), input(at(w, i), out, in),
                                       output(matrix(at(x, i), pairs, in)), context);
         }));
  report("BF16", "weight gradient", out, in, gpu.seconds([&](int i) {
    (void)experts_weight_gradient(input(at(dy, i), rows.rows(), out),
                                  input(at(x, i), rows.rows(), in), rows,
                                  matrix(at(dw, i), experts * out, in), false, context);
  }),
         gpu.seconds([&](int i) {
           (void)matmul_weight_gradient(input(at(dy, i), pairs, out), input(at(x, i), pairs, in),
                                        output(matrix(at(dw, i), out, in)), context);
         }));
}

void measure_fp8(Gpu& gpu, const ExpertRows<Cuda>& rows, Index out, Index in) {
  const auto& context = gpu.context();
  const auto x = gpu.make<E4M3>(rows.rows() * in);
  const auto dy = gpu.make<E4M3>(rows.rows() * out);
  const auto w = gpu.make<E4M3>(experts * out * in);
  const auto y = gpu.make<Bf16>(rows.rows() * std::max(out, in));
  const auto dw = gpu.make<Bf16>(experts * out * in);
  const auto scales = gpu.make<float>(1);
  const auto at = [](const auto& arrays, int turn) {
    return arrays[static_cast<std::size_t>(turn)];
  };
  const auto stored = [&](E4M3* data, Index outer, Index inner) {
    return QuantizedView<E4M3, PerTensor, Layout::row_major, Cuda>(data, scales[0], outer, inner);
  };
  const auto turned = [&](E4M3* data, Index outer, Index inner) {
    return QuantizedView<E4M3, PerTensor, Layout::transposed, Cuda>(data, scales[0], outer, inner);
  };
  report("FP8", "forward", out, in, gpu.seconds([&](int i) {
    (void)experts_forward(stored(at(x, i), rows.rows(), in), stored(at(w, i), experts * out, in),
                          rows, matrix(at(y, i), rows.rows(), out), context);
  }),
         gpu.seconds([&](int i) {
           (void)matmul_forward(stored(at(x, i), pairs, in), stored(at(w, i), out, in),
                                output(matrix(at(y, i), pairs, out)), context);
         }));
  report("FP8", "input gradient", out, in, gpu.seconds([&](int i) {
    (void)experts_input_gradient(stored(at(dy, i), rows.rows(), out),
                                 turned(at(w, i), in, experts * out), rows,
                                 matrix(at(y, i), rows.rows(), in), context);
  }),
         gpu.seconds([&](int i) {
           (void)matmul_input_gradient(stored(at(dy, i), pairs, out), turned(at(w, i), in, out),
                                       output(matrix(at(y, i), pairs, in)), context);
         }));
  report("FP8", "weight gradient", out, in, gpu.seconds([&](int i) {
    (void)experts_weight_gradient(turned(at(dy, i), out, rows.rows()),
                                  turned(at(x, i), in, rows.rows()), rows,
                                  matrix(at(dw, i), experts * out, in), false, context);
  }),
         gpu.seconds([&](int i) {
           (void)matmul_weight_gradient(turned(at(dy, i), out, pairs), turned(at(x, i), in, pairs),
                                        output(matrix(at(dw, i), out, in)), context);
         }));
}

}  // namespace

int main() {
  try {
    Gpu gpu;
    const Machine machine = describe_machine();
    std::printf("%s, CUDA %s, cuBLASLt %s\n", machine.card.c_str(), machine.cuda.c_str(),
                machine.cublaslt.c_str());
    std::printf("%-41s %9s %34s %12s\n", "", "experts", "dense", "ratio");
    const RandomExperts chosen(gpu);
    for (const auto& [out, in] : {std::pair<Index, Index>{5632, 2048}, {2048, 2816}}) {
      measure_bf16(gpu, chosen.rows, out, in);
      gpu.free_arrays();
      measure_fp8(gpu, chosen.rows, out, in);
      gpu.free_arrays();
    }
    return 0;
  } catch (const octavo::Error& error) {
    std::fprintf(stderr, "expert_gemms_benchmark: %s\n", error.what());
    return 1;
  }
}

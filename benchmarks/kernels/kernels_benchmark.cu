// Times of the Cuda device's kernels at the shapes of Llama-3-8B with 8192 tokens, against the
// bandwidth of a copy that is measured in the same run. Bytes are those that must move: inputs
// read once and outputs written once, and the values twice where a scale waits for their amax.
//
//     kernels_benchmark            every kernel
//     kernels_benchmark swiglu     those whose name contains the word
#include <octavo/cuda.cuh>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

using namespace octavo;

namespace {

constexpr Index tokens = 8192;
constexpr Index hidden = 4096;
constexpr Index ffn = 14336;
constexpr Index vocabulary = 128256;
constexpr Index logit_rows = 2048;
constexpr HeadLayout heads{32, 8, 128};
constexpr int repetitions = 20;
/// Sets of buffers that repetitions take turns with, so that none finds its data in L2.
constexpr int turns = 3;

/// Fills memory with numbers between −1 and 1.
template <class T>
__global__ void fill_kernel(T* values, Index count, std::uint32_t seed) {
  const Index stride = Index{gridDim.x} * blockDim.x;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    std::uint32_t hash = (static_cast<std::uint32_t>(i) + seed) * 2654435761u;
    hash = (hash ^ (hash >> 15)) * 2246822519u;
    values[i] = T(static_cast<float>(hash >> 8) * 0x1p-23f - 1.0f);
  }
}

class Benchmark {
 public:
  explicit Benchmark(std::string word) : word_(std::move(word)) {
    workspace_ = Buffer<Cuda>(detail::kernel_workspace_bytes, context_);
    context_.bind_workspace({workspace_.data(), workspace_.size()});
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    constexpr std::size_t copied = std::size_t{1} << 30;
    const Buffer<Cuda> source(copied, context_);
    const Buffer<Cuda> target(copied, context_);
    const double seconds = median_seconds(
        [&](int) { copy_on_device(target.data(), source.data(), copied, context_); });
    copy_ = 2.0 * static_cast<double>(copied) / seconds;
    std::printf("%s, %d multiprocessors, copy %.0f GB/s\n\n", properties.name,
                properties.multiProcessorCount, copy_ * 1e-9);
    std::printf("%-34s %-16s %9s %9s %8s %6s\n", "kernel", "shape", "us", "MB", "GB/s", "copy");
  }

  [[nodiscard]] const Context<Cuda>& context() const { return context_; }
  [[nodiscard]] bool wants(const std::string& name) const {
    return name.find(word_) != std::string::npos;
  }

  /// `turns` arrays of this many elements.
  template <class T>
  std::vector<T*> make(Index count) {
    std::vector<T*> arrays;
    for (int turn = 0; turn < turns; ++turn) {
      buffers_.emplace_back(static_cast<std::size_t>(count) * sizeof(T), context_);
      arrays.push_back(reinterpret_cast<T*>(buffers_.back().data()));
      if constexpr (std::is_same_v<T, float> || std::is_same_v<T, Bf16>) {
        fill_kernel<<<1024, 256, 0, context_.stream()>>>(arrays.back(), count,
                                                         static_cast<std::uint32_t>(turn));
      } else {
        fill_zero(arrays.back(), static_cast<std::size_t>(count) * sizeof(T), context_);
      }
    }
    return arrays;
  }

  /// Prints a line, and frees the arrays.
  void measure(const std::string& name, Index rows, Index columns, Index bytes,
               const std::function<void(int)>& run) {
    const double seconds = median_seconds(run);
    const double rate = static_cast<double>(bytes) / seconds;
    const std::string shape = std::to_string(rows) + " x " + std::to_string(columns);
    std::printf("%-34s %-16s %9.1f %9.1f %8.0f %5.1f%%\n", name.c_str(), shape.c_str(),
                seconds * 1e6, static_cast<double>(bytes) * 1e-6, rate * 1e-9,
                100.0 * rate / copy_);
    std::fflush(stdout);
    buffers_.clear();
  }

 private:
  double median_seconds(const std::function<void(int)>& run) {
    for (int turn = 0; turn < turns; ++turn) run(turn);
    std::vector<cudaEvent_t> events(repetitions + 1);
    for (cudaEvent_t& event : events) check(cudaEventCreate(&event), "cudaEventCreate");
    check(cudaEventRecord(events[0], context_.stream()), "cudaEventRecord");
    for (int i = 0; i < repetitions; ++i) {
      run(i % turns);
      check(cudaEventRecord(events[static_cast<std::size_t>(i) + 1], context_.stream()),
            "cudaEventRecord");
    }
    context_.synchronize();
    std::vector<float> milliseconds(repetitions);
    for (std::size_t i = 0; i < repetitions; ++i) {
      check(cudaEventElapsedTime(&milliseconds[i], events[i], events[i + 1]),
            "cudaEventElapsedTime");
    }
    for (cudaEvent_t event : events) cudaEventDestroy(event);
    std::nth_element(milliseconds.begin(), milliseconds.begin() + repetitions / 2,
                     milliseconds.end());
    return static_cast<double>(milliseconds[repetitions / 2]) * 1e-3;
  }

  Context<Cuda> context_;
  std::string word_;
  Buffer<Cuda> workspace_;
  std::vector<Buffer<Cuda>> buffers_;
  double copy_ = 0;
};

template <class T>
TensorView<T, 2, Cuda> matrix(T* data, Index rows, Index columns) {
  return {data, {rows, columns}};
}
template <class T>
TensorView<const T, 2, Cuda> input(T* data, Index rows, Index columns) {
  return {data, {rows, columns}};
}
template <class T>
TensorView<T, 1, Cuda> vector(T* data, Index count) {
  return {data, {count}};
}
template <class T>
TensorView<const T, 1, Cuda> input(T* data, Index count) {
  return {data, {count}};
}

/// Operands of one shape, one a turn.
template <LinearPrecision P, OperandKind Kind>
class Operands {
 public:
  Operands(Benchmark& benchmark, Index rows, Index columns) {
    const auto values = benchmark.make<Bf16>(rows * columns);
    std::vector<Memory> memories(turns);
    for (std::size_t turn = 0; turn < turns; ++turn) memories[turn].values = values[turn];
    std::vector<ScalingSlot*> slots(turns, nullptr);
    if constexpr (QuantizedPrecision<P>) {
      using Format = typename Memory::Format;
      using Granularity = typename Memory::Granularity;
      using Scale = typename Memory::Scale;
      const auto row_major = benchmark.make<Format>(rows * columns);
      const auto transposed = benchmark.make<Format>(rows * columns);
      const auto row_scales = benchmark.make<Scale>(scale_count<Granularity>(rows, columns));
      const auto column_scales = benchmark.make<Scale>(scale_count<Granularity>(columns, rows));
      slots = benchmark.make<ScalingSlot>(1);
      for (std::size_t turn = 0; turn < turns; ++turn) {
        memories[turn].row_major = row_major[turn];
        memories[turn].transposed = transposed[turn];
        memories[turn].row_major_scales = row_scales[turn];
        memories[turn].transposed_scales = column_scales[turn];
        ScalingSlot slot{};
        slot.scale = slot.scale_inverse = 1.0f;
        copy_to_device(slots[turn], &slot, sizeof(slot), benchmark.context());
      }
    }
    for (std::size_t turn = 0; turn < turns; ++turn) {
      operands_.push_back(memories[turn].operand(rows, columns, slots[turn], true, {}));
    }
  }

  const Operand<P, Kind, Cuda>& operator[](int turn) const {
    return operands_[static_cast<std::size_t>(turn)];
  }

  /// Bytes that a producer must move for one element of its result.
  static constexpr Index bytes_an_element() {
    if constexpr (!QuantizedPrecision<P>) {
      return 2;
    } else {
      return detail::is_tensorwise<typename PrecisionTraits<P>::ScalingType> ? 2 + 2 + 2 : 2;
    }
  }

 private:
  using Memory = OperandMemory<P, Kind, Cuda>;
  std::vector<Operand<P, Kind, Cuda>> operands_;
};

template <class P, OperandKind Kind>
void time_quantize(Benchmark& benchmark, const char* what, Index rows, Index columns) {
  const std::string name = std::string("quantize ") + what + ", " + PrecisionTraits<P>::name();
  if (!benchmark.wants(name)) return;
  const Operands<P, Kind> operands(benchmark, rows, columns);
  // The values are read, and read again after their amax.
  const Index bytes = operands.bytes_an_element() > 2 ? 6 : 4;
  benchmark.measure(name, rows, columns, rows * columns * bytes,
                    [&](int turn) { quantize(operands[turn], benchmark.context()); });
}

template <class P>
void time_rms_norm(Benchmark& benchmark) {
  const std::string name = "rms_norm_forward, " + PrecisionTraits<P>::name();
  if (!benchmark.wants(name)) return;
  const Operands<P, OperandKind::input> y(benchmark, tokens, hidden);
  const auto x = benchmark.make<Bf16>(tokens * hidden);
  const auto weight = benchmark.make<Bf16>(hidden);
  const auto inverse = benchmark.make<float>(tokens);
  benchmark.measure(name, tokens, hidden, tokens * hidden * (2 + y.bytes_an_element()),
                    [&](int turn) {
                      const auto i = static_cast<std::size_t>(turn);
                      rms_norm_forward(input(x[i], tokens, hidden), input(weight[i], hidden), 1e-5f,
                                       y[turn], vector(inverse[i], tokens), benchmark.context());
                    });
}

void time_rms_norm_backward(Benchmark& benchmark) {
  if (!benchmark.wants("rms_norm_backward")) return;
  const auto x = benchmark.make<Bf16>(tokens * hidden);
  const auto dy = benchmark.make<Bf16>(tokens * hidden);
  const auto dx = benchmark.make<Bf16>(tokens * hidden);
  const auto weight = benchmark.make<Bf16>(hidden);
  const auto inverse = benchmark.make<float>(tokens);
  const auto gradient = benchmark.make<float>(hidden);
  benchmark.measure("rms_norm_backward", tokens, hidden, tokens * hidden * 8, [&](int turn) {
    const auto i = static_cast<std::size_t>(turn);
    rms_norm_backward(input(dy[i], tokens, hidden), input(x[i], tokens, hidden),
                      input(weight[i], hidden), input(inverse[i], tokens),
                      matrix(dx[i], tokens, hidden), vector(gradient[i], hidden),
                      benchmark.context());
  });
}

template <class P>
void time_swiglu(Benchmark& benchmark) {
  const std::string forward = "swiglu_forward, " + PrecisionTraits<P>::name();
  if (benchmark.wants(forward)) {
    const Operands<P, OperandKind::input> y(benchmark, tokens, ffn);
    const auto gate_up = benchmark.make<Bf16>(tokens * 2 * ffn);
    benchmark.measure(
        forward, tokens, ffn, tokens * ffn * (4 + y.bytes_an_element()), [&](int turn) {
          swiglu_forward(input(gate_up[static_cast<std::size_t>(turn)], tokens, 2 * ffn), y[turn],
                         benchmark.context());
        });
  }
  const std::string backward = "swiglu_backward, " + PrecisionTraits<P>::name();
  if (!benchmark.wants(backward)) return;
  const Operands<P, OperandKind::output_gradient> gradient(benchmark, tokens, 2 * ffn);
  const auto gate_up = benchmark.make<Bf16>(tokens * 2 * ffn);
  const auto dy = benchmark.make<Bf16>(tokens * ffn);
  benchmark.measure(backward, tokens, ffn, tokens * ffn * (6 + 2 * gradient.bytes_an_element()),
                    [&](int turn) {
                      const auto i = static_cast<std::size_t>(turn);
                      swiglu_backward(input(dy[i], tokens, ffn), input(gate_up[i], tokens, 2 * ffn),
                                      gradient[turn], benchmark.context());
                    });
}

template <class P>
void time_rope_backward(Benchmark& benchmark) {
  const std::string name = "rope_backward, " + PrecisionTraits<P>::name();
  if (!benchmark.wants(name)) return;
  constexpr Index columns = heads.columns();
  const Operands<P, OperandKind::output_gradient> gradient(benchmark, tokens, columns);
  const auto table = benchmark.make<float>(tokens * heads.head_dim);
  // In place, as the model calls it.
  benchmark.measure(name, tokens, columns, tokens * columns * (2 + gradient.bytes_an_element()),
                    [&](int turn) {
                      const auto i = static_cast<std::size_t>(turn);
                      rope_backward(gradient[turn].values, heads, TensorView<const Bf16, 2, Cuda>{},
                                    QkNorm<const Bf16, Cuda>{}, QkNorm<float, Cuda>{},
                                    input(table[i], tokens, heads.head_dim), tokens, gradient[turn],
                                    benchmark.context());
                    });
}

void time_rope_forward(Benchmark& benchmark) {
  if (!benchmark.wants("rope_forward")) return;
  constexpr Index columns = heads.columns();
  const auto qkv = benchmark.make<Bf16>(tokens * columns);
  const auto table = benchmark.make<float>(tokens * heads.head_dim);
  const Index rotated = tokens * (heads.heads + heads.kv_heads) * heads.head_dim;
  benchmark.measure("rope_forward in place", tokens, columns, rotated * 4, [&](int turn) {
    const auto i = static_cast<std::size_t>(turn);
    rope_forward(input(qkv[i], tokens, columns), heads, QkNorm<const Bf16, Cuda>{},
                 input(table[i], tokens, heads.head_dim), tokens, matrix(qkv[i], tokens, columns),
                 benchmark.context());
  });
}

std::vector<std::int32_t*> random_tokens(Benchmark& benchmark, Index count) {
  const auto arrays = benchmark.make<std::int32_t>(count);
  std::vector<std::int32_t> host(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (std::int32_t& token : host) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<std::int32_t>((state >> 8) % vocabulary);
  }
  for (std::int32_t* array : arrays) {
    copy_to_device(array, host.data(), host.size() * sizeof(std::int32_t), benchmark.context());
  }
  return arrays;
}

void time_embedding(Benchmark& benchmark) {
  if (benchmark.wants("embedding_forward")) {
    const auto ids = random_tokens(benchmark, tokens);
    const auto table = benchmark.make<Bf16>(vocabulary * hidden);
    const auto y = benchmark.make<Bf16>(tokens * hidden);
    benchmark.measure("embedding_forward", tokens, hidden, tokens * hidden * 4, [&](int turn) {
      const auto i = static_cast<std::size_t>(turn);
      embedding_forward(input(ids[i], tokens), input(table[i], vocabulary, hidden),
                        matrix(y[i], tokens, hidden), benchmark.context());
    });
  }
  if (!benchmark.wants("embedding_backward")) return;
  const auto ids = random_tokens(benchmark, tokens);
  const auto dy = benchmark.make<Bf16>(tokens * hidden);
  const auto gradient = benchmark.make<Bf16>(vocabulary * hidden);
  benchmark.measure("embedding_backward", tokens, hidden, tokens * hidden * 6, [&](int turn) {
    const auto i = static_cast<std::size_t>(turn);
    embedding_backward(input(ids[i], tokens), input(dy[i], tokens, hidden),
                       matrix(gradient[i], vocabulary, hidden), benchmark.context());
  });
}

void time_cross_entropy(Benchmark& benchmark) {
  if (!benchmark.wants("cross_entropy")) return;
  const auto ids = random_tokens(benchmark, logit_rows);
  const auto logits = benchmark.make<Bf16>(logit_rows * vocabulary);
  const auto losses = benchmark.make<float>(logit_rows);
  benchmark.measure(
      "cross_entropy", logit_rows, vocabulary, logit_rows * vocabulary * 4, [&](int turn) {
        const auto i = static_cast<std::size_t>(turn);
        cross_entropy(matrix(logits[i], logit_rows, vocabulary), input(ids[i], logit_rows),
                      vector(losses[i], logit_rows), vocabulary, 1e-4f, benchmark.context());
      });
}

template <class G, class M>
void time_adamw(Benchmark& benchmark, const char* name, bool has_master) {
  if (!benchmark.wants(name)) return;
  constexpr Index count = hidden * ffn;
  const auto weight = benchmark.make<Bf16>(count);
  const auto gradient = benchmark.make<G>(count);
  const auto first = benchmark.make<M>(count);
  const auto second = benchmark.make<M>(count);
  const auto master = benchmark.make<float>(has_master ? count : 0);
  const auto status = benchmark.make<StepStatus>(1);
  const auto steps = benchmark.make<AdamWStep>(1);
  const AdamWStep step{1e-4f, 0.19f, 0.0975f, 2};
  StepStatus counted{};
  counted.clip_coefficient = 1.0f;
  for (std::size_t i = 0; i < turns; ++i) {
    copy_to_device(steps[i], &step, sizeof(step), benchmark.context());
    copy_to_device(status[i], &counted, sizeof(counted), benchmark.context());
    fill_zero(second[i], static_cast<std::size_t>(count) * sizeof(M), benchmark.context());
  }
  const Index weights = has_master ? 2 + 8 : 4;
  const Index bytes = count * (weights + Index{sizeof(G)} + 4 * Index{sizeof(M)});
  benchmark.measure(name, hidden, ffn, bytes, [&](int turn) {
    const auto i = static_cast<std::size_t>(turn);
    AdamWParameter<Bf16, G, M, Cuda> parameter;
    parameter.weight = vector(weight[i], count);
    parameter.gradient = input(gradient[i], count);
    if (has_master) parameter.master = vector(master[i], count);
    parameter.first_moment = vector(first[i], count);
    parameter.second_moment = vector(second[i], count);
    adamw_update(parameter, AdamWSettings{}, input(steps[i], 1), input(status[i], 1),
                 benchmark.context());
  });
}

template <class G>
void time_squared_norm(Benchmark& benchmark, const char* name) {
  if (!benchmark.wants(name)) return;
  constexpr Index count = hidden * ffn;
  const auto gradient = benchmark.make<G>(count);
  const auto status = benchmark.make<StepStatus>(1);
  benchmark.measure(name, hidden, ffn, count * Index{sizeof(G)}, [&](int turn) {
    const auto i = static_cast<std::size_t>(turn);
    add_squared_norm(input(gradient[i], count), vector(status[i], 1), benchmark.context());
  });
}

template <class P>
void time_precision(Benchmark& benchmark) {
  time_rms_norm<P>(benchmark);
  time_swiglu<P>(benchmark);
  time_rope_backward<P>(benchmark);
  if constexpr (QuantizedPrecision<P>) {
    time_quantize<P, OperandKind::input>(benchmark, "activation", tokens, hidden);
    time_quantize<P, OperandKind::weight>(benchmark, "weight", 2 * ffn, hidden);
  }
}

}  // namespace

int main(int count, char** words) {
  try {
    Benchmark benchmark(count > 1 ? words[1] : "");
    time_precision<Bf16>(benchmark);
    time_precision<Fp8Recipe<Delayed>>(benchmark);
    time_precision<Fp8Recipe<Tensorwise>>(benchmark);
    time_precision<Fp8Recipe<Blockwise>>(benchmark);
    time_precision<Mxfp8>(benchmark);
    time_rms_norm_backward(benchmark);
    time_rope_forward(benchmark);
    time_embedding(benchmark);
    time_cross_entropy(benchmark);
    time_adamw<Bf16, Bf16>(benchmark, "adamw_update, all bf16", false);
    time_adamw<float, float>(benchmark, "adamw_update, fp32 master", true);
    time_adamw<Bf16, float>(benchmark, "adamw_update, bf16 gradient", true);
    time_squared_norm<Bf16>(benchmark, "add_squared_norm, bf16");
    time_squared_norm<float>(benchmark, "add_squared_norm, fp32");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kernels_benchmark: %s\n", error.what());
    return 1;
  }
}

// Times of what decoding is made of, at the shapes of Llama-3-8B and SmolLM2-135M, against the
// bandwidth of a copy that is measured in the same run: products of a few rows, and attention to
// kept keys and values.
//
//     decode_benchmark            every operation
//     decode_benchmark E4M3       those whose name contains the word
#include <support/gpu.cuh>
#include <support/machine.hpp>

#include <cstdio>
#include <string>
#include <vector>

using namespace benchmarks;

namespace {

/// Prints a line for each operation whose name contains a word.
class Table {
 public:
  explicit Table(std::string word) : word_(std::move(word)), copy_(gpu_.copy_rate()) {
    std::printf("%s, copy %.0f GB/s\n\n", describe_machine().card.c_str(), copy_ * 1e-9);
    std::printf("%-50s %9s %9s %8s %6s\n", "operation", "us", "MB", "GB/s", "copy");
  }

  /// @param make  makes the part on a Gpu
  template <class Make>
  void line(const std::string& name, const Make& make) {
    if (name.find(word_) == std::string::npos) return;
    const Part part = make(gpu_);
    const double seconds = gpu_.seconds(part.run);
    gpu_.free_arrays();
    const double rate = part.bytes / seconds;
    std::printf("%-50s %9.1f %9.1f %8.0f %5.1f%%\n", name.c_str(), seconds * 1e6, part.bytes * 1e-6,
                rate * 1e-9, 100.0 * rate / copy_);
    std::fflush(stdout);
  }

 private:
  Gpu gpu_;
  std::string word_;
  double copy_;
};

std::size_t at(int turn) { return static_cast<std::size_t>(turn); }

struct Layer {
  const char* name;
  Index out, in;
};
constexpr Layer llama3_8b[] = {{"qkv", 6144, 4096},
                               {"output", 4096, 4096},
                               {"gate and up", 28672, 4096},
                               {"down", 4096, 14336},
                               {"head", 128256, 4096}};
constexpr Layer smollm2_135m[] = {
    {"qkv", 960, 576}, {"output", 576, 576}, {"gate and up", 3072, 576}, {"down", 576, 1536}};
constexpr int smollm2_layers = 30;

/// Products with all of `layers`, `repetitions` times one after another, each with weights of its
/// own; so weights that are smaller than L2 are not found there.
template <class W>
Part products_part(Gpu& gpu, Index rows, const std::vector<Layer>& layers, int repetitions) {
  Part part;
  Index weights = 0;
  Index longest = 0;
  Index widest = 0;
  for (const Layer& layer : layers) {
    weights += layer.out * layer.in;
    longest = std::max(longest, layer.in);
    widest = std::max(widest, layer.out);
  }
  const auto w = gpu.make<W>(repetitions * weights);
  const auto scale = gpu.make<float>(1);
  const auto x = gpu.make<Bf16>(rows * longest);
  const auto y = gpu.make<Bf16>(rows * widest);
  part.bytes = static_cast<double>(repetitions * weights) * sizeof(W);
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    W* weight = w[i];
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      for (const auto& [name, out, in] : layers) {
        const GemmOutput<Bf16, Cuda> result{matrix(y[i], rows, out), {}, {}};
        if constexpr (std::is_same_v<W, Bf16>) {
          (void)few_rows_forward(input(x[i], rows, in), input(weight, out, in), result,
                                 gpu.context());
        } else {
          const QuantizedView<W, PerTensor, Layout::row_major, Cuda> view{weight, scale[i], out,
                                                                          in};
          (void)few_rows_forward(input(x[i], rows, in), view, result, gpu.context());
        }
        weight += out * in;
      }
    }
  };
  return part;
}

template <class W>
void lines_of_products(Table& table) {
  for (const Index rows : {1, 2, 4, 8}) {
    const std::string with =
        std::string(", ") + FormatTraits<W>::name + ", rows: " + std::to_string(rows);
    for (const Layer& layer : llama3_8b) {
      table.line("llama3_8b " + std::string(layer.name) + with,
                 [&](Gpu& g) { return products_part<W>(g, rows, {layer}, 1); });
    }
    table.line("smollm2_135m, all of a step but the head" + with, [&](Gpu& g) {
      return products_part<W>(g, rows, {std::begin(smollm2_135m), std::end(smollm2_135m)},
                              smollm2_layers);
    });
  }
}

/// One new row, or several, behind `before` rows.
Part attention_part(Gpu& gpu, HeadLayout layout, Index rows, Index before, Index capacity) {
  const Index columns = layout.kv_heads * layout.head_dim;
  const auto qkv = gpu.make<Bf16>(rows * layout.columns());
  const auto keys = gpu.make<Bf16>(capacity * columns);
  const auto values = gpu.make<Bf16>(capacity * columns);
  const auto output = gpu.make<Bf16>(rows * layout.heads * layout.head_dim);
  const auto positions = gpu.make<std::int32_t>(rows);
  std::vector<std::int32_t> places;
  for (Index row = 0; row < rows; ++row) places.push_back(static_cast<std::int32_t>(before + row));
  for (std::int32_t* target : positions) {
    copy_to_device_sync(target, places.data(), places.size() * sizeof(std::int32_t), gpu.context());
  }
  gpu.need_workspace(cached_attention_workspace(layout, rows, capacity, gpu.context()));
  Part part;
  part.bytes = static_cast<double>(2 * (before + rows) * columns) * sizeof(Bf16);
  part.run = [=, &gpu](int turn) {
    const std::size_t i = at(turn);
    cached_attention(input(qkv[i], rows, layout.columns()), layout, {}, input(positions[i], rows),
                     {matrix(keys[i], capacity, columns), matrix(values[i], capacity, columns)},
                     matrix(output[i], rows, layout.heads * layout.head_dim), gpu.context());
  };
  return part;
}

void lines_of_attention(Table& table) {
  const auto line = [&](const char* model, HeadLayout layout, Index rows, Index before,
                        Index capacity) {
    table.line(message(model, " attention, rows: ", rows, " after ", before, " of ", capacity),
               [&](Gpu& g) { return attention_part(g, layout, rows, before, capacity); });
  };
  constexpr HeadLayout llama{32, 8, 128};
  constexpr HeadLayout smollm2{9, 3, 64};
  for (const Index before : {511, 2047, 8191}) line("llama3_8b", llama, 1, before, 8192);
  for (const Index before : {511, 2047, 32767}) line("llama3_8b", llama, 1, before, 131072);
  for (const Index rows : {8, 512}) line("llama3_8b", llama, rows, 8192 - rows, 8192);
  line("llama3_8b", llama, 8192, 0, 8192);
  for (const Index before : {511, 2047}) line("smollm2_135m", smollm2, 1, before, 2048);
}

}  // namespace

int main(int count, char** words) {
  try {
    Table table(count > 1 ? words[1] : "");
    lines_of_products<Bf16>(table);
    lines_of_products<E4M3>(table);
    lines_of_attention(table);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decode_benchmark: %s\n", error.what());
    return 1;
  }
}

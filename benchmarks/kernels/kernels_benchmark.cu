// Times of the Cuda device's kernels at the shapes of Llama-3-8B with 8192 tokens, against the
// bandwidth of a copy that is measured in the same run.
//
//     kernels_benchmark            every kernel
//     kernels_benchmark swiglu     those whose name contains the word
#include <support/gpt2_parts.cuh>
#include <support/kernel_parts.cuh>
#include <support/machine.hpp>

#include <cstdio>

using namespace benchmarks;

namespace {

/// Prints a line for each kernel whose name contains a word.
class Table {
 public:
  explicit Table(std::string word) : word_(std::move(word)), copy_(gpu_.copy_rate()) {
    const Machine machine = describe_machine();
    std::printf("%s, %d multiprocessors, copy %.0f GB/s\n\n", machine.card.c_str(),
                machine.multiprocessors, copy_ * 1e-9);
    std::printf("%-36s %-16s %9s %9s %8s %6s\n", "kernel", "shape", "us", "MB", "GB/s", "copy");
  }

  /// @param make  makes the part on a Gpu
  template <class Make>
  void line(const std::string& name, const Make& make) {
    if (name.find(word_) == std::string::npos) return;
    const Part part = make(gpu_);
    const double seconds = gpu_.seconds(part.run);
    gpu_.free_arrays();
    const std::string shape = std::to_string(part.rows) + " x " + std::to_string(part.columns);
    const double rate = part.bytes / seconds;
    std::printf("%-36s %-16s %9.1f %9.1f %8.0f %5.1f%%\n", name.c_str(), shape.c_str(),
                seconds * 1e6, part.bytes * 1e-6, rate * 1e-9, 100.0 * rate / copy_);
    std::fflush(stdout);
  }

 private:
  Gpu gpu_;
  std::string word_;
  double copy_;
};

template <class P>
void lines_of_casts(Table& table) {
  table.line(name_with<P>("quantize activation"),
             [](Gpu& g) { return quantize_part<P, OperandKind::input>(g, tokens, hidden); });
  table.line(name_with<P>("quantize weight"),
             [](Gpu& g) { return quantize_part<P, OperandKind::weight>(g, 2 * ffn, hidden); });
}

template <class P>
void lines_of_precision(Table& table) {
  table.line(name_with<P>("rms_norm_forward"), [](Gpu& g) { return rms_norm_forward_part<P>(g); });
  table.line(name_with<P>("swiglu_forward"), [](Gpu& g) { return swiglu_forward_part<P>(g); });
  table.line(name_with<P>("swiglu_backward"), [](Gpu& g) { return swiglu_backward_part<P>(g); });
  table.line(name_with<P>("layer_norm_forward"),
             [](Gpu& g) { return layer_norm_forward_part<P>(g); });
  table.line(name_with<P>("gelu_forward"), [](Gpu& g) { return gelu_forward_part<P>(g); });
  table.line(name_with<P>("gelu_backward"), [](Gpu& g) { return gelu_backward_part<P>(g); });
  table.line(name_with<P>("rope_backward"), [](Gpu& g) { return rope_backward_part<P, float>(g); });
  if constexpr (octavo::detail::writes_e4m3<P>) {
    table.line(name_with<P>("swiglu_forward of E4M3"),
               [](Gpu& g) { return swiglu_forward_part<P, E4M3>(g); });
    table.line(name_with<P>("swiglu_backward of E4M3"),
               [](Gpu& g) { return swiglu_backward_part<P, E4M3>(g); });
  }
  if constexpr (QuantizedPrecision<P>) lines_of_casts<P>(table);
}

void lines_of_all(Table& table) {
  table.line("rms_norm_backward", [](Gpu& g) { return rms_norm_backward_part<float>(g); });
  table.line("layer_norm_backward", layer_norm_backward_part);
  table.line("rope_forward in place", rope_forward_part);
  table.line("embedding_forward", embedding_forward_part);
  table.line("embedding_backward", embedding_backward_part);
  table.line("cross_entropy", cross_entropy_part);
  const auto adamw = [&table]<class G, class M>(const char* name, bool has_master, G, M) {
    table.line(name, [=](Gpu& g) { return adamw_part<G, M>(g, name, has_master); });
  };
  adamw("adamw_update, all bf16", false, Bf16{}, Bf16{});
  adamw("adamw_update, fp32 master", true, float{}, float{});
  adamw("adamw_update, bf16 gradient", true, Bf16{}, float{});
  adamw("adamw_update, 8-bit moments", false, Bf16{}, EightBit{});
  adamw("adamw_update, fp32 master, 8-bit", true, Bf16{}, EightBit{});
  table.line("add_squared_norm, bf16",
             [](Gpu& g) { return squared_norm_part<Bf16>(g, "add_squared_norm, bf16"); });
  table.line("add_squared_norm, fp32",
             [](Gpu& g) { return squared_norm_part<float>(g, "add_squared_norm, fp32"); });
  table.line("hash_bytes", hash_part);
  table.line("transpose_fp8_values", transpose_fp8_values_part);
}

}  // namespace

int main(int count, char** words) {
  try {
    Table table(count > 1 ? words[1] : "");
    lines_of_precision<Bf16>(table);
    lines_of_precision<Fp8Recipe<Delayed>>(table);
    lines_of_precision<Fp8Recipe<Tensorwise>>(table);
    lines_of_precision<Fp8Recipe<Rowwise>>(table);
    lines_of_precision<Fp8Recipe<Blockwise>>(table);
    lines_of_precision<Mxfp8>(table);
    lines_of_casts<Nvfp4>(table);
    table.line(name_with<Nvfp4>("quantize gradient"), [](Gpu& g) {
      return quantize_part<Nvfp4, OperandKind::output_gradient>(g, tokens, hidden);
    });
    lines_of_all(table);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kernels_benchmark: %s\n", error.what());
    return 1;
  }
}

// Operands and GEMMs of a linear layer without a model, on any device.
#pragma once

#include <doctor/findings.hpp>

namespace doctor {

/// Magnitudes of the values of a matrix.
enum class Magnitudes {
  equal,     ///< the same everywhere
  of_blocks  ///< different in neighbouring blocks of 128 x 128, whose scales then differ
};

/// Operands of a linear layer in precision `P`, and its three GEMMs.
template <class P, octavo::Device D>
class Layer {
 public:
  using Bf16 = octavo::Bf16;
  using Kind = octavo::OperandKind;

  Layer(Index tokens, Index out, Index in, octavo::Context<D>& context,
        Magnitudes magnitudes = Magnitudes::equal)
      : tokens_(tokens), out_(out), in_(in), context_(context), magnitudes_(magnitudes) {
    if constexpr (quantized) {
      scaling_.template add<P, Kind::input>("layer");
      scaling_.template add<P, Kind::weight>("layer");
      scaling_.template add<P, Kind::output_gradient>("layer");
    }
    octavo::Arena<D> measuring;
    allocate(measuring);
    arena_ = octavo::Arena<D>(measuring.plan(), context);
    allocate(arena_);
    context_.bind_workspace({workspace_, workspace_bytes()});
    scaling_.reset_sync(context_);
    fill(x_.values, tokens, in, 1.0f, 1);
    fill(w_.values, out, in, 0.05f, 2);
    fill(y_gradient_.values, tokens, out, 1e-4f, 3);
  }

  /// Casts all operands; a delayed scale is that of the previous cast.
  void quantize() {
    octavo::quantize(x(), context_);
    octavo::quantize(w(), context_);
    octavo::quantize(y_gradient(), context_);
    scaling_.update(context_);
  }

  /// y = x · Wᵀ, dx = dy · W, dW = dyᵀ · x.
  void multiply() {
    const octavo::GemmOutput<Bf16, D> y{y_, {}};
    const octavo::GemmOutput<Bf16, D> x_gradient{x_gradient_, {}};
    const octavo::GemmOutput<Bf16, D> w_gradient{w_gradient_, {}};
    if constexpr (quantized) {
      (void)matmul_forward(x().row_major, w().row_major, y, context_);
      (void)matmul_input_gradient(y_gradient().row_major, w().transposed, x_gradient, context_);
      (void)matmul_weight_gradient(y_gradient().transposed, x().transposed, w_gradient, context_);
    } else {
      using View = octavo::TensorView<const Bf16, 2, D>;
      const View x_values = x().values;
      const View w_values = w().values;
      const View gradient_values = y_gradient().values;
      (void)matmul_forward(x_values, w_values, y, context_);
      (void)matmul_input_gradient(gradient_values, w_values, x_gradient, context_);
      (void)matmul_weight_gradient(gradient_values, x_values, w_gradient, context_);
    }
  }

  /// Returns the operands and results of the last `multiply`. NVFP4 elements can be read only on
  /// the `Cpu` device, because `Cuda` packs them.
  [[nodiscard]] std::array<Product, 3> products() {
    if constexpr (quantized) {
      return {
          Product{values(x().row_major), values(w().row_major), result(y_)},
          Product{values(y_gradient().row_major), values(w().transposed), result(x_gradient_)},
          Product{values(y_gradient().transposed), values(x().transposed), result(w_gradient_)}};
    } else {
      const Matrix x_values = values(x().values);
      const Matrix w_values = values(w().values);
      const Matrix gradient_values = values(y_gradient().values);
      return {Product{x_values, w_values, result(y_)},
              Product{gradient_values, transposed(w_values), result(x_gradient_)},
              Product{transposed(gradient_values), transposed(x_values), result(w_gradient_)}};
    }
  }

 private:
  static constexpr bool quantized = octavo::QuantizedPrecision<P>;
  template <Kind K>
  using Memory = octavo::OperandMemory<P, K, D>;
  using Output = octavo::TensorView<Bf16, 2, D>;

  void allocate(octavo::Arena<D>& arena) {
    const auto operand = [&](auto& memory, Index rows, Index columns) {
      constexpr auto kind = octavo::MemoryKind::activations;
      memory.allocate_values(arena, kind, rows, columns);
      memory.allocate_row_major(arena, kind, rows, columns);
      memory.allocate_transposed(arena, kind, rows, columns);
    };
    const auto output = [&](Index rows, Index columns) {
      constexpr auto kind = octavo::MemoryKind::activations;
      return Output{arena.template allocate<Bf16>(kind, rows * columns), {rows, columns}};
    };
    operand(x_, tokens_, in_);
    operand(w_, out_, in_);
    operand(y_gradient_, tokens_, out_);
    y_ = output(tokens_, out_);
    x_gradient_ = output(tokens_, in_);
    w_gradient_ = output(out_, in_);
    scaling_.allocate(arena);
    workspace_ = arena.template allocate<std::byte>(octavo::MemoryKind::workspace,
                                                    static_cast<Index>(workspace_bytes()));
  }
  [[nodiscard]] std::size_t workspace_bytes() const {
    return std::max({matmul_workspace(tokens_, out_, in_, context_),
                     matmul_workspace(tokens_, in_, out_, context_),
                     matmul_workspace(out_, in_, tokens_, context_)});
  }

  /// Fills with normally distributed numbers, the same on every device. A short sequence repeats,
  /// so that large tensors are filled quickly.
  void fill(Bf16* target, Index rows, Index columns, float deviation, std::uint64_t stream) {
    constexpr Index most = Index{1} << 20;
    const Index count = rows * columns;
    std::vector<Bf16> run(static_cast<std::size_t>(std::min(count, most)));
    for (std::size_t i = 0; i < run.size(); ++i) {
      const auto place = static_cast<Index>(i);
      run[i] = Bf16(deviation * magnitude(place / columns, place % columns) *
                    octavo::normal(octavo::RandomStream{1, stream}, i));
    }
    for (Index begin = 0; begin < count; begin += most) {
      const auto part = static_cast<std::size_t>(std::min(most, count - begin));
      copy_to_device_sync(target + begin, run.data(), part * sizeof(Bf16), context_);
    }
  }

  /// Returns the factor of an element, 2^-6 to 2^6. It is at least 4 times, or at most a quarter
  /// of, that of the neighbouring blocks, and differs if rows and columns of blocks are swapped.
  [[nodiscard]] float magnitude(Index row, Index column) const {
    if (magnitudes_ == Magnitudes::equal) return 1.0f;
    const auto block = static_cast<int>((3 * (row / 128) + 5 * (column / 128)) % 7);
    return std::ldexp(1.0f, 2 * block - 6);
  }

  [[nodiscard]] auto x() const { return operand(x_, tokens_, in_, 0); }
  [[nodiscard]] auto w() const { return operand(w_, out_, in_, 1); }
  [[nodiscard]] auto y_gradient() const { return operand(y_gradient_, tokens_, out_, 2); }
  template <class OperandMemory>
  auto operand(const OperandMemory& memory, Index rows, Index columns, std::size_t number) const {
    octavo::ScalingSlot slot;
    if constexpr (quantized) slot = scaling_.slot(number);  // the table contains those of casts
    return memory.operand(rows, columns, slot, true, {});
  }

  template <class T>
  std::vector<T> download(const T* source, Index count) const {
    std::vector<T> target(static_cast<std::size_t>(count));
    copy_to_host_sync(target.data(), source, target.size() * sizeof(T), context_);
    return target;
  }
  template <class Format, class Granularity, octavo::Layout L>
  Matrix values(octavo::QuantizedView<Format, Granularity, L, D> view) const {
    const Index outer = view.outer();
    const Index inner = view.inner();
    const auto elements = download(view.data(), outer * inner);
    const auto scales =
        download(view.scale_inverses(), octavo::scale_count<Granularity>(outer, inner));
    double factor = 1.0;
    if constexpr (octavo::detail::has_tensor_scale<Granularity>) {
      static_assert(std::is_same_v<D, octavo::Cpu>);
      factor = static_cast<double>(octavo::tensor_scale_inverse(view));
    }
    Matrix matrix{outer, inner, {}};
    for (Index i = 0; i < outer * inner; ++i) {
      const Index scale = octavo::scale_index<Granularity>(i / inner, i % inner, outer, inner);
      matrix.values.push_back(
          static_cast<double>(static_cast<float>(elements[static_cast<std::size_t>(i)])) *
          static_cast<double>(static_cast<float>(scales[static_cast<std::size_t>(scale)])) *
          factor);
    }
    return matrix;
  }
  Matrix values(Output view) const {
    const std::vector<float> numbers = result(view);
    return {view.extent(0), view.extent(1), {numbers.begin(), numbers.end()}};
  }
  static Matrix transposed(const Matrix& matrix) {
    Matrix turned{matrix.columns, matrix.rows, {}};
    for (Index column = 0; column < matrix.columns; ++column) {
      for (Index row = 0; row < matrix.rows; ++row) {
        turned.values.push_back(
            matrix.values[static_cast<std::size_t>(row * matrix.columns + column)]);
      }
    }
    return turned;
  }
  std::vector<float> result(Output view) const {
    std::vector<float> numbers;
    for (const Bf16 value : download(view.data(), view.size())) {
      numbers.push_back(static_cast<float>(value));
    }
    return numbers;
  }

  Index tokens_, out_, in_;
  octavo::Context<D>& context_;
  Magnitudes magnitudes_;
  octavo::ScalingTable<D> scaling_;
  Memory<Kind::input> x_;
  Memory<Kind::weight> w_;
  Memory<Kind::output_gradient> y_gradient_;
  Output y_, x_gradient_, w_gradient_;
  std::byte* workspace_ = nullptr;
  octavo::Arena<D> arena_;
};

}  // namespace doctor

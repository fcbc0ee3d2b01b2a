/// @file
/// Low-rank adapters for a frozen linear layer.
#pragma once

#include <octavo/gemm/manifest.hpp>
#include <octavo/gemm/matmul.hpp>
#include <octavo/kernels/adapter.hpp>
#include <octavo/layers/linear.hpp>

#include <cmath>
#include <string>

namespace octavo OCTAVO_ABI {

/// Adds y += scale · x · Aᵀ · Bᵀ in each part of a fused layer's result that has an adapter, and
/// computes the gradients. The backward recomputes x · Aᵀ, in memory that all layers of the model
/// share, so an adapter stores only its parameters.
/// @tparam T  format of parameters, activations and GEMMs
/// @tparam G  format of the parameters' gradients
template <class T, class G, Device D>
class Adapter {
 public:
  /// Declares the parameters of the parts that `LayerRegistry::lora` selects, and registers their
  /// GEMMs, "NAME.lora_A" and "NAME.lora_B", in the manifest.
  void declare(const std::string& name, const LayerRegistry<D>& registry, const LinearUse& use,
               Index in, Index out) {
    registry_ = registry;
    in_ = in;
    out_ = out;
    const LoraOptions& lora = registry.lora;
    Index begin = 0;
    for (const LinearPart& part : use.parts) {
      if (part.rows != 0 && lora.has(part.target)) {
        layout_.parts[static_cast<std::size_t>(layout_.count++)] = {begin, part.rows};
      }
      begin += part.rows;
    }
    if (layout_.count == 0) return;
    layout_.rank = lora.rank;
    layout_.scale = lora.scale();
    layout_.width = round_up(layout_.count * lora.rank, Index{8});  // a multiple of 16 bytes, for
                                                                    // tensor cores
    // As in PEFT: A is Kaiming-uniform with a = √5, and B is zero.
    const float bound = 1.0f / std::sqrt(static_cast<float>(in));
    a_.declare(name + ".lora_A", layout_.width, in, Initial::uniform(bound));
    a_.initialised_rows = layout_.count * lora.rank;
    b_.declare(name + ".lora_B", layout_.rows(), lora.rank, Initial::zeros());
    a_.matrices.padding = layout_.width - layout_.count * lora.rank;
    for (std::size_t i = 0; i < static_cast<std::size_t>(layout_.count); ++i) {
      a_.matrices.rows[i] = lora.rank;
      b_.matrices.rows[i] = layout_.parts[i].rows;
    }
    for (Parameter<T, G, D>* parameter : {&a_, &b_}) {
      parameter->is_adapter = true;
      parameter->is_overwritten = true;
    }
    announce(name, use);
    const auto [reduced, gradient, spread, bytes] = places(registry.batch.rows());
    registry.scratch->reserve(bytes);
  }

  /// Adds the adapters' result to y.
  /// @param x  [tokens, in]
  /// @param y  [tokens, out], added to
  void forward(TensorView<const T, 2, D> x, TensorView<T, 2, D> y, const Context<D>& context) {
    if (layout_.count == 0) return;
    const TensorView<const T, 2, D> reduced = reduce(x, context);
    const TensorView<const T, 2, D> spread = spread_b(x.extent(0), context);
    const GemmOutput<T, D> output{y, y};
    count(Matrix::b, GemmPass::forward, matmul_forward(reduced, spread, output, context));
  }

  /// Computes the gradients of the parameters, which are added to if `accumulate` and overwritten
  /// otherwise, and adds the adapters' contribution to the gradient of x.
  /// @param y_gradient  [tokens, out]
  /// @param x           [tokens, in]
  /// @param x_gradient  [tokens, in], added to
  void backward(TensorView<const T, 2, D> y_gradient, TensorView<const T, 2, D> x,
                TensorView<T, 2, D> x_gradient, bool accumulate, const Context<D>& context) {
    if (layout_.count == 0) return;
    const Index tokens = x.extent(0);
    const TensorView<const T, 2, D> reduced = reduce(x, context);
    const TensorView<G, 2, D> spread_gradient{at<G>(places(tokens).spread), {out_, layout_.width}};
    const GemmOutput<G, D> of_b{spread_gradient, {}};
    count(Matrix::b, GemmPass::weight_gradient,
          matmul_weight_gradient(y_gradient, reduced, of_b, context));
    stack_adapter_gradients(TensorView<const G, 2, D>(spread_gradient), layout_, b_.gradient,
                            accumulate, context);

    const TensorView<T, 2, D> gradient{at<T>(places(tokens).gradient), {tokens, layout_.width}};
    const TensorView<const T, 2, D> spread = spread_b(tokens, context);
    const GemmOutput<T, D> reduced_output{gradient, {}};
    count(Matrix::b, GemmPass::input_gradient,
          matmul_input_gradient(y_gradient, spread, reduced_output, context));
    const TensorView<const T, 2, D> reduced_gradient = gradient;
    GemmOutput<G, D> a_output{a_.gradient, {}};
    if (accumulate) a_output.addend = a_.gradient;
    count(Matrix::a, GemmPass::weight_gradient,
          matmul_weight_gradient(reduced_gradient, x, a_output, context));
    const TensorView<const T, 2, D> a = a_.weight;
    const GemmOutput<T, D> of_x{x_gradient, x_gradient};
    count(Matrix::a, GemmPass::input_gradient,
          matmul_input_gradient(reduced_gradient, a, of_x, context));
  }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    if (layout_.count == 0) return;
    visitor(a_);
    visitor(b_);
  }

 private:
  enum class Matrix { a, b };

  /// Byte offsets in the scratch memory, and its total size.
  struct Places {
    Index reduced;   ///< [tokens, width] of T: x · Aᵀ
    Index gradient;  ///< [tokens, width] of T: its gradient
    Index spread;    ///< [out, width]: B spread over the fused rows, of T, or its gradient, of G
    Index bytes;
  };
  [[nodiscard]] Places places(Index tokens) const {
    constexpr Index alignment{allocation_alignment};
    const Index reduced =
        round_up(tokens * layout_.width * static_cast<Index>(sizeof(T)), alignment);
    constexpr auto larger = static_cast<Index>(std::max(sizeof(T), sizeof(G)));
    return {0, reduced, 2 * reduced, 2 * reduced + out_ * layout_.width * larger};
  }
  template <class Element>
  [[nodiscard]] Element* at(Index place) const {
    return reinterpret_cast<Element*>(registry_.scratch->data() + place);
  }

  void announce(const std::string& name, const LinearUse& use) {
    using P = T;  // the format is also the precision
    const char* by = gemm_implementation<P>(D{});
    const char* format = FormatTraits<T>::name;
    const auto add = [&](Matrix matrix, GemmPass pass, bool adds, int again) {
      const bool is_a = matrix == Matrix::a;
      GemmEntry entry;
      entry.layer = name + (is_a ? ".lora_A" : ".lora_B");
      entry.pass = pass;
      entry.out = is_a ? layout_.width : out_;
      entry.in = is_a ? in_ : layout_.width;
      entry.expected = {format, format, by};
      entry.precision = PrecisionTraits<P>::name();
      entry.output_format = pass == GemmPass::weight_gradient ? FormatTraits<G>::name : format;
      entry.recomputed = again;
      entry.adds = adds;
      entry.overwrites = !is_a;  // a gradient of the spread B is overwritten
      this->entry(matrix, pass) = registry_.manifest->add(std::move(entry));
    };
    const int again = use.recomputed ? 1 : 0;
    add(Matrix::a, GemmPass::forward, false, again + 1);
    add(Matrix::a, GemmPass::input_gradient, true, 0);
    add(Matrix::a, GemmPass::weight_gradient, false, 0);
    add(Matrix::b, GemmPass::forward, true, again);
    add(Matrix::b, GemmPass::input_gradient, false, 0);
    add(Matrix::b, GemmPass::weight_gradient, false, 0);
  }
  [[nodiscard]] std::size_t& entry(Matrix matrix, GemmPass pass) {
    return entries_[static_cast<std::size_t>(matrix)][static_cast<std::size_t>(pass)];
  }
  void count(Matrix matrix, GemmPass pass, const GemmRun& run) {
    registry_.manifest->entry(entry(matrix, pass)).count(run);
  }

  /// Computes x · Aᵀ into the scratch memory.
  [[nodiscard]] TensorView<const T, 2, D> reduce(TensorView<const T, 2, D> x,
                                                 const Context<D>& context) {
    const TensorView<T, 2, D> reduced{at<T>(places(x.extent(0)).reduced),
                                      {x.extent(0), layout_.width}};
    const TensorView<const T, 2, D> a = a_.weight;
    const GemmOutput<T, D> output{reduced, {}};
    count(Matrix::a, GemmPass::forward, matmul_forward(x, a, output, context));
    return reduced;
  }
  /// Spreads B over the fused rows in the scratch memory.
  [[nodiscard]] TensorView<const T, 2, D> spread_b(Index tokens, const Context<D>& context) const {
    const TensorView<T, 2, D> spread{at<T>(places(tokens).spread), {out_, layout_.width}};
    spread_adapters(TensorView<const T, 2, D>(b_.weight), layout_, spread, context);
    return spread;
  }

  LayerRegistry<D> registry_;
  AdapterLayout layout_;
  Index in_ = 0;
  Index out_ = 0;
  Parameter<T, G, D> a_;                                 ///< [width, in]
  Parameter<T, G, D> b_;                                 ///< [Σ rows, rank]
  std::array<std::array<std::size_t, 3>, 2> entries_{};  ///< in the manifest
};

}  // namespace octavo

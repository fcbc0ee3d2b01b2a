/// @file
/// A sublayer of a transformer block that several ranks share.
#pragma once

#include <octavo/comm/tensor_parallel.hpp>
#include <octavo/core/config_name.hpp>
#include <octavo/kernels/quantize.hpp>
#include <octavo/layers/layer_registry.hpp>
#include <octavo/layers/mode.hpp>
#include <octavo/layers/shapes.hpp>
#include <octavo/layers/tensor_parallel_group.hpp>

#include <string>

namespace octavo OCTAVO_ABI {

/// Computes y = x + part(norm(x)), like `ResidualBranch`, shared by the ranks of a tensor-parallel
/// group. Each rank has a shard of the residual stream's rows and a shard of the part's features:
///
/// - each rank normalises its rows, which are gathered before the part casts all of them, so the
///   gathered values have the same bits, amax and scale on every rank;
/// - the part's result consists of terms of a sum over the ranks; each rank receives its rows of
///   the sum.
///
/// The backward mirrors this. Gathered normalised rows are kept; from `Recompute::norms` on they
/// are recomputed and gathered again.
/// @tparam Degree  number of ranks that share it; the other parameters are those of
///                 `ResidualBranch`
/// Source: Korthikanti et al. 2022, arXiv 2205.05198.
template <ConfigName NormName, ConfigName Prefix, class Norm, class Part, class T, int Hidden,
          Device D, int Degree>
class ParallelBranch {
 public:
  static constexpr int tensor_parallel = Degree;

  /// See ResidualBranch::Saved.
  struct Saved {
    typename Part::Saved part;
    float* statistics = nullptr;  ///< [Norm::statistics · own rows]
  };

  /// See ResidualBranch::Scratch.
  struct Scratch {
    typename Part::Scratch part;
    T* normalised_gradient = nullptr;  ///< [own rows, Hidden]
  };

  /// Declares the branch.
  /// @param block  the name of the block
  void declare(const std::string& block, LayerRegistry<D> registry, BlockInitial initial,
               Recomputation recomputation) {
    const std::string prefix = Prefix.text();
    recomputation_ = recomputation;
    group_ = registry.group;
    norm_.declare(block + '.' + NormName.text(), initial.norm_epsilon);
    part_.declare(prefix.empty() ? block : block + '.' + prefix, registry, initial, recomputation);
  }

  void allocate_weight_copies(Arena<D>& arena) { part_.allocate_weight_copies(arena); }

  /// See ResidualBranch::allocate_saved.
  /// @param tokens  of all ranks
  template <class Wanted>
  static void allocate_saved(Arena<D>& arena, Saved& saved, Index tokens, const Wanted& wanted) {
    Part::allocate_saved(arena, saved.part, tokens, wanted);
    if (!wanted(Recompute::block)) return;
    saved.statistics =
        arena.template allocate<float>(MemoryKind::activations, Norm::statistics * tokens / Degree);
  }
  static void allocate_shared_buffers(Arena<D>& arena, Saved& saved, Index tokens) {
    Part::allocate_shared_buffers(arena, saved.part, tokens);
  }
  static void allocate_scratch(Arena<D>& arena, Scratch& scratch, Index tokens) {
    Part::allocate_scratch(arena, scratch.part, tokens);
  }

  template <class M>
  void quantize_weights(const Context<D>& context) {
    part_.template quantize_weights<M>(context);
  }

  /// Runs the forward.
  /// @param x      [own rows, Hidden]
  /// @param y      [own rows, Hidden]; must not alias x
  /// @param batch  of all rows
  template <class M, class Positions>
  void forward(TensorView<const T, 2, D> x, TensorView<T, 2, D> y, const BatchView<D>& batch,
               const Positions& positions, const Saved& saved, const Context<D>& context) {
    constexpr bool again = std::is_same_v<M, Mode::recompute>;
    const bool keeps = M::saves && (again || !recomputation_.drops(Recompute::norms));
    const auto normalised =
        normalise<M>(x, {.row_major = true, .transposed = keeps}, batch, saved, context);
    const PartialView<T, 2, D> terms = group_->template terms<T>(batch.rows(), Hidden);
    part_.template forward<M>(normalised, {}, terms, batch, positions, saved.part, context);
    copy_on_device(y.data(), x.data(), x.bytes(), context);
    group_->sum_rows(terms, y, true, "sums of a layer's results", context);
  }

  /// Replaces the gradient of y with that of x, in place, and computes the parameters' gradients:
  /// see PreNormBlock::backward. The norm's gradients cover only this rank's rows.
  /// @param x         [own rows, Hidden], the forward's input
  /// @param gradient  [own rows, Hidden]
  template <class Positions>
  void backward(TensorView<const T, 2, D> x, TensorView<T, 2, D> gradient,
                const BatchView<D>& batch, const Positions& positions, const Saved& saved,
                const Scratch& scratch, bool accumulate, const Context<D>& context) {
    using RecomputeMode = Mode::recompute;
    const Index rows = batch.rows();
    const OperandCopies copies = part_.backward_input();
    const auto normalised = recomputation_.in_backward(Recompute::norms)
                                ? normalise<RecomputeMode>(x, copies, batch, saved, context)
                                : part_.template input<RecomputeMode>(saved.part, rows, copies);
    const TensorView<T, 2, D> y_gradient = group_->template gathered<T>(rows, Hidden);
    const TensorView<const T, 2, D> own = gradient;
    group_->gather_rows(own, y_gradient, "gradients of a layer's results", context);
    const PartialView<T, 2, D> terms = group_->template terms<T>(rows, Hidden);
    part_.backward(y_gradient, normalised, terms, batch, positions, saved.part, scratch.part,
                   accumulate, context);
    const TensorView<T, 2, D> normalised_gradient{scratch.normalised_gradient, x.shape()};
    group_->sum_rows(terms, normalised_gradient, false, "sums of a layer's gradients", context);
    norm_.backward(normalised_gradient, x, statistics(saved, x.extent(0)), gradient, context);
  }

  template <class Visitor>
  void visit(Visitor&& visitor) {
    norm_.visit(visitor);
    part_.visit(visitor);
  }

 private:
  /// Returns the normalised rows of all ranks, cast for the part's precision.
  template <class M>
  auto normalise(TensorView<const T, 2, D> x, OperandCopies copies, const BatchView<D>& batch,
                 const Saved& saved, const Context<D>& context) const {
    const auto normalised = part_.template input<M>(saved.part, batch.rows(), copies);
    const Operand<T, OperandKind::input, D> own{group_->own_rows(normalised.values)};
    norm_.forward(x, own, statistics(saved, x.extent(0)), context);
    const TensorView<const T, 2, D> own_values = own.values;
    group_->gather_rows(own_values, normalised.values, "rows of a layer's input", context);
    quantize(normalised, context);
    return normalised;
  }
  static TensorView<float, 1, D> statistics(const Saved& saved, Index tokens) {
    return {saved.statistics, {Norm::statistics * tokens}};
  }

  Recomputation recomputation_;
  TensorParallelGroup<D>* group_ = nullptr;
  Norm norm_;
  Part part_;
};

}  // namespace octavo

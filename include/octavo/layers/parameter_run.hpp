/// @file
/// Parameters that lie side by side in memory.
#pragma once

#include <octavo/layers/parameter.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace octavo::inline OCTAVO_ABI {

namespace detail {

/// See ModelRun::name.
/// @param names  of the run's parameters
[[nodiscard]] inline std::string name_of_run(const std::vector<std::string>& names) {
  if (names.empty()) return "no parameters";
  const std::string& first = names.front();
  if (names.size() == 1) return first;
  std::size_t common = first.size();
  for (const std::string& name : names) {
    const auto differs = std::mismatch(first.begin(), first.end(), name.begin(), name.end()).first;
    common = std::min(common, static_cast<std::size_t>(differs - first.begin()));
  }
  const std::size_t dot = common == 0 ? std::string::npos : first.rfind('.', common - 1);
  return dot == std::string::npos ? first + " to " + names.back() : first.substr(0, dot);
}

}  // namespace detail

/// Parameters that are worked on together, such as those of a block. Their weights lie in one run
/// of memory, their gradients in another, and so do masters and moments of an optimizer: an element
/// has the same offset in each. So a part of a run is an offset and a length, whatever it is a part
/// of. Elements between parameters, and behind the last, are zero, so that a norm or a sum over
/// ranks may go over a whole run: those of weights from `clear_weights` on, those of gradients from
/// the run's first backward of a step (`clear_gradients`) until something else uses their memory.
///
/// `each` below calls what it is given for every parameter of the run, in a fixed order.
/// @tparam W  format of the weights
/// @tparam G  format of their gradients
template <class W, class G, Device D>
class ParameterRun {
 public:
  /// Parameters begin at multiples of so many elements: aligned for every kernel and library in
  /// every format.
  static constexpr Index alignment = allocation_alignment;

  /// Takes the weights of parameters that were declared.
  /// @param multiple  of elements that the run ends at: of `alignment`
  /// @param lender    a run whose weights are never needed when this one's are, so that these can
  ///                  take their memory if it is large enough; null: memory of their own
  template <class Each>
  void take_weights(Arena<D>& arena, const Each& each, Index multiple = alignment,
                    const ParameterRun* lender = nullptr) {
    Index size = 0;
    each([&](Parameter<W, G, D>& parameter) {
      parameter.offset = size;
      size += round_up(parameter.weight.size(), alignment);
    });
    size = round_up(size, multiple);
    const bool borrows = lender != nullptr && lender->size() >= size;
    weights_ = {
        borrows ? lender->weights_.data() : arena.template take<W>(MemoryKind::weights, size),
        {size}};
    each([&](Parameter<W, G, D>& parameter) {
      parameter.weight = {part(weights_, parameter.offset), parameter.weight.shape()};
    });
  }

  /// Takes the gradients: on their own, because they may share memory with what is dead by the time
  /// that they are made.
  /// @param lender  a run whose gradients are never needed when this one's are, as in
  /// `take_weights`
  template <class Each>
  void take_gradients(Arena<D>& arena, const Each& each, const ParameterRun* lender = nullptr) {
    const bool borrows = lender != nullptr && lender->size() >= size();
    gradients_ = {
        borrows ? lender->gradients_.data() : arena.template take<G>(MemoryKind::gradients, size()),
        {size()}};
    each([&](Parameter<W, G, D>& parameter) {
      parameter.gradient = {part(gradients_, parameter.offset), parameter.weight.shape()};
    });
  }

  /// Zeroes the weights and what lies between them. Whoever owns the run calls it once, before
  /// weights get their initial values.
  /// @note enqueues; does not synchronise
  void clear_weights(const Context<D>& context) const {
    fill_zero(weights_.data(), weights_.bytes(), context);
  }

  /// Zeroes the gradients that layers add to, all but those that a GEMM overwrites, and what lies
  /// between parameters. Whoever owns the run calls it before the run's backward of a step's first
  /// micro-batch; no layer does. Neighbours are zeroed at once.
  /// @note enqueues; does not synchronise
  template <class Each>
  void clear_gradients(const Each& each, const Context<D>& context) const {
    Index begin = 0;
    Index end = 0;
    const auto clear = [&] {
      fill_zero(gradients_.data() + begin, static_cast<std::size_t>(end - begin) * sizeof(G),
                context);
    };
    each([&](const Parameter<W, G, D>& parameter) {
      const Index from =
          parameter.offset + (parameter.is_overwritten ? parameter.weight.size() : 0);
      if (from != end && end > begin) clear();
      if (from != end) begin = from;
      end = parameter.offset + round_up(parameter.weight.size(), alignment);
    });
    end = size();
    if (end > begin) clear();
  }

  /// Elements, those between parameters included.
  [[nodiscard]] Index size() const { return weights_.size(); }
  [[nodiscard]] TensorView<W, 1, D> weights() const { return weights_; }      ///< [size()]
  [[nodiscard]] TensorView<G, 1, D> gradients() const { return gradients_; }  ///< [size()]

 private:
  template <class T>
  static T* part(TensorView<T, 1, D> run, Index offset) {
    return run.data() == nullptr ? nullptr : run.data() + offset;
  }

  TensorView<W, 1, D> weights_;
  TensorView<G, 1, D> gradients_;
};

/// Where a parameter lies in its run.
struct ParameterPlace {
  std::string name{};       ///< such as "blocks.0.qkv.weight"
  Array<Index, 2> shape{};  ///< rows, columns; vectors have one row
  Index offset = 0;         ///< of the first element in the run
  bool is_counted = true;   ///< see Parameter

  [[nodiscard]] Index size() const { return shape[0] * shape[1]; }
  [[nodiscard]] bool is_matrix() const { return shape[0] > 1; }
};

/// Neighbouring elements of a run, which one of the ranks updates: its shard, or all of them.
/// @tparam W  format of the weights
/// @tparam G  format of the gradients that they are updated with
template <class W, class G, Device D>
struct RunShard {
  TensorView<W, 1, D> weights;               ///< [elements]
  TensorView<const G, 1, D> gradients;       ///< [elements], of all ranks' targets
  Index begin = 0;                           ///< the first one's place in the run
  std::vector<ParameterPlace> parameters{};  ///< of the whole run

  /// The elements of a parameter that the shard has, from `begin` to before `end` of the
  /// parameter's; none where both are equal.
  struct Part {
    Index begin = 0;
    Index end = 0;
  };
  [[nodiscard]] Part part_of(const ParameterPlace& parameter) const {
    const Index first = begin - parameter.offset;
    return {std::clamp(first, Index{0}, parameter.size()),
            std::clamp(first + weights.size(), Index{0}, parameter.size())};
  }
  /// A part's place in what has the shard's elements: its weights, gradients, or an optimizer's.
  [[nodiscard]] Index place_of(const ParameterPlace& parameter, const Part& part) const {
    return part.begin == part.end ? 0 : parameter.offset + part.begin - begin;
  }
};

/// A run of a model, and the parameters that lie in it, in their order.
template <class W, class G, Device D>
struct ModelRun {
  const ParameterRun<W, G, D>* run = nullptr;
  std::vector<Parameter<W, G, D>*> parameters{};

  /// What the parameters are called together: what their names begin with up to a dot, such as
  /// "blocks.3", a single one's name, or "norm.weight to head.weight".
  [[nodiscard]] std::string name() const {
    std::vector<std::string> names;
    names.reserve(parameters.size());
    for (const Parameter<W, G, D>* parameter : parameters) names.push_back(parameter->name);
    return detail::name_of_run(names);
  }

  [[nodiscard]] std::vector<ParameterPlace> places() const {
    std::vector<ParameterPlace> result;
    result.reserve(parameters.size());
    for (const Parameter<W, G, D>* parameter : parameters) {
      result.push_back(
          {parameter->name, parameter->weight.shape(), parameter->offset, parameter->is_counted});
    }
    return result;
  }
};

/// All runs of a model: the embedding's, each block's, the head's.
template <class W, class G, Device D>
using ModelRuns = std::vector<ModelRun<W, G, D>>;

}  // namespace octavo

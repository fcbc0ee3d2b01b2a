/// @file
/// Parameters in contiguous memory.
#pragma once

#include <octavo/layers/parameter.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Returns the name of a group of parameters; see StageParameters::name.
/// @param names  of the parameters
[[nodiscard]] inline std::string common_name(const std::vector<std::string>& names) {
  if (names.empty()) return "no parameters";
  const std::string& first = names.front();
  if (names.size() == 1) return first;
  std::size_t common = first.size();
  for (const std::string& name : names) {
    std::size_t same = 0;
    while (same < std::min(common, name.size()) && first[same] == name[same]) ++same;
    common = same;
  }
  const std::size_t dot = common == 0 ? std::string::npos : first.rfind('.', common - 1);
  return dot == std::string::npos ? first + " to " + names.back() : first.substr(0, dot);
}

}  // namespace detail

/// Memory layout of flat weights.
struct FlatLayout {
  /// The number of elements is rounded up to a multiple of this: `FlatParameters::alignment` for
  /// each rank that has a shard.
  Index multiple = allocation_alignment;
  /// Whether ranks cast their own shards of weights that a linear layer casts with one scale
  /// (`Parameter::operand`), and exchange FP8 values. Ignored for flat parameters for which this
  /// would not reduce the number of bytes.
  bool fp8_values = false;
  bool gathered = false;          ///< see ModelOptions::weights_are_gathered
  bool keeps_fp8_values = false;  ///< kept for a whole step, even if weights are gathered for a
                                  ///< stage
  bool frozen = false;            ///< its parameters are not trained
};

/// A contiguous range of flat weights.
template <class W, Device D>
struct WeightRange {
  TensorView<W, 1, D> weights;  ///< [elements]
  Index begin = 0;              ///< offset of the first element in the flat parameters
};

/// Zeroes weights and the padding between them, before they are initialised.
/// @note enqueues; does not synchronise
template <class W, Device D>
void clear_weights(const WeightRange<W, D>& part, const Context<D>& context) {
  fill_zero(part.weights.data(), part.weights.bytes(), context);
}

/// Sets the elements that the range shares with a parameter to their initial values.
/// @note enqueues; does not synchronise
template <class W, class G, Device D>
void initialize(const Parameter<W, G, D>& parameter, const WeightRange<W, D>& part,
                RandomStream stream, const Context<D>& context) {
  const Index end = parameter.offset + parameter.weight.size();
  const Index from = std::clamp(part.begin, parameter.offset, end);
  const Index to = std::clamp(part.begin + part.weights.size(), parameter.offset, end);
  if (from == to) return;
  initialize(parameter, part.weights.rows(from - part.begin, to - from), from - parameter.offset,
             stream, context);
}

namespace detail {

template <class W, class G, Device D>
using ParameterList = std::vector<Parameter<W, G, D>*>;

/// A visitor that lists parameters. A single type, so that layers are compiled for it only once.
template <class W, class G, Device D>
struct ListsParameters {
  ParameterList<W, G, D>* list;

  void operator()(Parameter<W, G, D>& parameter) const { list->push_back(&parameter); }
};

}  // namespace detail

/// Parameters that are processed together, such as those of a block. Their weights are in one
/// contiguous buffer, their gradients in another, and the optimizer's master weights and moments in
/// further ones; an element has the same offset in each. An offset and a length therefore define a
/// range in all of them. Elements between parameters and after the last are zero, so that a norm or
/// a sum over ranks may process a whole buffer. This is true for weights after `clear_weights`, and
/// for gradients from the first backward of a step (`clear_gradients`) until their memory is
/// reused.
///
/// `each` below calls its argument for every parameter, in a fixed order.
/// @tparam W  format of the weights
/// @tparam G  format of their gradients
template <class W, class G, Device D>
class FlatParameters {
  using List = detail::ParameterList<W, G, D>;

 public:
  /// Parameters begin at multiples of this number of elements, which is aligned for every kernel
  /// and library in every format.
  static constexpr Index alignment = allocation_alignment;

  /// Allocates the weights of declared parameters.
  /// @param lender  flat parameters whose weights are never needed at the same time as these, which
  ///                reuse their memory if it is large enough; null: separate memory
  template <class Each>
  void allocate_weights(Arena<D>& arena, const Each& each, const FlatLayout& layout = {},
                        const FlatParameters* lender = nullptr) {
    allocate_weights_of(arena, listed(each), layout, lender);
  }

  /// Allocates the gradients. Separate from the weights, because gradients may share memory with
  /// data that is no longer needed when they are computed.
  /// @param lender  flat parameters whose gradients are never needed at the same time, as in
  ///                `allocate_weights`
  template <class Each>
  void allocate_gradients(Arena<D>& arena, const Each& each,
                          const FlatParameters* lender = nullptr) {
    allocate_gradients_of(arena, listed(each), lender);
  }

  /// Zeroes the gradients that layers add to, which are all except those that a GEMM overwrites,
  /// and the padding between parameters. Adjacent ranges are zeroed together. The owner calls it
  /// before the backward of a step's first micro-batch; layers do not.
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
      end = parameter.offset + padded_size(parameter);
    });
    end = size();
    if (end > begin) clear();
  }

  /// Returns the number of elements, including padding between parameters.
  [[nodiscard]] Index size() const { return weights_.size(); }
  /// Returns the weights, [size()]. They have no memory if stages read FP8 values and the weights
  /// are sharded.
  [[nodiscard]] TensorView<W, 1, D> weights() const { return weights_; }
  /// Returns the gradients, [size()]; empty, with size 0, if the parameters are frozen.
  [[nodiscard]] TensorView<G, 1, D> gradients() const { return gradients_; }
  /// Returns the FP8 values, [size()], at the offsets of the weights; empty unless ranks cast some
  /// weights.
  [[nodiscard]] TensorView<E4M3, 1, D> fp8_values() const { return fp8_values_; }
  [[nodiscard]] bool has_fp8_values() const { return fp8_values_.size() != 0; }
  /// Whether the parameters are frozen: they have neither gradients nor optimizer state.
  [[nodiscard]] bool is_frozen() const { return is_frozen_; }

 private:
  template <class Each>
  static List listed(const Each& each) {
    List list;
    const detail::ListsParameters<W, G, D> visitor{&list};
    each(visitor);
    return list;
  }

  void allocate_weights_of(Arena<D>& arena, const List& parameters, const FlatLayout& layout,
                           const FlatParameters* lender) {
    Index size = 0;
    Index staged = 0;
    is_frozen_ = layout.frozen;
    for (Parameter<W, G, D>* parameter : parameters) {
      parameter->is_frozen = layout.frozen;
      Index& end = parameter->is_cast_only ? staged : size;
      parameter->offset = end;
      end += padded_size(*parameter);
    }
    size = round_up(size, layout.multiple);
    const bool has_fp8_values =
        layout.fp8_values && fp8_values_are_fewer_bytes(parameters, size, layout.multiple);
    has_weight_memory_ = !has_fp8_values || !layout.gathered;
    weights_ = {nullptr, {size}};
    if (has_weight_memory_) {
      weights_ =
          allocate(arena, MemoryKind::weights, size,
                   lender == nullptr || !lender->has_weight_memory_ ? nullptr : &lender->weights_);
    }
    if (has_fp8_values) {
      const bool lends =
          lender != nullptr && !layout.keeps_fp8_values && lender->fp8_values_.size() >= size;
      fp8_values_ = allocate(arena, MemoryKind::quantized_weights, size,
                             lends ? &lender->fp8_values_ : nullptr);
      if (!has_weight_memory_) allocate_uncast_weights(arena, parameters, lends ? lender : nullptr);
    }
    for (Parameter<W, G, D>* parameter : parameters) {
      if (parameter->is_cast_only) continue;
      if (has_fp8_values && parameter->operand >= 0) {
        parameter->fp8_values = {part(fp8_values_, parameter->offset), parameter->weight.shape()};
      } else if (!has_weight_memory_) {
        continue;
      }
      parameter->weight = {part(weights_, parameter->offset), parameter->weight.shape()};
    }
  }

  void allocate_gradients_of(Arena<D>& arena, const List& parameters,
                             const FlatParameters* lender) {
    const bool borrows = lender != nullptr && lender->size() >= size();
    gradients_ = {borrows ? lender->gradients_.data()
                          : arena.template allocate<G>(MemoryKind::gradients, size()),
                  {size()}};
    for (Parameter<W, G, D>* parameter : parameters) {
      parameter->gradient = {part(gradients_, parameter->offset), parameter->weight.shape()};
    }
  }

  [[nodiscard]] static Index padded_size(const Parameter<W, G, D>& parameter) {
    return round_up(parameter.weight.size(), alignment);
  }

  /// Allocates memory, or reuses that of a lender that is large enough.
  template <class T>
  static TensorView<T, 1, D> allocate(Arena<D>& arena, MemoryKind kind, Index size,
                                      const TensorView<T, 1, D>* lent) {
    const bool borrows = lent != nullptr && lent->size() >= size;
    return {borrows ? lent->data() : arena.template allocate<T>(kind, size), {size}};
  }

  /// Whether each rank sends fewer bytes with FP8 values than with weights. All ranks send the same
  /// number of other elements: as many as the rank that has the most.
  static bool fp8_values_are_fewer_bytes(const List& parameters, Index size, Index multiple) {
    const Index shard = size / (multiple / alignment);
    bool has_operands = false;
    for (const Parameter<W, G, D>* parameter : parameters) {
      has_operands = has_operands || parameter->operand >= 0;
    }
    Index most = 0;
    for (Index begin = 0; begin < size; begin += shard) {
      Index others = 0;
      for (const Parameter<W, G, D>* parameter : parameters) {
        if (parameter->operand >= 0) continue;
        const Index end = parameter->offset + padded_size(*parameter);
        others += std::clamp(end, begin, begin + shard) -
                  std::clamp(parameter->offset, begin, begin + shard);
      }
      most = std::max(most, others);
    }
    constexpr auto bytes = static_cast<Index>(sizeof(W));
    return has_operands && shard + most * bytes < shard * bytes;
  }

  /// Allocates the weights that are not cast, if the buffer of all weights has no memory.
  void allocate_uncast_weights(Arena<D>& arena, List parameters, const FlatParameters* lender) {
    std::erase_if(parameters, [](const auto* parameter) { return parameter->operand >= 0; });
    Index size = 0;
    for (const Parameter<W, G, D>* parameter : parameters) size += padded_size(*parameter);
    uncast_weights_ = allocate(arena, MemoryKind::weights, size,
                               lender == nullptr ? nullptr : &lender->uncast_weights_);
    size = 0;
    for (Parameter<W, G, D>* parameter : parameters) {
      parameter->weight = {part(uncast_weights_, size), parameter->weight.shape()};
      size += padded_size(*parameter);
    }
  }

  template <class T>
  static T* part(TensorView<T, 1, D> flat, Index offset) {
    return flat.data() == nullptr ? nullptr : flat.data() + offset;
  }

  TensorView<W, 1, D> weights_;
  TensorView<G, 1, D> gradients_;
  TensorView<E4M3, 1, D> fp8_values_;
  TensorView<W, 1, D> uncast_weights_;  ///< weights that are not cast, if `weights_` has no memory
  bool has_weight_memory_ = true;       ///< `weights_` has memory
  bool is_frozen_ = false;
};

/// The place of a parameter in its flat parameters.
struct ParameterPlace {
  std::string name{};          ///< such as "blocks.0.qkv.weight"
  Array<Index, 2> shape{};     ///< rows, columns; vectors have one row
  Index offset = 0;            ///< of the first element in the flat parameters
  bool is_counted = true;      ///< see Parameter
  StackedMatrices matrices{};  ///< see Parameter
  ParameterPart part{};        ///< see Parameter

  [[nodiscard]] Index size() const { return shape[0] * shape[1]; }
  [[nodiscard]] bool is_matrix() const { return shape[0] > 1; }
};

/// A contiguous range of flat parameters that one rank updates: its shard, or all of them.
/// @tparam W  format of the weights
/// @tparam G  format of the gradients used for the update
template <class W, class G, Device D>
struct FlatShard {
  TensorView<W, 1, D> weights;               ///< [elements]
  TensorView<const G, 1, D> gradients;       ///< [elements], over all ranks' targets; size 0 if
                                             ///< frozen
  Index begin = 0;                           ///< offset of the first element in the flat parameters
  std::vector<ParameterPlace> parameters{};  ///< of all the flat parameters
  Index whole = 0;  ///< number of elements of the flat parameters; 0: those of the shard

  /// The elements of a parameter that belong to the shard: [begin, end) within the parameter; empty
  /// if both are equal.
  struct Part {
    Index begin = 0;
    Index end = 0;
  };
  [[nodiscard]] Part part_of(const ParameterPlace& parameter) const {
    const Index first = begin - parameter.offset;
    return {std::clamp(first, Index{0}, parameter.size()),
            std::clamp(first + weights.size(), Index{0}, parameter.size())};
  }
  /// Returns the offset of a part in the shard's arrays: its weights, gradients or optimizer state.
  [[nodiscard]] Index place_of(const ParameterPlace& parameter, const Part& part) const {
    return part.begin == part.end ? 0 : parameter.offset + part.begin - begin;
  }
};

/// The flat parameters of a stage of a model, and the parameters that they contain, in order.
template <class W, class G, Device D>
struct StageParameters {
  const FlatParameters<W, G, D>* flat = nullptr;
  detail::ParameterList<W, G, D> parameters{};

  /// Returns a common name of the parameters: their shared prefix up to a dot, such as "blocks.3",
  /// the name of a single parameter, or "norm.weight to head.weight".
  [[nodiscard]] std::string name() const {
    std::vector<std::string> names;
    names.reserve(parameters.size());
    for (const Parameter<W, G, D>* parameter : parameters) names.push_back(parameter->name);
    return detail::common_name(names);
  }

  [[nodiscard]] std::vector<ParameterPlace> places() const {
    std::vector<ParameterPlace> result;
    result.reserve(parameters.size());
    for (const Parameter<W, G, D>* parameter : parameters) {
      result.push_back({parameter->name, parameter->weight.shape(), parameter->offset,
                        parameter->is_counted, parameter->matrices, parameter->part});
    }
    return result;
  }
};

/// All parameters of a model: those of its adapters, if it is frozen, of the embedding, each block
/// and the head.
template <class W, class G, Device D>
using ModelParameters = std::vector<StageParameters<W, G, D>>;

}  // namespace octavo

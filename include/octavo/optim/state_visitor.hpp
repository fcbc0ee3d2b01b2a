/// @file
/// How the state of a training is listed: named tensors and numbers.
#pragma once

#include <octavo/formats/formats.hpp>
#include <octavo/tensor/tensor_view.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// The name of the format in which elements of a state are stored.
template <class T>
std::string state_format() {
  if constexpr (std::is_same_v<T, std::uint32_t>) {
    return "uint32";
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return "int64";
  } else {
    return FormatTraits<T>::name;
  }
}

}  // namespace detail

/// A named tensor of a state, or this rank's part of one.
struct StateTensor {
  std::string name;          ///< such as "optimizer.first_moment.blocks.0.qkv.weight"
  std::string format;        ///< of its elements, such as "fp32"
  std::vector<Index> shape;  ///< of this part
  std::size_t bytes = 0;     ///< of this part
  std::vector<Index> whole;  ///< shape of the whole tensor
  Index begin = 0;           ///< index in the whole tensor of this part's first element
  void* data = nullptr;
  bool is_on_host = false;  ///< whether `data` is in host memory although the device is not `Cpu`
};

/// Receives every entry of a state: calls of `visitor(name, view)`, `visitor(name, part, begin,
/// whole)` and `visitor(name, number)`.
template <Device D>
class StateVisitor {
 public:
  StateVisitor() = default;
  StateVisitor(const StateVisitor&) = delete;
  StateVisitor& operator=(const StateVisitor&) = delete;
  virtual ~StateVisitor() = default;

  virtual void add(StateTensor tensor) = 0;
  /// Adds a number of the host, which must outlive the visitor's entries.
  virtual void add(const std::string& name, std::int64_t& number) = 0;

  /// @tparam Where  the tensor's device; `Cpu` for host memory
  template <class T, int Rank, Device Where>
  void operator()(const std::string& name, TensorView<T, Rank, Where> view) {
    add_view(name, view, 0, {view.shape().begin(), view.shape().end()});
  }
  /// Visits this rank's part of a tensor of shape `whole`: its elements from `begin` on.
  template <class T, Device Where, class Shape>
  void operator()(const std::string& name, TensorView<T, 1, Where> part, Index begin,
                  const Shape& whole) {
    add_view(name, part, begin, {whole.begin(), whole.end()});
  }
  /// Visits a number in host memory.
  void operator()(const std::string& name, std::int64_t& number) { add(name, number); }

 private:
  template <class T, int Rank, Device Where>
  void add_view(const std::string& name, TensorView<T, Rank, Where> view, Index begin,
                std::vector<Index> whole) {
    add({name,
         detail::state_format<T>(),
         {view.shape().begin(), view.shape().end()},
         view.bytes(),
         std::move(whole),
         begin,
         view.data(),
         std::is_same_v<Where, Cpu> && !std::is_same_v<D, Cpu>});
  }
};

}  // namespace octavo

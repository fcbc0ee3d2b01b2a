/// @file
/// Checks whether replicas of the weights have the same bits on all ranks.
#pragma once

#include <octavo/comm/communicator.hpp>
#include <octavo/comm/rank_names.hpp>
#include <octavo/core/error.hpp>
#include <octavo/kernels/hash.hpp>
#include <octavo/layers/flat_parameters.hpp>
#include <octavo/layers/scaling_table.hpp>
#include <octavo/memory/arena.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// Returns the ranks whose value differs from the majority; all ranks, if there is no majority. A
/// template, like the next function, so that only programs that compare replicas compile it.
template <class Value>
[[nodiscard]] std::vector<int> ranks_that_differ(const std::vector<Value>& of_rank) {
  std::vector<int> others;
  for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
    const auto equal_count = std::count(of_rank.begin(), of_rank.end(), of_rank[rank]);
    if (2 * equal_count <= std::ssize(of_rank)) others.push_back(static_cast<int>(rank));
  }
  return others;
}

/// @param hashes  [ranks, stages]
/// @param names   of the flat buffers
/// @param degree  number of neighbouring ranks with different parts of the weights
/// @param step    that read the weights
/// @throws CommError  naming the first flat buffer that differs and the ranks, if any do
template <class Value = std::uint64_t>
void require_equal_replicas(std::span<const std::type_identity_t<Value>> hashes,
                            const std::vector<std::string>& names, int degree, Index step) {
  const auto places = static_cast<std::size_t>(degree);
  const std::size_t ranks = hashes.size() / names.size() / places;
  std::string first;
  std::size_t more = 0;
  for (std::size_t i = 0; i < names.size() * places; ++i) {
    const std::size_t flat = i / places;
    const std::size_t place = i % places;
    std::vector<Value> of_rank;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      of_rank.push_back(hashes[(rank * places + place) * names.size() + flat]);
    }
    if (std::count(of_rank.begin(), of_rank.end(), of_rank[0]) == std::ssize(of_rank)) continue;
    if (!first.empty()) {
      ++more;
      continue;
    }
    std::vector<int> others = ranks_that_differ(of_rank);
    for (int& other : others) other = other * degree + static_cast<int>(place);
    const bool is_majority = others.size() < ranks;
    first = message("in step ", step, " ", rank_names(others), " read different weights of '",
                    names[flat],
                    is_majority ? "' than most ranks" : "', and no more than half of them agree");
  }
  if (first.empty()) return;
  throw CommError(message(first, more == 0 ? "" : message(", and of ", more, " more flat buffers"),
                          "; the memory of that GPU or host, or its connection, is faulty: exclude "
                          "it, and resume from a state that was saved before"));
}

}  // namespace detail

/// Compares the weights that every rank has whole, bit by bit through hashes. It compares the
/// weights that a step has read, after its backward and before its optimizer step. Data that exists
/// on one rank only cannot be compared: masters, moments, and with `Zero::weights` also weights.
template <Device D>
class ReplicaCheck {
 public:
  /// Allocates memory, unless `every` is 0.
  /// @param scaling  the model's
  /// @param every  interval of comparisons in steps; 0: never
  template <class W, class G>
  ReplicaCheck(Arena<D>& arena, const ModelParameters<W, G, D>& parameters,
               const ScalingTable<D>& scaling, Index every)
      : every_(every) {
    if (every == 0) return;
    const auto add = [this](std::string name, auto weights) {
      names_.push_back(std::move(name));
      weights_.push_back({reinterpret_cast<const std::byte*>(weights.data()),
                          {static_cast<Index>(weights.bytes())}});
    };
    for (const StageParameters<W, G, D>& stage : parameters) {
      if (!stage.flat->has_fp8_values()) {
        add(stage.name(), stage.flat->weights());
        continue;
      }
      // If ranks cast weights, the other ranks have only FP8 values of this rank's weights. Each
      // rank computes the scales of these casts itself.
      add(stage.name(), stage.flat->fp8_values());
      for (const Parameter<W, G, D>* parameter : stage.parameters) {
        if (parameter->has_fp8_values()) {
          const auto number = static_cast<std::size_t>(parameter->operand);
          add("scale of " + parameter->name,
              TensorView<OperandScale, 1, D>(scaling.slot(number).scaling, {1}));
          continue;
        }
        const Index room = round_up(parameter->weight.size(), FlatParameters<W, G, D>::alignment);
        add(parameter->name, stage.flat->weights().rows(parameter->offset, room));
      }
    }
    const auto count = static_cast<Index>(names_.size());
    hashes_ = {arena.template allocate<std::uint64_t>(MemoryKind::communication, count), {count}};
  }

  /// Counts a step.
  /// @return whether its weights must be compared
  [[nodiscard]] bool begin_step() { return every_ != 0 && ++step_ % every_ == 0; }

  /// Hashes the current weights of each flat buffer.
  /// @note enqueues; does not synchronise
  void enqueue(const Context<D>& context) const {
    Index number = 0;
    for (const TensorView<const std::byte, 1, D>& weights : weights_) {
      hash_bytes(weights, hashes_.rows(number++, 1), context);
    }
  }

  /// Compares the hashes with those of the other ranks; all ranks call it.
  /// @param degree  number of neighbouring ranks that share the model's layers, and have different
  ///                weights
  /// @throws CommError  on every rank, if any differ: naming the ranks, the flat buffer and the
  ///                    step
  void compare_sync(Communicator<D>& ranks, int degree, const Context<D>& context) const {
    std::vector<std::uint64_t> own(names_.size());
    copy_to_host_sync(own.data(), hashes_.data(), hashes_.bytes(), context);
    std::vector<std::uint64_t> all(own.size() * static_cast<std::size_t>(ranks.size()));
    ranks.all_gather_host_sync(std::as_bytes(std::span(own)),
                               std::as_writable_bytes(std::span(all)), "hashes of weights");
    detail::require_equal_replicas(all, names_, degree, step_);
  }

 private:
  Index every_;
  Index step_ = 0;
  std::vector<std::string> names_;  ///< of the flat buffers
  std::vector<TensorView<const std::byte, 1, D>> weights_;
  TensorView<std::uint64_t, 1, D> hashes_{};  ///< [stages]
};

}  // namespace octavo

/// @file
/// A flat buffer of parameters of which each rank casts its shard before sending it.
#pragma once

#include <octavo/comm/sharding.hpp>
#include <octavo/kernels/fp8_weights.hpp>
#include <octavo/kernels/quantize.hpp>
#include <octavo/layers/flat_parameters.hpp>
#include <octavo/layers/scaling_table.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI {

namespace detail {

/// @throws ConfigError  if weights should be sent in FP8, but none can
inline void require_casts(bool has_some) {
  require<ConfigError>(
      has_some,
      "gathering weights in FP8 needs a block of the model that has fewer bytes in FP8, but there "
      "is none; use a recipe with one scale per tensor, delayed or tensorwise, for its linear "
      "layers, or gather weights as they are stored");
}

}  // namespace detail

/// The part of a flat buffer that this rank casts, and the exchange of the parts of all ranks: FP8
/// values at the offsets of the weights, one byte each, and the remaining weights, packed. Has no
/// parts if the flat buffer has no fp8_values.
template <class W, class G, Device D>
class CastWeights {
 public:
  CastWeights() = default;
  /// @param shard  this rank's shard of the flat buffer's weights
  /// @param fp8_values  this rank's shard of its FP8 values, at the place where they are gathered
  CastWeights(const StageParameters<W, G, D>& stage, TensorView<W, 1, D> shard,
              TensorView<E4M3, 1, D> fp8_values, const Sharding& sharding)
      : flat_(stage.flat),
        shard_(shard),
        fp8_values_(fp8_values),
        rank_(sharding.rank),
        ranks_(sharding.ranks),
        fp8_values_text_("FP8 weights of " + stage.name()),
        rest_text_("weights besides FP8 ones of " + stage.name()) {
    std::vector<Index> sent(static_cast<std::size_t>(ranks_));
    for (const Parameter<W, G, D>* parameter : stage.parameters) {
      const Index begin = parameter->offset;
      const Index end = begin + parameter->weight.size();
      for (Index rank = begin / shard.size(); rank * shard.size() < end; ++rank) {
        const Index from = std::max(begin, rank * shard.size());
        const Index size = std::min(end, (rank + 1) * shard.size()) - from;
        Index& place = sent[static_cast<std::size_t>(rank)];
        const Part part{parameter, rank, from - begin, size, from - rank * shard.size(), place};
        if (!parameter->has_fp8_values()) {
          place += round_up(size, FlatParameters<W, G, D>::alignment);
          rest_.push_back(part);
        } else if (rank == rank_) {
          casts_.push_back(part);
        }
      }
    }
    rest_size_ = *std::max_element(sent.begin(), sent.end());
  }

  [[nodiscard]] bool empty() const { return flat_ == nullptr; }
  /// Returns the number of elements that are not cast and are sent to all ranks, including padding
  /// to equal sizes.
  [[nodiscard]] Index rest_size() const { return rest_size_ * ranks_; }

  /// Raises the amaxes from which scales are computed to those of this rank's values.
  void find_amaxes(const ScalingTable<D>& scaling, const Context<D>& context) const {
    for (const Part& part : casts_) {
      const auto amax = scaling.found_amax(static_cast<std::size_t>(part.parameter->operand));
      if (amax.size() != 0) {
        raise_amax<W>(shard_.rows(part.in_shard, part.size), amax, context);
      }
    }
  }

  /// Casts this rank's shard with the current scales.
  void cast(const ScalingTable<D>& scaling, bool records, const Context<D>& context) const {
    for (const Part& part : casts_) {
      // One scale covers all elements, so any shape works, and any recipe that accepts a given
      // scale.
      const Index columns = std::gcd(part.size, FlatParameters<W, G, D>::alignment);
      const Index rows = part.size / columns;
      Operand<Fp8Recipe<Delayed>, OperandKind::weight, D> operand;
      operand.slot = scaling.slot(static_cast<std::size_t>(part.parameter->operand));
      operand.record = records;
      operand.values = {shard_.rows(part.in_shard, part.size).data(), {rows, columns}};
      operand.row_major = {fp8_values_.rows(part.in_shard, part.size).data(),
                           &operand.slot.scaling->scale_inverse, rows, columns};
      quantize(operand, context);
    }
  }

  /// Gathers the FP8 values of all ranks into the flat buffer.
  /// @param all_gather  `all_gather(part, whole, what)` gives each rank the parts of all
  template <class AllGather>
  void gather_fp8_values(const AllGather& all_gather) const {
    all_gather(fp8_values_, flat_->fp8_values(), fp8_values_text_.c_str());
  }
  /// Copies the values that are not cast to their parameters.
  /// @param memory  [at least rest_size()], overwritten
  template <class AllGather>
  void gather_rest(TensorView<W, 1, D> memory, const AllGather& all_gather,
                   const Context<D>& context) const {
    if (rest_size_ == 0) return;
    const auto packed = [&](const Part& part) {
      return memory.rows(part.rank * rest_size_ + part.place, part.size);
    };
    for (const Part& part : rest_) {
      if (part.rank != rank_) continue;
      copy_on_device(packed(part).data(), shard_.rows(part.in_shard, part.size).data(),
                     packed(part).bytes(), context);
    }
    all_gather(memory.rows(rank_ * rest_size_, rest_size_), memory.rows(0, rest_size()),
               rest_text_.c_str());
    for (const Part& part : rest_) {
      copy_on_device(part.parameter->weight.data() + part.begin, packed(part).data(),
                     packed(part).bytes(), context);
    }
  }

 private:
  /// Neighbouring elements of a parameter in the shard of one rank.
  struct Part {
    const Parameter<W, G, D>* parameter;
    Index rank;      ///< the owner of the shard
    Index begin;     ///< in the parameter
    Index size;      ///< elements
    Index in_shard;  ///< their offset in the shard
    Index place;     ///< their offset among the rank's elements that are not cast
  };

  const FlatParameters<W, G, D>* flat_ = nullptr;
  TensorView<W, 1, D> shard_;
  TensorView<E4M3, 1, D> fp8_values_;
  Index rank_ = 0;
  Index ranks_ = 1;
  std::string fp8_values_text_;  ///< names of the transfers, for errors
  std::string rest_text_;
  std::vector<Part> casts_;  ///< of this rank
  std::vector<Part> rest_;   ///< elements that are not cast, of all ranks
  Index rest_size_ = 0;      ///< number of such elements of the rank that has the most
};

}  // namespace octavo

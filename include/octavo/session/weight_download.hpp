/// @file
/// Copies weights from a session to the host.
#pragma once

#include <octavo/layers/flat_parameters.hpp>
#include <octavo/parallel/single_rank.hpp>
#include <octavo/session/weights.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Passes weights to a sink, piece by piece. Shards and parts of different ranks are assembled for
/// each piece, so that no rank needs memory for all weights. All ranks make the same calls.
/// @tparam T  format of the weights
template <class T, Device D>
class WeightDownload {
 public:
  /// All arguments must outlive this object.
  /// @param sink  empty: this rank only takes part in the exchanges
  WeightDownload(StepCollectives<D>& ranks, Communicator<D>& communicator, const WeightSink& sink,
                 const Context<D>& context)
      : ranks_(ranks), communicator_(communicator), sink_(sink), context_(context) {}

  /// Passes adjacent elements of this rank's part of a parameter, and of the parts of the other
  /// ranks.
  /// @param parameter  such as a `Parameter`; describes its shape and its part
  /// @param begin      index of the first element in the part
  void write_to_sink_sync(const WeightInfo& weight, const auto& parameter, Index begin,
                          TensorView<const T, 1, D> elements) {
    const int degree = parameter.part.degree;
    for (Index done = 0; done < elements.size();) {
      const auto own = elements.rows(done, std::min(elements.size() - done, weights_at_once));
      const auto all = gather_sync(own, degree, [&](auto bytes) {
        return parameter.part.is_whole() ? bytes : ranks_.gather_parts(bytes, context_);
      });
      const Index count = all.size() / degree;
      ParameterPart part = parameter.part;
      for (int place = 0; place < degree && sink_ != nullptr; ++place) {
        if (!part.is_whole()) part.rank = place;
        write_part_sync(weight, part, parameter.weight.shape(), begin + done,
                        all.rows(place * count, count));
      }
      done += count;
    }
  }

  /// Passes the weights of a flat buffer of which each rank has a shard.
  /// @param shard   this rank's
  /// @param shards  number of shards
  /// @param weight  description of the flat buffer's first parameter; those of the others follow it
  template <class Stage>
  void write_shards_sync(const Stage& stage, TensorView<const T, 1, D> shard, Index shards,
                         const WeightInfo* weight) {
    for (Index done = 0; done < shard.size();) {
      const auto all = gather_sync(shard.rows(done, shard.size() - done), shards, [&](auto bytes) {
        return ranks_.gather_shards(bytes, context_);
      });
      const Index count = all.size() / shards;
      for (Index rank = 0; rank < shards; ++rank) {
        const Index begin = rank * shard.size() + done;  // in the flat buffer
        const WeightInfo* of = weight;
        for (const auto* parameter : stage.parameters) {
          const Index end = parameter->offset + parameter->weight.size();
          const Index from = std::clamp(parameter->offset, begin, begin + count);
          const Index size = std::clamp(end, begin, begin + count) - from;
          write_to_sink_sync(*of++, *parameter, from - parameter->offset,
                             all.rows(rank * count + from - begin, size));
        }
      }
      done += count;
    }
  }

 private:
  /// Gathers the first of these elements over ranks, once they are available.
  /// @param gather  accepts the bytes of this rank, and returns those of `ranks` ranks
  template <class Gather>
  TensorView<const T, 1, D> gather_sync(TensorView<const T, 1, D> own, Index ranks,
                                        const Gather& gather) {
    const TensorView<const std::byte, 1, D> bytes{reinterpret_cast<const std::byte*>(own.data()),
                                                  {static_cast<Index>(own.bytes())}};
    const auto all = gather(bytes);
    if (ranks > 1) communicator_.wait_sync(context_, "weights that are read");
    return {reinterpret_cast<const T*>(all.data()), {all.size() / static_cast<Index>(sizeof(T))}};
  }

  void write_part_sync(const WeightInfo& weight, const ParameterPart& part,
                       const Array<Index, 2>& shape, Index begin,
                       TensorView<const T, 1, D> elements) {
    rounded_.resize(static_cast<std::size_t>(elements.size()));
    copy_to_host_sync(rounded_.data(), elements.data(), elements.bytes(), context_);
    values_.resize(rounded_.size());
    std::transform(rounded_.begin(), rounded_.end(), values_.begin(),
                   [](T value) { return static_cast<float>(value); });
    const Index live = weight.rows * weight.columns;
    part.for_each_stripe(shape, [&](Index stripe, Index whole, Index count) {
      const Index from = std::max(stripe, begin);
      const Index first = whole + from - stripe;
      const Index end = std::min(stripe + count, begin + elements.size());
      const Index size = std::min(end - from, live - first);
      if (size <= 0) return;
      sink_(weight, first,
            std::span(values_).subspan(static_cast<std::size_t>(from - begin),
                                       static_cast<std::size_t>(size)));
    });
  }

  StepCollectives<D>& ranks_;
  Communicator<D>& communicator_;
  const WeightSink& sink_;
  const Context<D>& context_;
  std::vector<T> rounded_;
  std::vector<float> values_;
};

}  // namespace octavo OCTAVO_ABI::detail

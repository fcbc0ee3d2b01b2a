/// @file
/// The weights of a session in device memory, in their format.
#pragma once

#include <octavo/optim/optimizer.hpp>
#include <octavo/parallel/rank_collectives.hpp>
#include <octavo/session/session_core.hpp>
#include <octavo/session/weight_download.hpp>
#include <octavo/session/weight_upload.hpp>
#include <octavo/session/weights_on_device.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// The weights of a session in device memory. Compiled once for each format, not for each model.
template <class T, class G, Device D>
class WeightsOfFormat final : public WeightsOnDevice<D> {
 public:
  /// All references must outlive this object.
  /// @param session  the owner of this
  /// @param shards   the shards that this rank updates, of every flat buffer
  WeightsOfFormat(SessionCore<D>& session, const ModelParameters<T, G, D>& stages,
                  std::vector<FlatShard<T, G, D>> shards, RankCollectives<T, G, D>& ranks,
                  Optimizer<D>& optimizer)
      : WeightsOnDevice<D>(parameters_of(stages)),
        session_(session),
        stages_(stages),
        shards_(std::move(shards)),
        ranks_(ranks),
        optimizer_(optimizer) {}

  void set(const std::string& name, std::span<const float> values) override {
    for (const WeightInfo& weight : this->list()) {
      if (weight.name != name) continue;
      const auto given = static_cast<Index>(values.size());
      require<ConfigError>(given == weight.rows * weight.columns, name, " has ", weight.rows, " x ",
                           weight.columns, " elements, but ", given,
                           " are passed; pass all of them, without padding rows");
    }
    require_finite<T>(name, values, [](Index element) { return element; });
    set(name, WeightSource([values](Index begin, std::span<float> piece) {
          std::copy_n(values.begin() + begin, piece.size(), piece.begin());
        }));
  }

  void set(const std::string& name, const WeightSource& source) override {
    session_.note_new_state();
    bool found = false;
    for_each_shard([&](const auto& parameter, const auto& weights, Index begin) {
      if (parameter.name != name) return;
      found = true;
      session_.forget_histories();  // even if a piece is refused
      if (ranks_.has_full_weights()) {
        set_elements(parameter, parameter.weight.data(), 0, parameter.weight.size(), source);
      } else {
        set_elements(parameter, weights.data(), begin, weights.size(), source);
      }
    });
    require<ConfigError>(found, "the model has no parameter ", name,
                         "; names are those of its state() without \"model.\", such as ",
                         this->parameters().front().name);
  }

  void read_sync(const WeightSink& sink) override {
    try {
      write_to_sink_sync(sink);
    } catch (...) {
      session_.finish_after_error();
      throw;
    }
  }

  [[nodiscard]] std::uint64_t hash_sync() override {
    const Context<D>& context = session_.context();
    const auto& memory = session_.buffers().hash;
    std::uint64_t own = 0;
    Index number = 0;
    for (const auto& shard : shards_) {
      std::uint64_t hash = 0;
      hash_bytes(TensorView<const std::byte, 1, D>(
                     reinterpret_cast<const std::byte*>(shard.weights.data()),
                     {static_cast<Index>(shard.weights.bytes())}),
                 memory, context);
      copy_to_host_sync(&hash, memory.data(), sizeof(hash), context);
      own += mixed_word(hash, number++);
    }
    std::uint64_t total = 0;
    number = 0;
    for (const std::uint64_t hash : session_.ranks().gather(own, "hashes of weights")) {
      total += mixed_word(hash, number++);
    }
    return total;
  }

  void visit_state(StateCollector<D>& collector) override {
    for_each_shard([&](const auto& parameter, const auto& weights, Index begin) {
      if (parameter.is_frozen) return;
      const std::string name = "model." + parameter.name;
      if (ranks_.has_full_weights()) {
        collector(name, parameter.weight);
      } else if (weights.size() != 0) {
        collector(name, weights, begin, parameter.weight.shape());
      }
    });
  }
  void begin_step() override { upload_.reset(); }

 private:
  using Upload = WeightUpload<T, D>;

  static std::vector<ParameterFacts> parameters_of(const ModelParameters<T, G, D>& stages) {
    std::vector<ParameterFacts> parameters;
    for (const auto& stage : stages) {
      for (const auto* parameter : stage.parameters) {
        parameters.push_back({parameter->name, parameter->full_size(), parameter->part,
                              parameter->part.full_shape(parameter->weight.shape())[1],
                              FormatTraits<T>::name, parameter->is_adapter, parameter->is_frozen});
      }
    }
    return parameters;
  }

  /// Calls `body(parameter, weights, begin)` for every parameter, with the weights that this rank
  /// updates: the elements from `begin` on.
  template <class Body>
  void for_each_shard(const Body& body) {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      for (std::size_t j = 0; j < stages_[i].parameters.size(); ++j) {
        const ParameterPlace& place = shards_[i].parameters[j];
        const auto part = shards_[i].part_of(place);
        body(*stages_[i].parameters[j],
             shards_[i].weights.rows(shards_[i].place_of(place, part), part.end - part.begin),
             part.begin);
      }
    }
  }

  /// Sets elements of this rank's part of a parameter, and their masters.
  /// @param elements  on the device
  /// @param begin     position of the first element in the part
  void set_elements(const auto& parameter, T* elements, Index begin, Index count,
                    const WeightSource& source) {
    const Context<D>& context = session_.context();
    if (upload_ == nullptr) upload_ = std::make_unique<Upload>(context);
    using Piece = typename Upload::Piece;
    upload_->run_sync(
        count,
        [&](const Piece& piece) {
          take_elements(parameter.part, parameter.weight.shape(), parameter.full_size(), source,
                        begin + piece.begin, piece.values);
          bool is_finite = true;
          for (std::size_t i = 0; i < piece.values.size(); ++i) {
            piece.rounded[i] = T(piece.values[i]);
            const auto value = static_cast<float>(piece.rounded[i]);
            is_finite &= value - value == 0;
          }
          if (is_finite) return;
          require_finite<T>(parameter.name, piece.values, [&](Index element) {
            return parameter.part.place_in_whole(parameter.weight.shape(),
                                                 begin + piece.begin + element);
          });
        },
        [&](const Piece& piece) {
          copy_to_device(elements + piece.begin, piece.rounded.data(), piece.rounded.size_bytes(),
                         context);
          optimizer_.set_master(parameter.name, begin + piece.begin, piece.values, context);
        });
  }

  /// Reads each flat buffer's weights as a stage does, so they may be gathered for it. If stages
  /// receive FP8 values, the weights are whole or sharded.
  void write_to_sink_sync(const WeightSink& sink) {
    Context<D>& context = session_.context();
    WeightDownload<T, D> download(ranks_, session_.communicator(), sink, context);
    const std::vector<WeightInfo> info = this->list();
    const WeightInfo* weight = info.data();
    ranks_.gather_weights(context);
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const auto& stage = stages_[i];
      if (stage.flat->has_fp8_values() && !ranks_.has_full_weights()) {
        ranks_.join(context);  // including the work that precedes this buffer's stages
        download.write_shards_sync(stage, shards_[i].weights, session_.options().sharding.ranks,
                                   weight);
      } else {
        if (!stage.flat->has_fp8_values()) ranks_.before_forward(*stage.flat, context);
        session_.communicator().wait_sync(context, "weights that are read");
        const WeightInfo* of = weight;
        for (const auto* parameter : stage.parameters) {
          download.write_to_sink_sync(*of++, *parameter, 0, parameter->vector());
        }
        ranks_.weights_read(*stage.flat, context);
      }
      weight += stage.parameters.size();
    }
    ranks_.join(context);
    session_.communicator().wait_sync(context, "weights that are read");
  }

  SessionCore<D>& session_;
  const ModelParameters<T, G, D>& stages_;
  std::vector<FlatShard<T, G, D>> shards_;
  RankCollectives<T, G, D>& ranks_;
  Optimizer<D>& optimizer_;
  std::unique_ptr<Upload> upload_;  ///< exists from the first set weight until the next step
};

}  // namespace octavo OCTAVO_ABI::detail

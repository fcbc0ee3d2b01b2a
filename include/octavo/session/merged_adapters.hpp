/// @file
/// Weights with their adapters merged.
#pragma once

#include <octavo/models/adapter_tensors.hpp>
#include <octavo/session/weights.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace octavo OCTAVO_ABI::detail {

/// Computes W + scale · B · A for layers that have adapters, piece by piece, in FP32.
class MergedAdapters {
 public:
  MergedAdapters(const ModelDescription& model, const LoraOptions& options)
      : scale_(options.scale()) {
    for (AdaptedTensor& adapted : adapted_tensors(model, options)) {
      std::string parameter = adapted.weight.parameter;
      layers_[std::move(parameter)].push_back(std::move(adapted));
    }
  }

  /// Accepts elements of an adapter's parameter, from `begin` on. All of them must be passed before
  /// `merge`.
  void take(const std::string& parameter, Index begin, std::span<const float> values) {
    std::vector<float>& all = adapters_[parameter];
    all.resize(std::max(all.size(), static_cast<std::size_t>(begin) + values.size()));
    std::copy(values.begin(), values.end(), all.begin() + begin);
  }

  /// Adds the contribution of adapters to elements of a parameter.
  /// @param begin  index of the first value in the parameter
  void merge(const std::string& parameter, Index begin, std::span<float> values) const {
    const auto found = layers_.find(parameter);
    if (found == layers_.end()) return;
    for (const AdaptedTensor& adapted : found->second) {
      const TensorPiece piece = piece_of(adapted.weight, begin, values.size());
      const Index columns = adapted.weight.columns;
      for (Index done = 0; done < piece.count;) {
        const Index row = (piece.begin + done) / columns;
        const Index column = (piece.begin + done) % columns;
        const Index count = std::min(columns - column, piece.count - done);
        add_row(adapted, row, column,
                values.subspan(piece.place + static_cast<std::size_t>(done),
                               static_cast<std::size_t>(count)));
        done += count;
      }
    }
  }

 private:
  /// Adds the contribution of adapters to adjacent elements in a row of the weight.
  void add_row(const AdaptedTensor& adapted, Index row, Index column,
               std::span<float> values) const {
    const Index rank = adapted.a.rows;
    const float* a = adapters_.at(adapted.a.parameter).data() + adapted.a.first + column;
    const float* b = adapters_.at(adapted.b.parameter).data() + adapted.b.first + row * rank;
    std::vector<float> sums(values.size());
    for (Index k = 0; k < rank; ++k) {
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += b[k] * a[i];
      a += adapted.a.columns;
    }
    for (std::size_t i = 0; i < sums.size(); ++i) values[i] += scale_ * sums[i];
  }

  float scale_;
  std::map<std::string, std::vector<AdaptedTensor>> layers_;  ///< by parameter
  std::map<std::string, std::vector<float>> adapters_;        ///< by parameter
};

}  // namespace octavo::detail

#pragma once

#include <octavo/session/session.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

namespace support {

/// Weights exist between the hooks that a model reads them between, and while the optimizer works;
/// NaN is in their place else. On the `Cpu` device.
struct GatheredWeights {
  template <class T, class G, octavo::Device D>
  class For : public octavo::SingleRank::For<T, G, D> {
   public:
    using Base = octavo::SingleRank::For<T, G, D>;
    using Parameters = octavo::FlatParameters<T, G, D>;
    using Context = octavo::Context<D>;

    For(octavo::Arena<D>& arena, const octavo::ModelParameters<T, G, D>& parameters,
        const octavo::Sharding& sharding)
        : Base(arena, parameters, sharding) {
      for (const octavo::StageParameters<T, G, D>& stage : parameters) kept_[stage.flat] = {};
    }

    void before_quantize(const Parameters& flat, const Context&) override { gather(flat); }
    void before_forward(const Parameters& flat, const Context&) override { gather(flat); }
    void before_backward(const Parameters& flat, const Context&) override { gather(flat); }
    void weights_read(const Parameters& flat, const Context&) override { drop(flat); }

    /// The optimizer comes next.
    void sum(octavo::TensorView<octavo::StepStatus, 1, D>, const Context&) override {
      gather_all();
    }

    /// For the optimizer, and for whoever looks at the weights.
    void gather_all() {
      for (const auto& [flat, kept] : kept_) gather(*flat);
      are_dropped_ = false;
    }

   private:
    void gather(const Parameters& flat) {
      if (!are_dropped_) drop_all();
      std::copy(kept_.at(&flat).begin(), kept_.at(&flat).end(), flat.weights().data());
    }
    void drop_all() {
      for (auto& [flat, kept] : kept_) {
        kept.assign(flat->weights().data(), flat->weights().data() + flat->size());
        drop(*flat);
      }
      are_dropped_ = true;
    }
    static void drop(const Parameters& flat) {
      std::fill_n(flat.weights().data(), flat.size(), T(std::numeric_limits<float>::quiet_NaN()));
    }

    std::map<const Parameters*, std::vector<T>> kept_;
    bool are_dropped_ = false;
  };
};

}  // namespace support

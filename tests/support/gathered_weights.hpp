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
    using Run = octavo::FlatParameters<T, G, D>;
    using Context = octavo::Context<D>;

    For(octavo::Arena<D>& arena, const octavo::ModelRuns<T, G, D>& runs,
        const octavo::Sharding& sharding)
        : Base(arena, runs, sharding) {
      for (const octavo::ModelRun<T, G, D>& in : runs) kept_[in.run] = {};
    }

    void before_quantize(const Run& run, const Context&) override { gather(run); }
    void before_forward(const Run& run, const Context&) override { gather(run); }
    void before_backward(const Run& run, const Context&) override { gather(run); }
    void weights_read(const Run& run, const Context&) override { drop(run); }

    /// The optimizer comes next.
    void sum(octavo::TensorView<octavo::StepStatus, 1, D>, const Context&) override {
      gather_all();
    }

    /// For the optimizer, and for whoever looks at the weights.
    void gather_all() {
      for (const auto& [run, kept] : kept_) gather(*run);
      are_dropped_ = false;
    }

   private:
    void gather(const Run& run) {
      if (!are_dropped_) drop_all();
      std::copy(kept_.at(&run).begin(), kept_.at(&run).end(), run.weights().data());
    }
    void drop_all() {
      for (auto& [run, kept] : kept_) {
        kept.assign(run->weights().data(), run->weights().data() + run->size());
        drop(*run);
      }
      are_dropped_ = true;
    }
    static void drop(const Run& run) {
      std::fill_n(run.weights().data(), run.size(), T(std::numeric_limits<float>::quiet_NaN()));
    }

    std::map<const Run*, std::vector<T>> kept_;
    bool are_dropped_ = false;
  };
};

}  // namespace support

#pragma once

#include <octavo/core/error.hpp>

#include <utility>

namespace support {

/// A model that throws at the end of the next micro-batch when it is told to.
template <class Model>
struct FaultyModel : Model {
  using Model::Model;

  bool faulty = false;

  template <class... Arguments>
  void train_micro_batch(Arguments&&... arguments) {
    Model::train_micro_batch(std::forward<Arguments>(arguments)...);
    if (std::exchange(faulty, false)) throw octavo::ConfigError("a fault that the test asked for");
  }
};

}  // namespace support

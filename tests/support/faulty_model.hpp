#pragma once

#include <octavo/core/error.hpp>

#include <utility>

namespace support {

/// A model that throws at the end of a micro-batch if a test requests it.
template <class Model>
struct FaultyModel : Model {
  using Model::Model;

  int calls_until_error = 0;  ///< including the call that throws; 0: none throws
  int trained = 0;            ///< micro-batches so far, including those of calibrations

  template <class... Arguments>
  void train_micro_batch(Arguments&&... arguments) {
    Model::train_micro_batch(std::forward<Arguments>(arguments)...);
    ++trained;
    if (calls_until_error != 0 && --calls_until_error == 0) {
      throw octavo::ConfigError("a fault that the test asked for");
    }
  }
};

}  // namespace support

#pragma once

#include <octavo/core/error.hpp>

#include <utility>

namespace support {

/// A model that throws at the end of a micro-batch when it is told to.
template <class Model>
struct FaultyModel : Model {
  using Model::Model;

  int faulty_in = 0;  ///< micro-batches from now, the faulty one included; 0: none is
  int trained = 0;    ///< micro-batches so far, those of calibrations included

  template <class... Arguments>
  void train_micro_batch(Arguments&&... arguments) {
    Model::train_micro_batch(std::forward<Arguments>(arguments)...);
    ++trained;
    if (faulty_in != 0 && --faulty_in == 0) {
      throw octavo::ConfigError("a fault that the test asked for");
    }
  }
};

}  // namespace support

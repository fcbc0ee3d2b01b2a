#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "golden.hpp"

namespace reference {

/// What tests/golden/make_adamw_golden.py wrote: a small model, its batches, and what PyTorch's
/// AdamW made of them.
struct TrainingGolden {
  ReferenceConfig config;
  int batch = 0;
  int sequence_length = 0;
  int steps = 0;
  int warmup = 0;
  double final_fraction = 0.0;
  double learning_rate = 0.0;  ///< at the end of the warm-up
  double beta1 = 0.0;
  double beta2 = 0.0;
  double epsilon = 0.0;
  double weight_decay = 0.0;  ///< of matrices
  double max_norm = 0.0;
  std::vector<std::int32_t> tokens;    ///< [steps, batch, sequence_length]
  std::vector<std::int32_t> targets;   ///< [steps, batch, sequence_length]; below 0: ignored
  std::vector<double> learning_rates;  ///< [steps]
  std::vector<double> losses;          ///< [steps], mean cross-entropy, nats
  std::vector<double> gradient_norms;  ///< [steps], before clipping
  std::map<int, Weights> weights;      ///< by steps taken, 0 among them; by Hugging Face name
};

namespace golden_detail {

inline std::vector<std::int32_t> words(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// Puts a tensor where its name says; "weight:NAME" and "stepN:NAME" are weights.
inline void store(TrainingGolden& golden, const std::string& name, std::vector<double> values) {
  const std::size_t colon = name.find(':');
  if (colon != std::string::npos && name.starts_with("weight")) {
    golden.weights[0][name.substr(colon + 1)] = std::move(values);
  } else if (colon != std::string::npos && name.starts_with("step")) {
    golden.weights[std::stoi(name.substr(4))][name.substr(colon + 1)] = std::move(values);
  } else if (name == "tokens") {
    golden.tokens = words(values);
  } else if (name == "targets") {
    golden.targets = words(values);
  } else if (name == "learning_rates") {
    golden.learning_rates = std::move(values);
  } else if (name == "losses") {
    golden.losses = std::move(values);
  } else if (name == "gradient_norms") {
    golden.gradient_norms = std::move(values);
  } else {
    throw std::runtime_error("golden file: unknown tensor " + name);
  }
}

}  // namespace golden_detail

/// Reads a golden file of a training; tests/golden/README.md gives the layout.
/// @throws std::runtime_error  if the file cannot be read, ends early or goes on after its data
inline TrainingGolden read_training_golden(const std::string& path) {
  TrainingGolden golden;
  const golden_detail::Header header =
      golden_detail::read_tensors(path, [&](const std::string& name, std::vector<double> values) {
        golden_detail::store(golden, name, std::move(values));
      });
  golden.config = golden_detail::read_config(header);
  golden.batch = header.integer("batch");
  golden.sequence_length = header.integer("sequence_length");
  golden.steps = header.integer("steps");
  golden.warmup = header.integer("warmup");
  golden.final_fraction = header.value("final_fraction");
  golden.learning_rate = header.value("learning_rate");
  golden.beta1 = header.value("beta1");
  golden.beta2 = header.value("beta2");
  golden.epsilon = header.value("epsilon");
  golden.weight_decay = header.value("weight_decay");
  golden.max_norm = header.value("max_norm");
  return golden;
}

}  // namespace reference

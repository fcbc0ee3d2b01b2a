// The flags of the optimizer.
#pragma once

#include <CLI/CLI.hpp>
#include <common/flags.hpp>
#include <octavo/optim/muon.hpp>
#include <train_llama/registry.hpp>

#include <string>
#include <vector>

namespace trainer {

/// The choices of --muon-rate, in the order of octavo::MuonRate.
inline const std::vector<std::string> muon_rate_names{"original", "match-rms-adamw"};

/// Settings of the optimizer.
struct OptimizerOptions {
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double muon_momentum = 0.95;
  std::string muon_nesterov = "on";
  int muon_iterations = 5;
  std::string muon_rate = "match-rms-adamw";
  double muon_adamw_rate = 1.0;
};

/// Declares the flags of the optimizer.
inline void declare_optimizer(const programs::FlagGroup& group, OptimizerOptions& options,
                              StateFormats& formats) {
  using namespace programs;
  group
      .add("--optimizer", formats.optimizer,
           "adamw; muon, which orthogonalises the momentum of hidden matrices and uses AdamW for "
           "all other parameters")
      ->check(one_of(optimizer_names));
  group.add("--weight-decay", options.weight_decay, "weight decay, only of matrices")
      ->check(non_negative_number());
  group.add("--beta1", options.beta1, "decay rate of AdamW's first moment")->check(share());
  group.add("--beta2", options.beta2, "decay rate of AdamW's second moment")->check(share());
  group.add("--epsilon", options.epsilon, "AdamW epsilon")->check(above_zero());
  group
      .add_without_default("--muon-momentum", options.muon_momentum,
                           "Muon momentum; 0.95 by default")
      ->check(share());
  group
      .add_without_default("--muon-nesterov", options.muon_nesterov,
                           "Nesterov's momentum in Muon; on by default")
      ->check(one_of({"on", "off"}));
  group
      .add_without_default("--muon-iterations", options.muon_iterations,
                           "number of Newton-Schulz iterations, 1 to 100; 5 by default")
      ->check(one_to_hundred());
  group
      .add_without_default("--muon-rate", options.muon_rate,
                           "factor of the learning rate for a matrix: match-rms-adamw, 0.2 "
                           "sqrt(max(rows, columns)), for learning rates of AdamW (default); "
                           "original, sqrt(max(1, rows / columns))")
      ->check(one_of(muon_rate_names));
  group
      .add_without_default(
          "--muon-adamw-rate", options.muon_adamw_rate,
          "factor of the learning rate for parameters that AdamW updates; 1 by default")
      ->check(non_negative_number());
}

/// Returns the settings of the optimizer.
inline octavo::OptimizerSettings optimizer_settings(const OptimizerOptions& options,
                                                    const StateFormats& formats) {
  const auto narrow = [](double value) { return static_cast<float>(value); };
  const octavo::AdamWSettings adamw{.beta1 = narrow(options.beta1),
                                    .beta2 = narrow(options.beta2),
                                    .epsilon = narrow(options.epsilon),
                                    .weight_decay = narrow(options.weight_decay)};
  if (formats.optimizer != "muon") return adamw;
  octavo::MuonSettings muon{.momentum = narrow(options.muon_momentum),
                            .nesterov = options.muon_nesterov == "on",
                            .weight_decay = narrow(options.weight_decay),
                            .adamw = adamw,
                            .adamw_rate = narrow(options.muon_adamw_rate)};
  muon.newton_schulz.iterations = options.muon_iterations;
  muon.rate = options.muon_rate == muon_rate_names[0] ? octavo::MuonRate::original
                                                      : octavo::MuonRate::match_rms_adamw;
  return muon;
}

}  // namespace trainer

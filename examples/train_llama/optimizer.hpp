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
/// @param add  declares a flag with a default value: (name, value, text, group)
inline void declare_optimizer(CLI::App& app, const auto& add, OptimizerOptions& options,
                              StateFormats& formats, const std::string& group) {
  using namespace programs;
  add("--optimizer", formats.optimizer,
      "adamw; muon, which orthogonalises the momentum of hidden matrices and uses AdamW for all "
      "other parameters",
      group)
      ->check(one_of(optimizer_names));
  add("--weight-decay", options.weight_decay, "weight decay, only of matrices", group)
      ->check(non_negative_number());
  add("--beta1", options.beta1, "decay rate of AdamW's first moment", group)->check(share());
  add("--beta2", options.beta2, "decay rate of AdamW's second moment", group)->check(share());
  add("--epsilon", options.epsilon, "AdamW epsilon", group)->check(above_zero());
  // No defaults are declared, because config.toml could not distinguish them from choices.
  const auto add_muon_option = [&](const char* name, auto& value, const char* text) {
    return app.add_option(name, value, text)->group(group);
  };
  add_muon_option("--muon-momentum", options.muon_momentum, "Muon momentum; 0.95 by default")
      ->check(share());
  add_muon_option("--muon-nesterov", options.muon_nesterov,
                  "Nesterov's momentum in Muon; on by default")
      ->check(one_of({"on", "off"}));
  add_muon_option("--muon-iterations", options.muon_iterations,
                  "number of Newton-Schulz iterations, 1 to 100; 5 by default")
      ->check(one_to_hundred());
  add_muon_option(
      "--muon-rate", options.muon_rate,
      "factor of the learning rate for a matrix: match-rms-adamw, 0.2 sqrt(max(rows, columns)), "
      "for learning rates of AdamW (default); original, sqrt(max(1, rows / columns))")
      ->check(one_of(muon_rate_names));
  add_muon_option("--muon-adamw-rate", options.muon_adamw_rate,
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

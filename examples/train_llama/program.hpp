// The trainers: one program, whose data differ. train_llama trains on text, finetune_llama on
// chats.
#pragma once

#include <octavo/io/json_line.hpp>
#include <octavo/octavo.hpp>
#include <train_llama/options.hpp>
#include <train_llama/ranks.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

/// What a run trains on: its batches, as octavo::train wants them, and what is said of them.
class RunData {
 public:
  virtual ~RunData() = default;

  [[nodiscard]] virtual octavo::StepResult step(octavo::TrainingSession& session, double rate) = 0;
  [[nodiscard]] virtual octavo::LossSum evaluate(octavo::TrainingSession& session) = 0;
  [[nodiscard]] virtual double epoch() const = 0;
  [[nodiscard]] virtual double tokens_in_step() const = 0;
  /// Where it stands, as checkpoints have it; and of adapters, what they stand beside.
  [[nodiscard]] std::vector<octavo::StateEntry> state() {
    std::vector<octavo::StateEntry> all = position();
    if (!base_.empty()) all.push_back(octavo::text_entry("model.base", base_));
    return all;
  }
  /// Has a run of adapters go on beside these weights only.
  void stand_beside(std::string base) { base_ = std::move(base); }
  [[nodiscard]] virtual std::uint64_t hash() const = 0;
  /// Of what is evaluated: losses of equal ones can be compared.
  [[nodiscard]] virtual std::uint64_t validation_hash() const = 0;
  /// Files that only samples of are in the hashes.
  [[nodiscard]] virtual std::vector<std::filesystem::path> sampled_files() const { return {}; }

  [[nodiscard]] virtual std::size_t training_tokens() const = 0;
  [[nodiscard]] virtual std::size_t validation_tokens() const = 0;
  /// Prints what the run is going to read.
  virtual void print() const = 0;
  /// Adds to the first line of metrics.jsonl what is more to say.
  virtual void describe(octavo::JsonLine& line) const = 0;
  /// Text of the trained model, of at most `options.sample` tokens; a signal ends it early. None
  /// where there is nothing that could be decoded.
  [[nodiscard]] virtual std::string sample(octavo::TrainingSession& session,
                                           const Options& options) const = 0;

 protected:
  [[nodiscard]] virtual std::vector<octavo::StateEntry> position() = 0;

 private:
  std::string base_;  ///< empty: the weights are in the checkpoint
};

/// Data whose batches are `Batches`.
template <class Batches>
class RunDataOf : public RunData {
 public:
  [[nodiscard]] octavo::StepResult step(octavo::TrainingSession& session, double rate) override {
    return batches_.step(session, rate);
  }
  [[nodiscard]] octavo::LossSum evaluate(octavo::TrainingSession& session) override {
    return batches_.evaluate(session);
  }
  [[nodiscard]] double epoch() const override { return batches_.epoch(); }
  [[nodiscard]] double tokens_in_step() const override { return batches_.tokens_in_step(); }
  [[nodiscard]] std::uint64_t hash() const override { return batches_.hash(); }
  [[nodiscard]] std::uint64_t validation_hash() const override {
    return batches_.validation_hash();
  }

 protected:
  explicit RunDataOf(Batches batches) : batches_(std::move(batches)) {}
  [[nodiscard]] std::vector<octavo::StateEntry> position() override { return batches_.state(); }

  Batches batches_;  // NOLINT: what is said of the data is said of them
};

/// What one trainer is and the other is not.
struct Program {
  const char* name;
  const char* description;
  /// Declares the flags that name the data.
  void (*declare_data)(CLI::App&, Options&);
  /// Throws a ConfigError if these flags do not go together.
  void (*require_data)(const Options&);
  /// Reads the data, and makes batches for this rank. May complete the options by what it has read.
  std::unique_ptr<RunData> (*read)(Options&, const Instance&, const Ranks&);
};

/// The one that this is.
const Program& program();

}  // namespace trainer

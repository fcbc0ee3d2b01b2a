// Flags of other trainers, and the flags of Octavo's programs that set the same thing.
#pragma once

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace programs {

/// A flag of one of Octavo's programs, and how other trainers call it.
struct ForeignFlags {
  const char* flag;
  const char* words;        ///< separated and surrounded by spaces, in lower case with hyphens
  const char* advice = "";  ///< how the value differs
};

inline constexpr std::array foreign_flags{
    ForeignFlags{"model", " model-name-or-path model-name model-path pretrained-model "},
    ForeignFlags{"precision",
                 " fp8 use-fp8 fp8-format fp8-recipe fp8-amax-history-len fp8-amax-compute-algo "
                 "fp8-margin fp8-interval mixed-precision dtype torch-dtype bf16 fp16 amp ",
                 ", such as fp8-delayed"},
    ForeignFlags{"precision",
                 " first-last-layers-bf16 num-layers-at-start-in-bf16 num-layers-at-end-in-bf16 ",
                 ", such as fp8-delayed-bf16-edges"},
    ForeignFlags{"recompute",
                 " recompute-granularity recompute-activations gradient-checkpointing "
                 "activation-checkpointing checkpoint-activations ",
                 ", such as block"},
    ForeignFlags{"lora", " lora-rank lora-r use-lora ", ", the rank"},
    ForeignFlags{"lora-targets", " lora-target target-modules lora-target-modules "},
    ForeignFlags{"zero", " use-distributed-optimizer zero-stage fsdp use-torch-fsdp2 deepspeed ",
                 ", the stage"},
    ForeignFlags{"gather", " fp8-param-gather fp8-param ", ", the format fp8"},
    ForeignFlags{"reduce", " grad-reduce-in-bf16 accumulate-allreduce-grads-in-fp32 ",
                 ", the format"},
    ForeignFlags{"tensor-parallel",
                 " tensor-model-parallel-size tensor-parallel-size tensor-parallel-degree "
                 "model-parallel-size tp tp-size "},
    ForeignFlags{"comm-timeout", " distributed-timeout-minutes ddp-timeout ", ", in seconds"},
    ForeignFlags{
        "data", " data-path train-data-path train-data train-file dataset dataset-path input-bin "},
    ForeignFlags{"validation-data",
                 " valid-data-path validation-file val-data val-file eval-dataset "},
    ForeignFlags{"chats", " dataset dataset-path train-file train-data "},
    ForeignFlags{"validation-chats", " eval-dataset validation-file val-data val-file "},
    ForeignFlags{"chat-template", " template "},
    ForeignFlags{"batch",
                 " micro-batch-size per-device-train-batch-size per-gpu-train-batch-size "
                 "local-batch-size train-micro-batch-size-per-gpu "},
    ForeignFlags{"micro-batches",
                 " gradient-accumulation-steps grad-accum-steps accumulation-steps grad-accum "},
    ForeignFlags{"micro-batches", " global-batch-size train-batch-size total-batch-size ",
                 "; a step has batch * micro-batches * ranks sequences"},
    ForeignFlags{"seq-len",
                 " seq-length sequence-length max-seq-length max-seq-len max-length block-size "
                 "cutoff-len context-length "},
    ForeignFlags{"validation-batches", " eval-iters eval-batches val-max-steps "},
    ForeignFlags{"steps", " max-steps train-iters max-iters num-steps num-iterations iterations "},
    ForeignFlags{"max-time", " exit-duration-in-mins time-limit ", ", such as 30m"},
    ForeignFlags{"epochs", " num-train-epochs num-epochs train-epochs max-epochs "},
    ForeignFlags{"learning-rate", " lr max-lr peak-lr "},
    ForeignFlags{"final-fraction", " min-lr min-learning-rate min-lr-ratio ",
                 ", a fraction of 'learning-rate'"},
    ForeignFlags{"warmup",
                 " lr-warmup-iters lr-warmup-steps warmup-steps warmup-iters num-warmup-steps "
                 "lr-warmup-fraction warmup-ratio lr-warmup-samples ",
                 ", in steps"},
    ForeignFlags{"schedule", " lr-decay-style lr-scheduler-type lr-scheduler lr-schedule "},
    ForeignFlags{"optimizer", " optim "},
    ForeignFlags{"weight-decay", " wd "},
    ForeignFlags{"beta1", " adam-beta1 "},
    ForeignFlags{"beta2", " adam-beta2 "},
    ForeignFlags{"epsilon", " adam-eps adam-epsilon eps "},
    ForeignFlags{"max-gradient-norm",
                 " clip-grad max-grad-norm grad-clip gradient-clipping clip-norm max-norm "},
    ForeignFlags{"offload", " optimizer-cpu-offload cpu-offload offload-optimizer ",
                 ", the value optimizer"},
    ForeignFlags{"offload",
                 " cpu-offloading offload-activations activation-offload activations-cpu-offload ",
                 ", the value activations"},
    ForeignFlags{"out",
                 " save save-dir output-dir out-dir log-dir checkpoint-dir run-name "
                 "tensorboard-dir use-tensorboard "},
    ForeignFlags{"log-every", " log-interval logging-steps log-freq "},
    ForeignFlags{"evaluate-every", " eval-interval eval-steps eval-freq eval-every val-interval "},
    ForeignFlags{"checkpoint-every",
                 " save-interval save-steps save-freq checkpoint-freq checkpoint-interval "},
    ForeignFlags{"keep-last", " save-total-limit keep-latest-k "},
    ForeignFlags{"resume", " load load-dir resume-from resume-from-checkpoint ckpt-path "},
    ForeignFlags{"max-tokens", " max-new-tokens num-tokens "},
};

/// Returns the end of a message, "; use 'learning-rate' instead", if `word` is another trainer's
/// name for one of `app`'s flags; otherwise "".
inline std::string foreign_advice(const CLI::App& app, std::string word) {
  word = CLI::detail::to_lower(word);
  std::replace(word.begin(), word.end(), '_', '-');
  for (const ForeignFlags& foreign : foreign_flags) {
    const bool is_one =
        std::string_view(foreign.words).find(' ' + word + ' ') != std::string_view::npos;
    if (!is_one || app.get_option_no_throw(std::string("--") + foreign.flag) == nullptr) continue;
    return std::string("; use '") + foreign.flag + "' instead" + foreign.advice;
  }
  return {};
}

}  // namespace programs

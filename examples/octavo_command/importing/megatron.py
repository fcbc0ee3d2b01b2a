"""Megatron-LM's command line (megatron/training/arguments.py, 2024 to 2026)."""
import math

from octavo_command.importing import derive as derived
from octavo_command.importing import shapes
from octavo_command.importing.rows import (between, choice, fact, fraction, name, names, never, nothing, number,
                                           one_of, only, positive, switch, table, text, to, whole, words, Malformed)
from octavo_command.importing.run import MAPPED, NO_EFFECT, REFUSED

TITLE = "Megatron-LM"
ONE = "1 off"

DEFAULTS = {
    "--lr-decay-style": "linear", "--min-lr": 0.0, "--lr-warmup-iters": 0, "--weight-decay": 0.01, "--adam-beta1": 0.9,
    "--adam-beta2": 0.999, "--adam-eps": 1e-8, "--clip-grad": 1.0, "--seed": 1234, "--eval-interval": 1000,
    "--eval-iters": 100, "--split": "969, 30, 1", "--log-interval": 100, "--bf16": False, "--micro-batch-size": 1,
    "--position-embedding-type": "learned_absolute",
}
DEFAULTS_WITH_FP8 = {"--fp8-amax-history-len": 1, "--fp8-amax-compute-algo": "most_recent", "--fp8-recipe": "delayed"}


def present(_):
    return True


def blend(value):
    """Returns the files of a blend: "0.3 a 0.7 b" as a.bin:0.3 and b.bin:0.7."""
    def file_of(prefix):
        return prefix if prefix.endswith(".bin") else prefix + ".bin"
    values = names(value)
    try:
        weights = [float(weight) for weight in values[::2]]
    except ValueError:
        weights = []
    if len(values) == 1 or not weights or len(values) % 2 > 0:
        return [file_of(one) for one in values]
    if any(not 0 < weight < math.inf for weight in weights):
        raise Malformed("files with weights above 0")
    return [f"{file_of(one)}:{weight:.15g}" for weight, one in zip(weights, values[1::2])]


def shares(value):
    """Returns the shares of training, validation and test: "99,1,0" as [99, 1, 0]."""
    try:
        parts = [number(part) for part in text(value).strip("'\"").split(",")]
    except Malformed:
        parts = []
    if not parts or min(parts) < 0:
        raise Malformed("three numbers of at least 0, separated by commas")
    return parts


ROWS = table(
    # --- batches and length
    ("--micro-batch-size", to("batch", whole)),
    ("--global-batch-size", fact("global_batch", whole)),
    ("--train-iters", fact("steps", whole)),
    ("--train-samples", fact("samples", positive)),
    ("--seq-length --encoder-seq-length", to("seq-len", whole)),
    ("--decoder-seq-length --batch-size --warmup", never("belongs to models that Octavo does not support")),
    ("--rampup-batch-size --step-batch-size-schedule --decrease-batch-size-if-needed",
     never("the batch size is constant")),
    ("--phase-transition-iterations --skip-train", never("a run consists of one phase of training")),
    ("--exit-interval", never("a run ends at --steps, after --max-time or at a signal")),
    ("--exit-duration-in-mins", to("max-time", lambda value: positive(value) * 60, "in seconds")),
    # --- optimizer and schedule
    ("--lr", to("learning-rate", number)),
    ("--min-lr", fact("min_lr", number)),
    ("--lr-decay-style",
     choice("schedule", {"cosine": "cosine", "linear": "linear", "constant": "constant", "wsd": "wsd"},
            "schedules are cosine, linear, constant and wsd")),
    ("--lr-decay-iters --lr-decay-steps", fact("decay_steps", whole)),
    ("--lr-decay-samples", fact("decay_samples", whole)),
    ("--lr-warmup-iters --lr-warmup-steps", fact("warmup_steps", whole)),
    ("--lr-warmup-samples", fact("warmup_samples", whole)),
    ("--lr-warmup-fraction", fact("warmup_fraction", fraction)),
    ("--lr-warmup-init", only("0 0.0", "the warm-up begins at 0", "Octavo's warm-up begins at 0")),
    ("--lr-wsd-decay-iters --wsd-decay-steps", fact("falling_steps", whole)),
    ("--lr-wsd-decay-samples", fact("falling_samples", whole)),
    ("--lr-wsd-decay-style", only("linear", "wsd decays linearly", "Octavo's wsd decays linearly")),
    ("--override-opt_param-scheduler --override-opt-param-scheduler --use-checkpoint-opt_param-scheduler "
     "--use-checkpoint-opt-param-scheduler",
     nothing("the schedule follows from the flags of the resumed run")),
    ("--decoupled-lr --decoupled-min-lr --head-lr-mult",
     never("embedding and head use the learning rate of all parameters")),
    ("--weight-decay", to("weight-decay", number, "matrices only")),
    ("--start-weight-decay --end-weight-decay --wd-incr-steps", never("weight decay is constant")),
    ("--weight-decay-incr-style", only("constant", "weight decay is constant", "Octavo's weight decay is constant")),
    ("--no-weight-decay-cond-type --apply-wd-to-qk-layernorm", never("weight decay applies to matrices only")),
    ("--adam-beta1", to("beta1", number)), ("--adam-beta2", to("beta2", number)),
    ("--adam-eps", to("epsilon", number)),
    ("--clip-grad", to("max-gradient-norm", number)),
    ("--optimizer",
     choice("optimizer", {"adam": "adamw", "adamw": "adamw", "muon": "muon", "dist_muon": "muon"},
            "optimizers are AdamW and Muon")),
    ("--muon-momentum", to("muon-momentum", number)),
    ("--muon-num-ns-steps", to("muon-iterations", whole)),
    ("--muon-use-nesterov --muon-nesterov",
     choice("muon-nesterov", {"true": "on", "false": "off"}, "must be true or false")),
    ("--muon-scale-mode",
     choice("muon-rate", {"shape_scaling": "original"},
            "spectral with the factor 0.2 is --muon-rate match-rms-adamw; others are not supported")),
    ("--muon-*", never("this setting of Muon is fixed in Octavo")),
    ("--sgd-momentum --lion-beta1 --lion-beta2", never("optimizers are AdamW and Muon")),
    ("--exp-avg-dtype", fact("first_moment")), ("--exp-avg-sq-dtype", fact("second_moment")),
    ("--main-params-dtype",
     choice("master-weights", {"fp32": "fp32"}, "master weights are fp32, or bf16 without a copy")),
    ("--use-precision-aware-optimizer", nothing("--moments and --master-weights set the formats directly")),
    ("--main-grads-dtype --megatron-fsdp-main-grads-dtype",
     choice("reduce", {"fp32": "fp32", "bf16": "stored"}, "sums of gradients are fp32 or in the storage format")),
    ("--optimizer-cpu-offload", choice("offload", {"true": "optimizer"}, "must be a switch")),
    ("--optimizer-offload-fraction", only("1 1.0", "the whole state is offloaded", "Octavo offloads all or nothing")),
    ("--use-torch-optimizer-for-cpu-offload --overlap-cpu-optimizer-d2h-h2d --no-pin-cpu-grads "
     "--no-pin-cpu-params --optimizer-cuda-graph",
     nothing("--offload copies through pinned memory, and the optimizer runs on the GPU")),
    ("--loss-scale --initial-loss-scale --min-loss-scale --loss-scale-window --hysteresis --grad-scale-func",
     nothing("loss scaling is for FP16")),
    ("--calculate-per-token-loss", nothing("the loss is always the mean over tokens")),
    ("--check-for-nan-in-loss-and-grad --no-check-for-nan-in-loss-and-grad --no-check-for-nan-in-loss "
     "--check-for-spiky-loss --check-for-large-grads",
     nothing("every step is checked; see --max-skipped and --on-spike")),
    ("--label-smoothing --qk-clip --qk-clip-alpha --qk-clip-threshold --iterations-to-skip",
     never("this training technique is not supported")),
    # --- precision
    ("--bf16", fact("bf16", switch)), ("--fp16", fact("fp16", switch)),
    ("--fp8-format", fact("fp8", one_of("hybrid e4m3"))), ("--fp8-recipe", fact("fp8_recipe")),
    ("--fp8-amax-history-len", fact("amax_history", between(1, 2**31 - 1))),
    ("--fp8-amax-compute-algo", fact("amax_algorithm", one_of("max most_recent"))),
    ("--fp8-margin", fact("fp8_margin", between(0, 16))),
    ("--fp8-interval", only("1", "scales are updated every step", "scales are updated every step here")),
    ("--first-last-layers-bf16", fact("bf16_edges", switch)),
    ("--num-layers-at-start-in-bf16", fact("bf16_first", between(0, 2**31 - 1))),
    ("--num-layers-at-end-in-bf16", fact("bf16_last", between(0, 2**31 - 1))),
    ("--no-fp8-wgrad", never("all three GEMMs of a layer run in FP8")),
    ("--fp8-param-gather --fp8-param", fact("fp8_gather", switch)),
    ("--reuse-grad-buf-for-mxfp8-param-ag --keep-fp8-transpose-cache* --disable-parameter-transpose-cache "
     "--tp-only-amax-red",
     nothing("memory of quantised copies: see --weight-copies")),
    ("--fp8-multi-head-attention --fp8-dot-product-attention --fp8-output-proj", never("attention runs in BF16")),
    ("--fp8-quantizer-factory --fp4-* --kitchen-* --use-kitchen* --quant-recipe --te-precision-config-file",
     never("this quantisation is not supported; a precision is a type, see docs/recipes.md")),
    ("--transformer-impl --use-mcore-models --use-te-activation-func --use-transformer-engine-op-fuser --spec",
     nothing("names an implementation of Megatron's layers")),
    ("--use-legacy-models --enable-experimental --yaml-cfg", nothing("names an implementation of Megatron's layers")),
    ("--params-dtype --autocast-dtype --pipeline-dtype --enable-autocast", nothing("--precision decides")),
    ("--accumulate-allreduce-grads-in-fp32 --ddp-reduce-scatter-with-fp32-accumulation",
     choice("reduce", {"true": "fp32"}, "must be a switch")),
    ("--grad-reduce-in-bf16", choice("reduce", {"true": "stored"}, "must be a switch")),
    ("--megatron-fsdp-grad-comm-dtype",
     only("bf16", "gradients are exchanged in the storage format",
          "gradients are exchanged in the storage format or in E4M3")),
    ("--attention-softmax-in-fp32 --no-attention-softmax-in-fp32 --fp16-lm-cross-entropy "
     "--fp32-residual-connection --disable-bf16-reduced-precision-matmul --output-logit-dtype",
     nothing("softmax and cross-entropy compute in FP32, residuals are BF16")),
    ("--apply-query-key-layer-scaling", nothing("scales scores for FP16")),
    # --- ranks
    ("--tensor-model-parallel-size --model-parallel-size", fact("tensor_parallel", positive)),
    ("--pipeline-model-parallel-size --virtual-pipeline-model-parallel-size "
     "--num-layers-per-virtual-pipeline-stage --encoder-pipeline-model-parallel-size "
     "--num-virtual-stages-per-pipeline-rank",
     only(ONE, "no pipeline parallelism",
          "pipeline parallelism is not supported; use --zero 3 and --tensor-parallel")),
    ("--context-parallel-size",
     only(ONE, "no context parallelism",
          "context parallelism is not supported; use --tensor-parallel and --recompute")),
    ("--expert-model-parallel-size --expert-tensor-parallel-size --encoder-tensor-model-parallel-size "
     "--expert-gtp-weight-remat-size --gtp-weight-remat-size --tensor-parallel-num-weight-shards "
     "--expert-tensor-parallel-num-weight-shards",
     only(ONE, "off", "expert parallelism is not supported; ranks share weights with --zero 3")),
    ("--pipeline-model-parallel-split-rank --pipeline-model-parallel-layout --decoder-first-pipeline-num-layers "
     "--decoder-last-pipeline-num-layers --account-for-* --standalone-embedding-stage "
     "--microbatch-group-size-per-virtual-pipeline-stage --num-layers-in-first-pipeline-stage "
     "--num-layers-in-last-pipeline-stage",
     never("pipeline parallelism is not supported")),
    ("--pipeline-model-parallel-comm-backend --overlap-p2p-comm* --no-overlap-p2p-communication --no-batch-p2p-* "
     "--deallocate-pipeline-outputs --defer-embedding-wgrad-compute --wgrad-deferral-limit --variable-seq-lengths"
     " --no-scatter-gather-tensors-in-pipeline --use-ring-exchange-p2p --no-clone-scatter-output-in-embedding",
     nothing("concerns pipeline parallelism")),
    ("--cp-comm-type --hierarchical-context-parallel-sizes", nothing("concerns context parallelism")),
    ("--hybrid-context-parallel --max-seqlen-per-dp-cp-rank", never("context parallelism is not supported")),
    ("--sequence-parallel", nothing("tensor parallelism always shards norms and residuals by tokens")),
    ("--use-distributed-optimizer", choice("zero", {"true": 1}, "must be a switch")),
    ("--data-parallel-sharding-strategy",
     choice("zero", {"no_shard": 1, "optim": 1, "optim_grads": 2, "optim_grads_params": 3},
            "must be optim, optim_grads or optim_grads_params")),
    ("--use-torch-fsdp2", choice("zero", {"true": 3}, "must be a switch")),
    ("--use-megatron-fsdp --use-custom-fsdp", nothing("--data-parallel-sharding-strategy decides the stage")),
    ("--outer-dp-sharding-strategy --enable-full-sharding-in-hsdp --num-distributed-optimizer-instances",
     only("1 off no_shard", "all ranks share one copy of the state", "all ranks share one copy of the state here")),
    ("--overlap-grad-reduce --overlap-param-gather --overlap-param-gather-with-optimizer-step "
     "--delay-param-gather --no-delay-grad-reduce --delay-wgrad-compute --no-align-* --ddp-* --fsdp-* "
     "--megatron-fsdp-* --torch-fsdp2-no-reshard-after-forward --init-model-with-meta-device --use-nccl-ub "
     "--disable-symmetric-registration --suggested-communication-unit-size --high-priority-stream-groups "
     "--no-gradient-reduce-div-fusion --no-async-tensor-model-parallel-allreduce --tp-comm-* --no-tp-comm-* "
     "--disable-tp-comm-* --no-use-layer-wise-param-layout --create-all-gather-group --gtp-* --grad-sync-func "
     "--param-sync-func --no-sync-func --finalize-model-grads-func --high-priority-a2a-comm-stream "
     "--overlap-moe-expert-parallel-comm --overlap-dispatch-backward-with-experts-wgrad "
     "--ep-overlap-early-attn-memory-release",
     nothing("communication always overlaps computation")),
    ("--distributed-timeout-minutes", to("comm-timeout", lambda value: whole(value) * 60)),
    ("--distributed-timeout-seconds-after-init", to("comm-timeout", whole)),
    ("--distributed-backend",
     only("nccl", "ranks on GPUs use NCCL", "ranks on GPUs use NCCL; on the cpu device MPI")),
    ("--local-rank --local_rank --use-tp-pp-dp-mapping --nccl-communicator-config-path --use-sharp "
     "--sharp-enabled-group --disable-gloo-process-groups --lazy-mpu-init --no-data-sharding --symmetric-ar-type "
     "--fake-process-group",
     nothing("ranks are set up by the launcher; see docs/ranks.md")),
    ("--data-parallel-random-init", never("all ranks begin with the same weights")),
    ("--check-weight-hash-across-dp-replicas-interval", to("check-replicas", whole)),
    # --- memory
    ("--recompute-granularity", fact("recompute")),
    ("--recompute-activations --checkpoint-activations", fact("recompute", lambda _: "selective")),
    ("--recompute-modules", fact("recompute_modules", words)),
    ("--recompute-method --recompute-num-layers", fact("recompute_layers", text)),
    ("--distribute-saved-activations --num-microbatches-with-partial-activation-checkpoints --moe-layer-recompute",
     never("--recompute applies to all layers")),
    ("--cpu-offloading* --fine-grained-* --offload-modules --min-offloaded-tensor-size "
     "--activation-offload-fraction --delta-offload-bytes-across-pp-ranks --delay-offload-until-cuda-graph "
     "--no-cpu-offloading-activations",
     never("--offload activations offloads those of attention in all blocks")),
    ("--empty-unused-memory-level --manual-gc --manual-gc-interval --no-manual-gc-eval --record-memory-history "
     "--memory-snapshot-path --max-tokens-to-oom",
     nothing("all memory is allocated before the first step")),
    ("--enable-cuda-graph --cuda-graph-* --external-cuda-graph --no-cuda-graph-*",
     nothing("every step is a CUDA graph")),
    # --- model
    ("--num-layers --encoder-num-layers", fact("layers", whole)), ("--hidden-size", fact("hidden", whole)),
    ("--ffn-hidden-size", fact("ffn", whole)), ("--num-attention-heads", fact("heads", whole)),
    ("--num-query-groups", fact("kv_heads", whole)), ("--kv-channels", fact("head_dim", whole)),
    ("--vocab-size", fact("vocabulary", whole)), ("--rotary-base", fact("rope_theta", number)),
    ("--untie-embeddings-and-output-weights", fact("tied", lambda _: False)),
    ("--qk-layernorm", fact("qk_norm", present)), ("--add-qkv-bias", fact("qkv_bias", present)),
    ("--num-experts --num-moe-experts", fact("experts", whole)),
    ("--group-query-attention", nothing("--num-query-groups decides")),
    ("--max-position-embeddings", nothing("rotary positions have no maximum; GPT-2 uses its preset's maximum")),
    ("--position-embedding-type", fact("positions")),
    ("--use-rotary-position-embeddings", fact("positions", lambda _: "rope")),
    ("--rotary-percent", only("1 1.0", "all dimensions rotate", "all dimensions of a head rotate here")),
    ("--rotary-interleaved --rotary-seq-len-interpolation-factor --no-rope-freq --mrope-section "
     "--rotary-scaling-factor",
     never("RoPE of the preset is used; another needs a config.json and --model shape:FOLDER")),
    ("--use-rope-scaling --rope-scaling-factor --rope-type --yarn-* --no-yarn-* --mscale*",
     never("RoPE of the preset is used; another needs a config.json and --model shape:FOLDER")),
    ("--swiglu --disable-bias-linear --normalization --squared-relu --openai-gelu --quick-geglu --onnx-safe",
     fact("architecture", text)),
    ("--norm-epsilon",
     only("1e-05 1e-5 0.00001", "presets of Llama and GPT-2 have 1e-5",
          "the preset has another epsilon; write a config.json, and pass --model shape:FOLDER")),
    ("--apply-layernorm-1p", nothing("only changes how norm weights are stored; they begin at 1")),
    ("--init-method-std --init-method-xavier-uniform --embedding-init-method-std --embedding-init-method "
     "--init-method --output-layer-init-method",
     nothing("Octavo initialises weights as its model does; --model hf:FOLDER loads others")),
    ("--attention-dropout --hidden-dropout", only("0 0.0", "no dropout", "dropout is not supported; pass 0")),
    ("--window-size",
     never("the preset mistral_7b has a window; another shape needs a config.json and --model shape:FOLDER")),
    ("--make-vocab-size-divisible-by --no-pad-vocab-size --padded-vocab-size",
     nothing("tables are padded to a multiple of 128")),
    ("--attention-backend --use-flash-attn --flash-attention-version --flash-decode",
     nothing("attention is fused: cuDNN or Octavo's kernel")),
    ("--no-masked-softmax-fusion --masked-softmax-fusion --no-bias-gelu-fusion --no-bias-swiglu-fusion "
     "--no-bias-dropout-fusion --bias-* --no-rope-fusion --apply-rope-fusion --fused-* --mla-down-proj-fusion "
     "--cross-entropy-* --no-persist-layer-norm --persist-layer-norm --memory-efficient-layer-norm "
     "--gradient-accumulation-fusion --no-gradient-accumulation-fusion --disable-jit-fuser "
     "--use-fused-weighted-squared-relu --batch-invariant-* --activation-func-fp8-input-store "
     "--use-grouped-gemm-for-dense-mlp --use-grouped-gemm-for-shared-expert --no-initialization "
     "--use-cpu-initialization",
     nothing("an implementation choice of Megatron's kernels")),
    ("--no-position-embedding --softmax-* --qk-l2-norm --attention-output-gate --multi-latent-attention "
     "--q-lora-rank --kv-lora-rank --qk-head-dim --qk-pos-emb-head-dim --v-head-dim --cache-mla-latents "
     "--activation-func* --gated-linear-unit --glu-linear-offset --apply-residual-connection-post-layernorm "
     "--relative-attention-* --window-attn-skip-freq --hybrid-* --is-hybrid-model --linear-* "
     "--experimental-attention-* --heterogeneous-* --enable-mhc-connections --mhc-* --mtp-* --mamba-* --dsa-* "
     "--gdp-* --mup-* --use-mup --disable-mamba-mem-eff-path --no-dsa-* --mask-type",
     never("the model has no such part; see docs/models.md")),
    ("--moe-router-topk", fact("expert_choices", whole)), ("--moe-aux-loss-coeff", fact("balance", number)),
    ("--moe-router-load-balancing-type",
     only("aux_loss", "the load-balancing loss of the preset", "experts are balanced by a loss")),
    ("--moe-ffn-hidden-size", fact("ffn", whole)),
    ("--moe-grouped-gemm --moe-permute-fusion* --moe-token-dispatcher-type --moe-router-fusion --moe-router-dtype"
     " --moe-use-legacy-grouped-gemm --moe-per-layer-logging --moe-router-padding-for-*",
     nothing("an implementation choice of Megatron's experts")),
    ("--moe-*", never("mixtures of experts have presets: mixtral_8x7b, qwen3_30b_a3b; their routing is fixed")),
    ("--test-mode --output-bert-embeddings --bert-* --biencoder-* --block-data-path --embedding-path "
     "--evidence-data-path --ict-* --indexer-* --retriever-* --titles-data-path --use-one-sent-docs "
     "--query-in-block-prob --retro-* --dino-* --vision-* --swin-* --img-* --num-classes --num-channels "
     "--patch-dim --classes-fraction --data-per-class-fraction --iter-per-epoch --mask-factor --mask-prob "
     "--short-seq-prob --vocab-extra-ids --sample-rate --decoder-num-layers",
     never("Octavo trains decoders on text only")),
    ("--rl-* --grpo-* --langrl-* --perform-rl-step --refit-method --logits-* --freeze-all-layers --sft*",
     never("train_llama trains on next tokens; for chats see finetune_llama")),
    ("--inference-* --max-seqlen* --num-speculative-tokens --enable-chunked-prefill --disable-chunked-prefill "
     "--decode-only-cuda-graphs --mlp-chunks-for-* --use-inference-* --use-legacy-static-engine "
     "--nccl-all-reduce-for-prefill --use-same-sampling-seed-across-dp-ranks",
     nothing("concerns inference")),
    # --- data
    ("--data-path", fact("data_path", blend)), ("--train-data-path", fact("train_data", blend)),
    ("--valid-data-path", fact("validation_data", blend)),
    ("--data-args-path --per-split-data-args-path --per-dataset-sequences-path",
     never("name the files with --data-path")),
    ("--test-data-path", nothing("there is no test after training; see the program evaluate")),
    ("--split", fact("split", shares)),
    ("--mock-data", never("Octavo generates no data; pass --data FILE")),
    ("--data-cache-path --no-mmap-bin-files --num-workers --dataloader-type --num-dataset-builder-threads "
     "--no-create-attention-mask-in-dataloader --mid-level-dataset-surplus --object-storage-cache-path "
     "--s3-cache-path --dataloader-defer-npy-index-mmap --dataloader-fast-cache-load --renormalize-blend-weights "
     "--enable-msc --disable-msc",
     nothing("files are read directly, one thread ahead of the step")),
    ("--reset-position-ids --reset-attention-mask --eod-mask-loss --dataloader-inter-document-masking",
     never("pass --document-end TOKEN and --most-documents N: they separate documents")),
    ("--fim-*", never("fill-in-the-middle is not supported")),
    ("--full-validation --multiple-validation-sets --validation-set-names --eval-global-batch-size "
     "--eval-micro-batch-size --start-eval-at-iter",
     never("evaluation uses --batch, --validation-batches and one set of files")),
    ("--tokenizer-* --vocab-file --merge-file --tiktoken-* --legacy-tokenizer --null-tokenizer-* "
     "--no-use-tokenizer-* --no-tokenizer-* --no-save-tokenizer-assets --trust-remote-code --use-gigatoken "
     "--chat-template --allow-ambiguous-pad-tokens",
     nothing("token files contain tokens; prepare_data encodes text")),
    ("--seed", to("seed", whole)),
    ("--te-rng-tracker --use-te-rng-tracker --no-load-rng --no-save-rng",
     nothing("random numbers depend on --seed and step")),
    ("--deterministic-mode", choice("deterministic", {"true": True}, "must be a switch")),
    # --- output
    ("--save", to("out", name, "checkpoints are in its subfolder checkpoints")),
    ("--save-interval --persistent-save-interval", to("checkpoint-every", whole)),
    ("--save-retain-interval", to("keep-every", whole)),
    ("--load", fact("load")),
    ("--pretrained-checkpoint --ckpt-step --override-ckpt-iteration --finetune --bert-load --ict-load "
     "--exit-on-missing-checkpoint",
     never("Megatron's checkpoints are not read: convert them to a Hugging Face folder, and pass --model hf:FOLDER")),
    ("--ckpt-* --no-ckpt-* --use-dist-ckpt --dist-ckpt-* --auto-detect-ckpt-format --async-save --async-strategy "
     "--async-ckpt-* --use-persistent-ckpt-worker --use-checkpoint-args --use-mp-args-from-checkpoint-args "
     "--no-load-optim --no-save-optim --distrib-optim-* --non-persistent-* --load-main-params-from-ckpt "
     "--hetereogenous-dist-checkpoint --verify-integrity --replication* --no-strict-fsdp-dtensor-load "
     "--most-recent-k",
     nothing("checkpoints are complete and asynchronous; see docs/checkpoints.md")),
    ("--eval-interval", to("evaluate-every", whole)), ("--eval-iters", fact("eval_iters", whole)),
    ("--log-interval", to("log-every", whole)),
    ("--log-* --no-log-* --tensorboard-* --wandb-* --timing-* --one-logger-* --enable-one-logger --no-one-logger "
     "--barrier-with-level-1-timing --no-barrier-with-level-1-timing --logging-level --timers "
     "--throughput-window-size --memory-keys --runtime-time-unit --no-filter-warnings --modules-to-filter "
     "--set-level-for-all-loggers --save-config-filepath --config-logger-dir --app-tag-run-* --otel-* "
     "--dump-param-to-param-group-map",
     nothing("the folder --out has metrics.jsonl and TensorBoard events")),
    ("--profile --profile-* --use-pytorch-profiler --pytorch-profiler-* --record-shapes --nvtx-ranges",
     nothing("--timeline FILE writes a trace")),
    ("--exit-signal* --adlr-autoresume* --inprocess-* --enable-ft-package --calc-ft-timeouts "
     "--ft-num-warmup-iters --rerun-mode --error-injection-* --fault-injector-* --straggler-* "
     "--disable-straggler-on-startup --run-workload-inspector-server --flight-recorder-* --no-flight-recorder-* "
     "--gpu-sniff-test-interval --train-sync-interval --result-rejected-tracker-filename",
     nothing("Octavo saves at SIGTERM, and detects lost ranks itself")),
    ("--save-activations-interval --save-dgrads-interval --save-wgrads-interval --save-params-interval "
     "--save-tokens-per-expert-interval",
     never("only whole states are saved")),
    ("--retro-project-dir*", never("Octavo trains decoders on text only")),
)


def derive(run):
    derived.batches(run)
    derived.length(run)
    derived.schedule(run)
    derived.precision(run)
    gather(run)
    architecture(run)
    derived.model(run)
    experts(run)
    recompute(run)
    moments(run)
    data(run)
    evaluation(run)
    if "load" in run.facts:
        if run.fact("load") == run.flag("out"):
            run.map("load", "resume", "auto")
        else:
            run.answer("load", REFUSED, "Megatron's checkpoints are not read: convert them to a Hugging Face folder, "
                                        "and pass --model hf:FOLDER")
    run.flags.setdefault("device", ("cuda", None))


def gather(run):
    if "fp8_gather" not in run.facts:
        return
    if not run.fact("fp8") or run.fact("fp8_recipe", "delayed") not in ("delayed", "tensorwise"):
        run.answer("fp8_gather", NO_EFFECT, "weights are gathered in FP8 only with one scale per tensor")
    else:
        run.map("fp8_gather", "gather", "fp8")


def architecture(run):
    """Llama has RoPE, RMSNorm and SwiGLU; GPT-2 has learnt positions."""
    positions = run.fact("positions", "learned_absolute")
    if positions not in ("rope", "learned_absolute"):
        run.answer("positions", REFUSED, "positions are rotary (Llama) or learnt (GPT-2)")
    else:
        run.answer("positions", MAPPED, "a preset of Llama" if positions == "rope" else "a preset of GPT-2")
    if positions == "learned_absolute" and "layers" in run.facts:
        run.facts.setdefault("rope_theta", (0, run.facts["layers"][1]))
    wanted = {"--swiglu": ("rope", ()), "--disable-bias-linear": ("rope", ()),
              "--normalization": (None, ("RMSNorm",) if positions == "rope" else ("LayerNorm",))}
    for setting in run.settings:
        if setting.trainer != "megatron" or setting.key not in ("--swiglu", "--disable-bias-linear", "--normalization",
                                                               "--squared-relu", "--openai-gelu", "--quick-geglu",
                                                               "--onnx-safe"):
            continue
        family, values = wanted.get(setting.key, ("none", ()))
        fits = family == positions or setting.value in values
        run.say(setting, *((NO_EFFECT, "as in the preset") if fits
                           else (REFUSED, "the preset's family has a different kind of layer")))


def experts(run):
    """Compares the routing with that of the preset."""
    model = run.flag("model")
    preset = shapes.EXPERTS.get(model, (0, 0, 0))
    for name, value in zip(("experts", "expert_choices", "balance"), preset):
        if name not in run.facts:
            continue
        if run.fact(name) == value or not run.fact(name):
            run.answer(name, MAPPED if value else NO_EFFECT, f'model = "{model}"' if value else "no experts")
        else:
            run.answer(name, REFUSED, f"{model} has {value}" if value else
                       "no preset has this shape; write its config.json, and pass --model shape:FOLDER")


def recompute(run):
    how, modules = run.fact("recompute"), run.fact("recompute_modules", [])
    if how is None:
        for name in ("recompute_modules", "recompute_layers"):
            run.answer(name, NO_EFFECT, "nothing is recomputed")
        return
    layers = run.fact("recompute_layers")
    if how == "full":
        run.map("recompute", "recompute", "block")
        run.answer("recompute_layers", *((NO_EFFECT, "every block is recomputed") if layers in ("uniform", "1", None)
                                         else (REFUSED, "every block is recomputed, from its own input")))
        run.answer("recompute_modules", NO_EFFECT, "every block is recomputed")
        return
    levels = {"core_attn": "none", "layernorm": "norms", "moe_act": "swiglu", "mlp": "ffn", "moe": "ffn"}
    known = [levels[module] for module in modules if module in levels]
    order = ["none", "norms", "swiglu", "ffn"]
    level = max(known, key=order.index) if known else "none"
    if level == "none":
        run.answer("recompute", NO_EFFECT, "attention never stores its scores")
    else:
        run.map("recompute", "recompute", level)
    unknown = [module for module in modules if module not in levels]
    run.answer("recompute_modules", *((REFUSED, f"--recompute has no level for {', '.join(unknown)}") if unknown
                                      else (MAPPED, f'recompute = "{level}"')))
    run.answer("recompute_layers", NO_EFFECT, "all layers")


def moments(run):
    names = {"fp32": "fp32", "bf16": "bf16", "fp8": "8bit"}
    first, second = run.fact("first_moment", "fp32"), run.fact("second_moment", "fp32")
    for name in ("first_moment", "second_moment"):
        if name not in run.facts:
            continue
        if first == second and first in names:
            run.map(name, "moments", names[first])
        else:
            run.answer(name, REFUSED, "both moments have one format: fp32, bf16 or 8bit")
    if run.fact("first_moment") and run.fact("second_moment") and first == second and first in names:
        run.answer("second_moment", MAPPED, f'moments = "{names[first]}"')


def data(run):
    for name, flag in (("data_path", "data"), ("train_data", "data"), ("validation_data", "validation-data")):
        if name in run.facts:
            run.map(name, flag, run.fact(name))
    if "split" not in run.facts:
        return
    parts = run.fact("split") + [0, 0]
    if "validation_data" in run.facts or "train_data" in run.facts:
        run.answer("split", NO_EFFECT, "validation has separate files")
    elif parts[1] <= 0:
        run.answer("split", REFUSED, "a run keeps a fraction for validation; set validation-fraction")
    else:
        fraction = round(parts[1] / (parts[0] + parts[1]), 6)
        run.map("split", "validation-fraction", fraction, "no data is kept for tests")


def evaluation(run):
    if "eval_iters" not in run.facts:
        return
    if run.fact("eval_iters") == 0:
        run.flags.pop("evaluate-every", None)
        run.map("eval_iters", "evaluate-every", 0, "evaluates at the end only")
        return
    count = run.fact("eval_iters") * run.flag("micro-batches", 1)
    run.map("eval_iters", "validation-batches", count, "eval-iters × micro-batches")

"""DeepSpeed's JSON (docs/_pages/config-json.md)."""
from octavo_command.importing.rows import (choice, fact, never, nothing, number, only, switch, table, to, whole,
                                           Malformed)
from octavo_command.importing.run import MAPPED, REFUSED

TITLE = "DeepSpeed"

DEFAULTS = {}


def pair(value):
    if not isinstance(value, list) or len(value) != 2:
        raise Malformed("two numbers")
    return [number(one) for one in value]


ROWS = table(
    ("train_micro_batch_size_per_gpu", to("batch", whole)), ("train_batch_size", fact("global_batch", whole)),
    ("gradient_accumulation_steps", fact("accumulation", whole)),
    ("gradient_clipping", to("max-gradient-norm", number)),
    ("optimizer.type", fact("optimizer_type")), ("optimizer.params.lr", to("learning-rate", number)),
    ("optimizer.params.betas", fact("betas", pair)), ("optimizer.params.eps", to("epsilon", number)),
    ("optimizer.params.weight_decay", to("weight-decay", number, "matrices only")),
    ("optimizer.params.torch_adam optimizer.params.adam_w_mode optimizer.params.bias_correction "
     "optimizer.legacy_fusion",
     nothing("AdamW with bias correction, one fused kernel")),
    ("optimizer.params.muon_lr", to("learning-rate", number)),
    ("optimizer.params.momentum", to("muon-momentum", number)),
    ("optimizer.params.adam_lr optimizer.params.*", never("this setting of the optimizer is not supported")),
    ("scheduler.type", fact("scheduler_type")), ("scheduler.params.warmup_num_steps", fact("warmup_steps", whole)),
    ("scheduler.params.total_num_steps", fact("steps", whole)),
    ("scheduler.params.warmup_max_lr", to("learning-rate", number)),
    ("scheduler.params.warmup_min_lr scheduler.params.warmup_min_ratio",
     only("0 0.0", "the warm-up begins at 0", "Octavo's warm-up begins at 0")),
    ("scheduler.params.warmup_type",
     only("linear", "the warm-up is linear", "Octavo's warm-up is linear; pass linear")),
    ("scheduler.params.cos_min_ratio", to("final-fraction", number)),
    ("scheduler.params.*", never("schedules are cosine, linear, constant and wsd")),
    ("bf16.enabled bfloat16.enabled", fact("bf16", switch)), ("fp16.enabled", fact("fp16", switch)),
    ("bf16.bf16_master_weights_and_grads",
     choice("master-weights", {"true": "bf16"}, "master weights are fp32 or bf16")),
    ("bf16.bf16_optimizer_states", choice("moments", {"true": "bf16"}, "moments are fp32, bf16 or 8bit")),
    ("bf16.* bfloat16.*", nothing("gradients are summed in the storage format, or in FP32 with --reduce fp32")),
    ("fp16.*", nothing("loss scaling is for FP16")),
    ("amp.enabled", never("FP16 with loss scaling is not supported; use bf16")),
    ("amp.* torch_autocast.*", nothing("--precision decides")),
    ("fp8", nothing("DeepSpeed ignores it too; pass --precision fp8-delayed for FP8")),
    ("fp8.*", nothing("DeepSpeed ignores it too; pass --precision fp8-delayed for FP8")),
    ("data_types.grad_accum_dtype",
     choice("reduce", {"fp32": "fp32", "bf16": "stored"}, "sums are fp32 or in the storage format")),
    ("communication_data_type seq_parallel_communication_data_type",
     only("bf16 fp32", "gradients are exchanged in the storage format and summed over ranks in FP32",
          "gradients are exchanged in BF16 or E4M3")),
    ("zero_optimization.stage", fact("zero_stage", whole)),
    ("zero_optimization.offload_optimizer.device",
     choice("offload", {"none": "none", "cpu": "optimizer"},
            "the state can be offloaded to host memory only: use cpu")),
    ("zero_optimization.cpu_offload",
     choice("offload", {"true": "optimizer", "false": "none"}, "must be true or false")),
    ("zero_optimization.offload_optimizer.*", nothing("--offload uses pinned memory and the GPU's optimizer")),
    ("zero_optimization.offload_param.device",
     only("none", "weights stay on the GPU", "weights are sharded, not offloaded: --zero 3")),
    ("zero_optimization.offload_param.* zero_optimization.cpu_offload_use_pin_memory",
     nothing("weights stay on the GPU")),
    ("zero_optimization.offload_param zero_optimization.offload_optimizer", only("off", "off", "must be a section")),
    ("zero_optimization.cpu_offload_param", never("weights are sharded, not offloaded: --zero 3")),
    ("zero_optimization.zero_quantized_weights",
     choice("gather", {"true": "fp8", "false": "stored"}, "must be true or false")),
    ("zero_optimization.zero_quantized_gradients",
     choice("reduce", {"true": "e4m3", "false": "stored"}, "must be true or false")),
    ("zero_optimization.zero_hpz_partition_size zero_optimization.mics_shard_size",
     only("1 off -1", "off", "all ranks share one copy of the weights")),
    ("zero_optimization.zenflow.* zero_optimization.zero_quantized_nontrainable_weights "
     "zero_optimization.zeropp_loco_param* zero_optimization.mics_hierarchical_params_gather",
     never("this variant of ZeRO is not supported")),
    ("zero_optimization.*", nothing("buckets, prefetch and overlap follow from the model; see docs/ranks.md")),
    ("zero_allow_untested_optimizer zero_force_ds_cpu_optimizer",
     nothing("every optimizer of Octavo works with ZeRO")),
    ("activation_checkpointing.*",
     never("DeepSpeed recomputes only if the model calls it; pass --recompute block")),
    ("tensor_parallel.autotp_size", fact("tensor_parallel", lambda value: max(1, whole(value)))),
    ("tensor_parallel.*", nothing("--tensor-parallel shards all layers")),
    ("steps_per_print", nothing("prints DeepSpeed's own lines; --log-every N sets Octavo's")),
    ("wall_clock_breakdown memory_breakdown dump_state flops_profiler.* comms_logger.* monitor_config.* "
     "tensorboard.* wandb.* comet.* csv_monitor.* comms_config.* verbose",
     nothing("the folder --out has metrics.jsonl; --timeline FILE writes a trace")),
    ("prescale_gradients gradient_predivide_factor gradient_allreduce_op sparse_gradients disable_allgather",
     nothing("gradients are means over tokens, summed in a fixed order")),
    ("managed_gradient_accumulation dataloader_drop_last graph_harvesting use_data_before_expert_parallelism* "
     "timers* check_overflow",
     nothing("an implementation choice of DeepSpeed")),
    ("checkpoint.* load_universal* nebula.*",
     nothing("checkpoints can resume on any number of ranks; see docs/checkpoints.md")),
    ("aio.*", nothing("offloading to disks is not supported")),
    ("compile.* hybrid_engine.* autotuning.*",
     nothing("the program is compiled; plan_memory finds settings that fit")),
    ("sparse_attention.* progressive_layer_drop.* eigenvalue.* quantize_training.* compression_training.* "
     "curriculum_learning.* data_efficiency.* expert_parallel.* pipeline.* elasticity.* random_ltd.*",
     never("this technique is not supported")),
)


def derive(run):
    adam(run)
    scheduler(run)
    if "zero_stage" in run.facts:
        stage = run.fact("zero_stage")
        run.map("zero_stage", "zero", max(1, stage), "" if stage else "the minimum is 1")


def adam(run):
    if "optimizer_type" in run.facts:
        name = run.fact("optimizer_type").lower()
        if name in ("adam", "adamw", "fusedadam", "cpuadam", "muon"):
            run.map("optimizer_type", "optimizer", "muon" if name == "muon" else "adamw")
        else:
            run.answer("optimizer_type", REFUSED, "optimizers are AdamW and Muon")
    if "betas" in run.facts:
        betas, setting = run.facts["betas"]
        is_first_set = run.put_flag("beta1", betas[0], setting)
        first = setting.answer, setting.text
        if not is_first_set:
            run.put_flag("beta2", betas[1], setting)
            run.say(setting, *first)
        elif run.put_flag("beta2", betas[1], setting):
            run.say(setting, MAPPED, f"beta1 = {betas[0]}, beta2 = {betas[1]}")


def scheduler(run):
    kinds = {"warmuplr": "constant", "warmupdecaylr": "linear", "warmupcosinelr": "cosine"}
    if "scheduler_type" not in run.facts:
        return
    kind = kinds.get(run.fact("scheduler_type").lower())
    if kind is None:
        run.answer("scheduler_type", REFUSED, "schedules are cosine, linear, constant and wsd")
        return
    run.map("scheduler_type", "schedule", kind)
    if kind == "linear":
        run.flags.setdefault("final-fraction", (0.0, None))

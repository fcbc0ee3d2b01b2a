"""Accelerate's YAML, and the flags of `accelerate launch` (src/accelerate/commands/config, utils/dataclasses.py)."""
from octavo_command.importing.rows import (between, choice, fact, never, nothing, number, one_of, only, positive,
                                           switch, table, to, whole, without)
from octavo_command.importing.run import MAPPED, NO_EFFECT, REFUSED

TITLE = "Accelerate"

DEFAULTS = {}

ROWS = table(
    ("compute_environment",
     only("local_machine", "ranks run on your own machines", "launch Octavo's ranks with mpirun or srun")),
    ("distributed_type", fact("distributed_type")),
    ("mixed_precision", fact("mixed_precision")),
    ("num_processes", fact("ranks", positive)), ("num_machines", nothing("mpirun -H names the hosts")),
    ("machine_rank main_process_ip main_process_port rdzv_backend rdzv_conf same_network main_training_function "
     "enable_cpu_affinity debug module no_python tee log_dir role max_restarts monitor_interval quiet env "
     "mpirun_config* mpirun_hostfile num_cpu_threads_per_process multi_gpu use_deepspeed use_fsdp "
     "use_parallelism_config use_megatron_lm",
     nothing("mpirun, srun and torchrun launch Octavo as well: docs/ranks.md")),
    ("gpu_ids", nothing("set CUDA_VISIBLE_DEVICES")),
    ("use_cpu cpu", choice("device", {"true": "cpu", "false": "cuda"}, "must be true or false")),
    ("downcast_bf16 tpu* no_tpu_cluster vm commands command_file",
     only("no off false all", "concerns TPUs", "TPUs are not supported")),
    ("fp16", fact("fp16", switch)),
    ("dynamo_config* dynamo_*", nothing("the program is compiled")),
    ("ipex_config*", nothing("concerns Intel's PyTorch")),
    ("ec2_instance_type iam_role_name image_uri profile region base_job_name pytorch_version transformers_version"
     " py_version sagemaker_* additional_args aws_*",
     never("SageMaker is not supported")),
    ("fp8_config.backend", fact("fp8_backend")),
    ("fp8_config.fp8_format fp8_config.format", fact("fp8_format", one_of("hybrid e4m3"))),
    ("fp8_config.amax_history_len fp8_config.amax_history_length", fact("amax_history", between(1, 2**31 - 1))),
    ("fp8_config.amax_compute_algo fp8_config.amax_compute_algorithm",
     fact("amax_algorithm", one_of("max most_recent"))),
    ("fp8_config.margin", fact("fp8_margin", between(0, 16))),
    ("fp8_config.interval", only("1 0", "scales are updated every step", "scales are updated every step here")),
    ("fp8_config.override_linear_precision",
     without("true", "all GEMMs run in FP8", "all three GEMMs of a layer run in FP8")),
    ("fp8_config.use_autocast_during_eval", nothing("evaluation uses the precision of training")),
    ("fp8_config.use_mxfp8_block_scaling",
     never("GPUs multiply MX blocks only from compute capability 10.0 on; see --precision mxfp8")),
    ("fp8_config.pad_inner_dim", nothing("feature counts are checked when the model compiles")),
    ("fp8_config.enable_fsdp_float8_all_gather",
     choice("gather", {"true": "fp8", "false": "stored"}, "must be true or false")),
    ("fp8_config.opt_level fp8_config.optimization_level",
     never("MS-AMP is not supported; see --moments 8bit and --reduce e4m3")),
    ("deepspeed_config.deepspeed_config_file", fact("deepspeed_file")),
    ("deepspeed_config.zero_stage", fact("zero_stage", whole)),
    ("deepspeed_config.gradient_accumulation_steps gradient_accumulation_steps", fact("accumulation", whole)),
    ("deepspeed_config.gradient_clipping", to("max-gradient-norm", number)),
    ("deepspeed_config.offload_optimizer_device",
     choice("offload", {"none": "none", "cpu": "optimizer"},
            "the state can be offloaded to host memory only: use cpu")),
    ("deepspeed_config.offload_param_device",
     only("none", "weights stay on the GPU", "weights are sharded, not offloaded: --zero 3")),
    ("deepspeed_config.*", nothing("concerns DeepSpeed's launcher and its loading of models")),
    ("fsdp_config.fsdp_sharding_strategy",
     choice("zero", {"full_shard": 3, "1": 3, "shard_grad_op": 2, "2": 2, "no_shard": 1, "3": 1},
            "must be FULL_SHARD, SHARD_GRAD_OP or NO_SHARD")),
    ("fsdp_config.fsdp_reshard_after_forward",
     choice("zero", {"true": 3, "false": 2, "full_shard": 3, "shard_grad_op": 2}, "must be true or false")),
    ("fsdp_config.fsdp_offload_params", never("--offload does not cover weights; they stay on the GPU")),
    ("fsdp_config.fsdp_activation_checkpointing",
     choice("recompute", {"true": "block", "false": "none"}, "must be true or false")),
    ("fsdp_config.*", nothing("blocks are sharded one by one; see docs/ranks.md")),
    ("parallelism_config.parallelism_config_tp_size", fact("tensor_parallel", positive)),
    ("parallelism_config.parallelism_config_dp_shard_size", nothing("--zero shards over all ranks")),
    ("parallelism_config.parallelism_config_dp_replicate_size parallelism_config.parallelism_config_cp_size "
     "parallelism_config.parallelism_config_sp_size",
     only("1 off", "off", "context parallelism and replicas of shards are not supported")),
    ("parallelism_config.*", nothing("concerns context parallelism")),
    ("megatron_lm_config.megatron_lm_tp_degree", fact("tensor_parallel", positive)),
    ("megatron_lm_config.megatron_lm_gradient_clipping", to("max-gradient-norm", number)),
    ("megatron_lm_config.megatron_lm_pp_degree",
     only("1", "no pipeline parallelism", "pipeline parallelism is not supported")),
    ("megatron_lm_config.*", never("pass Megatron-LM's own command line to octavo import")),
)


def derive(run):
    if "distributed_type" in run.facts:
        kind = run.fact("distributed_type")
        known = kind in ("NO", "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED")
        run.answer("distributed_type", *((NO_EFFECT, "its section sets --zero") if known
                                         else (REFUSED, "ranks share state with --zero and --tensor-parallel")))
    if "deepspeed_file" in run.facts and not run.facts["deepspeed_file"][1].answer:
        run.answer("deepspeed_file", REFUSED, "does not exist here; pass the file to octavo import")
    if "zero_stage" in run.facts:
        stage = run.fact("zero_stage")
        run.map("zero_stage", "zero", max(1, stage), "" if stage else "the minimum is 1")
    precision(run)


def precision(run):
    kind = str(run.fact("mixed_precision", "no"))
    backend = str(run.fact("fp8_backend", "auto")).lower()
    if kind != "fp8":
        for name in ("fp8_backend", "fp8_format"):
            run.answer(name, NO_EFFECT, "FP8 is off: mixed_precision is not fp8")
        if "mixed_precision" in run.facts:
            setting = run.facts["mixed_precision"][1]
            if kind == "fp16":
                run.say(setting, REFUSED, "FP16 with loss scaling is not supported; use bf16")
            elif kind == "bf16":
                run.put_fact("bf16", True, setting)
            else:
                run.say(setting, NO_EFFECT, "the trainer's own settings determine the precision")
        return
    setting = run.facts["mixed_precision"][1]
    choose_backend(run, backend, setting, run.fact("fp8_format", "HYBRID").lower())


def choose_backend(run, backend, setting, formats="hybrid", history=1024, algorithm="most_recent"):
    """Stores the facts of the recipe that a back end runs: Transformer Engine or torchao."""
    if backend == "te":
        run.put_fact("fp8", formats, setting)
        run.facts.setdefault("fp8_recipe", ("delayed", setting))
        run.facts.setdefault("amax_history", (history, setting))
        run.facts.setdefault("amax_algorithm", (algorithm, setting))
        run.answer("fp8_backend", MAPPED, "delayed scaling, as in Transformer Engine")
    elif backend in ("ao", "torchao", "auto"):
        run.put_fact("fp8", "hybrid", setting)
        rowwise = setting.trainer == "llama_factory"
        run.facts.setdefault("fp8_recipe", ("rowwise" if rowwise else "tensorwise", setting))
        run.answer("fp8_backend", MAPPED, f"torchao runs: one scale per {'row' if rowwise else 'tensor'}"
                                          + ("; it casts gradients to E4M3, Octavo to E5M2" if rowwise else ""))
    else:
        run.answer("fp8_backend", REFUSED, "must be TE or AO here")
        run.say(setting, REFUSED, f"the back end {backend} is not supported")
    run.answer("fp8_format", *((MAPPED, "the formats of the recipe") if backend == "te"
                               else (NO_EFFECT, "only Transformer Engine reads it")))

"""torchtitan's TOML and its flags, SECTION.KEY (torchtitan/config/job_config.py, 2024 to 2026)."""
from octavo_command.importing import derive as derived
from octavo_command.importing.rows import (choice, fact, never, nothing, number, one_of, only, positive, switch, table,
                                           to, whole, words)
from octavo_command.importing.run import MAPPED, NO_EFFECT, REFUSED

TITLE = "torchtitan"

DEFAULTS = {
    "optimizer.lr": 8e-4, "optimizer.beta1": 0.9, "optimizer.beta2": 0.95, "optimizer.eps": 1e-8,
    "optimizer.weight_decay": 0.1, "lr_scheduler.warmup_steps": 200, "lr_scheduler.decay_type": "linear",
    "lr_scheduler.min_lr_factor": 0.0, "training.local_batch_size": 8, "training.seq_len": 2048,
    "training.steps": 10000,
    "training.max_norm": 1.0, "training.mixed_precision_param": "bfloat16",
    "parallelism.data_parallel_shard_degree": -1,
    "activation_checkpoint.mode": "selective", "checkpoint.interval": 500, "checkpoint.enable": False,
    "metrics.log_freq": 10, "checkpoint.keep_latest_k": 10,
}
OLD_KEYS = {"training.batch_size": "training.local_batch_size", "training.warmup_steps": "lr_scheduler.warmup_steps",
            "lr_scheduler.lr_min": "lr_scheduler.min_lr_factor", "checkpoint.enable_checkpoint": "checkpoint.enable",
            "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree"}

FLOAT8 = "float8.{0} quantize.linear.float8.{0}"


def float8(key):
    return FLOAT8.format(key)


ROWS = table(
    ("job.dump_folder", to("out")),
    ("job.description job.print_args job.print_config job.save_config_file job.use_for_integration_test "
     "debug.print_config debug.save_config_file debug.enable_structured_logging",
     nothing("the run's folder has its config.toml")),
    ("job.custom_config_module experimental.custom_import experimental.custom_args_module job.config_file",
     never("Python code of torchtitan; write a model or a recipe as a type instead (docs/models.md)")),
    ("profiling.* profiler.*", nothing("--timeline FILE writes a trace")),
    ("metrics.log_freq", to("log-every", whole)),
    ("metrics.*", nothing("the folder --out has metrics.jsonl and TensorBoard events")),
    ("model.name", fact("family")), ("model.flavor", fact("flavor")),
    ("model.hf_assets_path model.tokenizer_path",
     nothing("token files contain tokens; prepare_data --tokenizer encodes text")),
    ("model.converters", fact("converters", words)), ("model.print_after_conversion", nothing("prints the model")),
    ("model.norm_type", only("rmsnorm", "as in the preset", "Llama has RMSNorm")),
    ("model.use_flex_attn", nothing("attention is fused; see --document-end for documents")),
    ("optimizer.name",
     choice("optimizer", {"adamw": "adamw", "adam": "adamw", "muon": "muon"}, "optimizers are AdamW and Muon")),
    ("optimizer.lr", to("learning-rate", number)), ("optimizer.beta1", to("beta1", number)),
    ("optimizer.beta2", to("beta2", number)), ("optimizer.eps", to("epsilon", number)),
    ("optimizer.weight_decay", to("weight-decay", number, "matrices only")),
    ("optimizer.implementation optimizer.fused", nothing("the optimizer is one fused kernel")),
    ("optimizer.early_step_in_backward", never("the optimizer runs after the backward")),
    ("lr_scheduler.warmup_steps training.warmup_steps", fact("warmup_steps", whole)),
    ("lr_scheduler.decay_ratio", fact("decay_ratio", number)),
    ("lr_scheduler.decay_type",
     choice("schedule", {"linear": "linear", "cosine": "cosine"}, "schedules are cosine, linear, constant and wsd")),
    ("lr_scheduler.min_lr_factor lr_scheduler.lr_min", to("final-fraction", number)),
    ("lr_scheduler.total_steps", fact("decay_steps", whole)),
    ("training.local_batch_size training.batch_size", to("batch", whole)),
    ("training.global_batch_size", fact("global_batch", lambda value: None if whole(value) < 0 else whole(value))),
    ("training.seq_len training.max_context_length", to("seq-len", whole)), ("training.steps", fact("steps", whole)),
    ("training.max_norm", to("max-gradient-norm", number)),
    ("training.dataset",
     never("there are no built-in datasets: encode the text with prepare_data, and pass --data FILE")),
    ("training.dataset_path",
     never("the dataset is not a token file: encode it with prepare_data, and pass --data FILE")),
    ("training.dataloader.* training.num_tokens_*",
     nothing("a thread reads one step ahead; --batch and --seq-len set the shape")),
    ("training.mixed_precision_param", fact("bf16", lambda value: one_of("bfloat16 float32")(value) == "bfloat16")),
    ("training.mixed_precision_reduce",
     choice("reduce", {"float32": "fp32"}, "sums are fp32 or in the storage format")),
    ("training.dtype",
     choice("master-weights", {"float32": "fp32", "bfloat16": "bf16"}, "master weights are fp32 or bf16")),
    ("training.enable_cpu_offload", never("--offload does not cover weights; they stay on the GPU")),
    ("training.compile compile.* training.disable_cuda_graphs experimental.enable_compiled_autograd "
     "parallelism.enable_compiled_autograd",
     nothing("the program is compiled, and every step is a CUDA graph")),
    ("training.gc_freq training.gc_debug", nothing("there is no garbage collector")),
    ("training.seed debug.seed", to("seed", whole)),
    ("training.deterministic debug.deterministic",
     choice("deterministic", {"true": True, "false": False}, "must be true or false")),
    ("debug.deterministic_warn_only", nothing("all operations have deterministic versions")),
    ("debug.*", never("this check is not supported")),
    ("parallelism.data_parallel_shard_degree training.data_parallel_shard_degree", fact("shard", whole)),
    ("parallelism.data_parallel_replicate_degree training.data_parallel_replicate_degree",
     only("1", "no replicas of the shards", "all ranks share one copy of the weights with --zero 3")),
    ("parallelism.tensor_parallel_degree training.tensor_parallel_degree", fact("tensor_parallel", positive)),
    ("parallelism.pipeline_parallel_degree experimental.pipeline_parallel_degree",
     only("1", "no pipeline parallelism",
          "pipeline parallelism is not supported; use --zero 3 and --tensor-parallel")),
    ("parallelism.context_parallel_degree experimental.context_parallel_degree",
     only("1", "no context parallelism",
          "context parallelism is not supported; use --tensor-parallel and --recompute")),
    ("parallelism.expert_parallel_degree parallelism.expert_tensor_parallel_degree",
     only("1 0", "off", "expert parallelism is not supported; ranks share weights with --zero 3")),
    ("parallelism.pipeline_parallel_* experimental.pipeline_parallel_* parallelism.context_parallel_* "
     "parallelism.expert_parallel_* parallelism.module_fqns_per_model_part parallelism.num_pp_microbatches",
     nothing("concerns pipeline, context and expert parallelism")),
    ("parallelism.fsdp_reshard_after_forward",
     only("default always", "as with --zero 3", "pass --zero 2 to keep gathered weights")),
    ("parallelism.enable_async_tensor_parallel experimental.enable_async_tensor_parallel "
     "parallelism.disable_loss_parallel training.enable_loss_parallel parallelism.enable_sequence_parallel "
     "parallelism.enable_fsdp_symm_mem parallelism.spmd_backend",
     nothing("an implementation choice of its tensor parallelism")),
    ("checkpoint.enable checkpoint.enable_checkpoint", fact("checkpoints", switch)),
    ("checkpoint.interval", fact("checkpoint_interval", whole)),
    ("checkpoint.interval_type", only("steps", "counted in steps", "checkpoints are counted in steps")),
    ("checkpoint.keep_latest_k", fact("keep_last", whole)),
    ("checkpoint.initial_load_path",
     never("only Hugging Face folders and Octavo's checkpoints are read: --model hf:FOLDER")),
    ("checkpoint.load_step", only("-1", "--resume auto resumes from the newest", "pass --resume PATH")),
    ("checkpoint.folder", nothing("checkpoints are in the folder checkpoints of --out")),
    ("checkpoint.async_mode checkpoint.export_dtype checkpoint.create_seed_checkpoint "
     "checkpoint.model_weights_only checkpoint.last_save_model_only checkpoint.last_save_model_weights_only "
     "checkpoint.initial_load_model_only checkpoint.initial_load_model_weights_only "
     "checkpoint.exclude_from_loading checkpoint.enable_first_step_checkpoint "
     "checkpoint.enable_ft_dataloader_checkpoints checkpoint.load_only",
     nothing("checkpoints are complete and asynchronous; see docs/checkpoints.md")),
    ("checkpoint.last_save_in_hf", never("pass --save-hf FOLDER")),
    ("checkpoint.initial_load_in_hf checkpoint.initial_load_in_hf_quantized", never("pass --model hf:FOLDER")),
    ("activation_checkpoint.mode",
     choice("recompute", {"none": "none", "selective": "swiglu", "full": "block"},
            "recompute is none, norms, swiglu, ffn or block")),
    ("activation_checkpoint.*", nothing("--recompute chooses whole kinds of activations")),
    (float8("recipe_name"), fact("float8_recipe")),
    (float8("enable_fsdp_float8_all_gather"),
     choice("gather", {"true": "fp8", "false": "stored"}, "must be true or false")),
    (float8("precompute_float8_dynamic_scale_for_fsdp"),
     nothing("scales of all weights are computed before the gathers")),
    (float8("force_recompute_fp8_weight_in_bwd"),
     choice("weight-copies", {"true": "remade", "false": "kept"}, "must be true or false")),
    (float8("filter_fqns"), fact("float8_filter", words)),
    ("float8.enable_float8_linear", fact("float8_on", switch)),
    (float8("emulate"), never("the cpu device computes the same values: pass --device cpu")),
    ("float8.scaling_type_input float8.scaling_type_weight float8.scaling_type_grad_output",
     only("dynamic", "scaling by the current amax", "choose --precision fp8-delayed")),
    ("mx.* quantize.linear.mx.*",
     never("GPUs multiply MX blocks only from compute capability 10.0 on; see --precision mxfp8")),
    ("float8.moe_fqns_prototype quantize.*", never("experts have no separate precision")),
    ("comm.init_timeout_seconds", nothing("--comm-timeout applies to all communication")),
    ("comm.train_timeout_seconds", to("comm-timeout", whole)),
    ("comm.mode", only("default", "the default", "ranks communicate through NCCL or MPI")),
    ("comm.trace_buf_size comm.save_traces_folder comm.save_traces_file_prefix",
     nothing("errors name the lost rank; see docs/ranks.md")),
    ("memory_estimation.*", nothing("plan_memory computes the memory")),
    ("fault_tolerance.enable", never("lost ranks end the run; resume it with --resume auto")),
    ("fault_tolerance.*", nothing("fault tolerance by replicas is not supported")),
    ("validation.enable", fact("validation", switch)),
    ("validation.freq", fact("validation_freq", whole)), ("validation.steps", fact("validation_steps", whole)),
    ("validation.dataset validation.dataset_path", fact("validation_data")),
    ("validation.local_batch_size validation.seq_len validation.dataloader.*",
     nothing("evaluation uses --batch and --seq-len")),
)

FLAVORS = {("llama3", "8B"): "llama3_8b", ("llama3", "70B"): "llama3_70b", ("llama3", "1B"): "llama3_1b",
           ("qwen3", "0.6B"): "qwen3_0_6b", ("qwen3", "8B"): "qwen3_8b"}


def derive(run):
    decay_ratio(run)
    if run.fact("global_batch", 0) is None:
        run.answer("global_batch", NO_EFFECT, "batch × ranks, without accumulation")
        del run.facts["global_batch"]
    derived.batches(run)
    derived.length(run)
    derived.schedule(run)
    float8_recipe(run)
    derived.precision(run)
    model(run)
    sharding(run)
    checkpoints(run)
    validation(run)
    run.flags.setdefault("device", ("cuda", None))


def decay_ratio(run):
    if "decay_ratio" in run.facts:
        if run.flag("schedule") == "linear":
            setting = run.flags.pop("schedule")[1]
            run.put_flag("schedule", "wsd", setting, "decays linearly")
            run.map("decay_ratio", "decay-fraction", run.fact("decay_ratio"))
        else:
            run.answer("decay_ratio", REFUSED, "wsd decays linearly here")


def float8_recipe(run):
    converters = run.fact("converters", [])
    wanted = "float8" in converters or "quantize.linear.float8" in converters or run.fact("float8_on")
    unknown = [name for name in converters if name not in ("float8", "quantize.linear.float8")]
    run.answer("converters", *((REFUSED, f"{', '.join(unknown)} is not supported") if unknown
                               else (MAPPED, "FP8 for linear layers") if wanted else (NO_EFFECT, "none")))
    recipe, excluded = run.fact("float8_recipe", "tensorwise"), run.fact("float8_filter", [])
    for name in ("float8_on",):
        run.answer(name, MAPPED if wanted else NO_EFFECT, "FP8 for linear layers" if wanted else "off")
    if not wanted:
        for name in ("float8_recipe", "float8_filter"):
            run.answer(name, NO_EFFECT, "FP8 is off: model.converters does not name float8")
        if run.flag("gather") is not None:
            by = run.flags.pop("gather")[1]
            run.say(by, NO_EFFECT, "FP8 is off: model.converters does not name float8")
        return
    setting = next(run.facts[name][1] for name in ("converters", "float8_on") if name in run.facts)
    if recipe not in ("tensorwise", "rowwise"):
        run.answer("float8_recipe", REFUSED, "recipes are tensorwise and rowwise; gradients of weights are not BF16")
    else:
        run.put_fact("fp8_recipe", recipe, run.facts.get("float8_recipe", (None, setting))[1])
    run.facts["fp8"] = ("hybrid", setting)
    others = [name for name in excluded if name not in ("output", "lm_head")]
    head = "output" in excluded or "lm_head" in excluded
    run.facts["fp8_head"] = (not head, setting)
    run.answer("float8_filter", *((REFUSED, f"{', '.join(others)}: write a type with For<LinearRole::…, Bf16>")
                                  if others else (MAPPED, "the head runs in BF16" if head else "the head runs in FP8")))


def model(run):
    family, flavor = run.fact("family"), run.fact("flavor")
    if family is None:
        return
    preset = FLAVORS.get((family, flavor))
    if preset is None:
        for name in ("family", "flavor"):
            run.answer(name, REFUSED, "no preset has this shape; get its Hugging Face folder, and pass "
                                      "--model shape:FOLDER")
        return
    run.map("family", "model", preset)
    run.answer("flavor", MAPPED, f'model = "{preset}"')


def sharding(run):
    if "shard" in run.facts:
        run.map("shard", "zero", 1 if run.fact("shard") == 1 else 3)


def checkpoints(run):
    if not run.fact("checkpoints"):
        for name in ("checkpoints", "checkpoint_interval", "keep_last"):
            run.answer(name, NO_EFFECT, "checkpoints are off")
        return
    run.map("checkpoint_interval", "checkpoint-every", run.fact("checkpoint_interval"))
    run.map("checkpoints", "resume", "auto", "torchtitan resumes automatically")
    keep = run.fact("keep_last")
    if keep == 0:
        run.answer("keep_last", REFUSED, "only the newest N checkpoints are kept, and every Nth: --keep-every N")
    else:
        run.map("keep_last", "keep-last", max(2, keep))


def validation(run):
    on = run.fact("validation", False)
    run.answer("validation", MAPPED if on else NO_EFFECT, "evaluate-every" if on else "off")
    if not on:
        if run.flag("evaluate-every") is None:
            run.flags["evaluate-every"] = (0, None)
        for name in ("validation_freq", "validation_steps", "validation_data"):
            run.answer(name, NO_EFFECT, "validation is off")
        return
    if "validation_freq" in run.facts:
        run.map("validation_freq", "evaluate-every", run.fact("validation_freq"))
    if "validation_steps" in run.facts:
        if run.fact("validation_steps") < 0:
            run.answer("validation_steps", REFUSED, "set validation-batches")
        else:
            run.map("validation_steps", "validation-batches", max(1, run.fact("validation_steps")))
    run.answer("validation_data", REFUSED, "encode it with prepare_data, and pass --validation-data FILE")

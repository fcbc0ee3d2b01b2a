"""Hugging Face's TrainingArguments, and the arguments of run_clm.py (transformers 4 and 5)."""
import math
import re

from octavo_command.importing import derive as derived
from octavo_command.importing.rows import (choice, fact, fraction, is_off, name, never, nothing, number, only, switch,
                                           table, to, whole)
from octavo_command.importing.run import MAPPED, NO_EFFECT, REFUSED, shown

TITLE = "Hugging Face Trainer"

DEFAULTS = {
    "per_device_train_batch_size": 8, "learning_rate": 5e-5, "num_train_epochs": 3.0, "lr_scheduler_type": "linear",
    "warmup_steps": 0, "weight_decay": 0.0, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0, "seed": 42, "bf16": False, "save_steps": 500, "eval_strategy": "no", "logging_steps": 500,
}
REPORTS = "the folder --out has metrics.jsonl and TensorBoard events"
LOADER = "a thread reads the batches one step ahead"


def schedule_of(value):
    kinds = {"linear": "linear", "cosine": "cosine", "cosine_with_min_lr": "cosine", "constant": "constant",
             "constant_with_warmup": "constant", "warmup_stable_decay": "wsd"}
    return kinds.get(str(value).rpartition(".")[2].lower())


TRAINING = (
    ("output_dir", to("out", name, "checkpoints are in its subfolder checkpoints")),
    ("overwrite_output_dir", nothing("a folder with a run is never overwritten")),
    ("per_device_train_batch_size per_gpu_train_batch_size", to("batch", whole)),
    ("gradient_accumulation_steps", fact("accumulation", whole)),
    ("num_train_epochs", fact("epochs", number)), ("max_steps", fact("max_steps", whole)),
    ("learning_rate", to("learning-rate", number)), ("lr_scheduler_type", fact("scheduler")),
    ("lr_scheduler_kwargs.min_lr", fact("min_lr", number)),
    ("lr_scheduler_kwargs.min_lr_rate", to("final-fraction", number)),
    ("lr_scheduler_kwargs.num_decay_steps", fact("falling_steps", whole)),
    ("lr_scheduler_kwargs lr_scheduler_kwargs.*", never("schedules are cosine, linear, constant and wsd")),
    ("warmup_steps", fact("warmup", number)), ("warmup_ratio", fact("warmup_fraction", fraction)),
    ("optim", fact("optimizer_name")), ("adafactor", never("optimizers are AdamW and Muon")),
    ("optim_args optim_target_modules", never("optimizers are AdamW and Muon, with their own flags")),
    ("weight_decay", to("weight-decay", number, "matrices only")),
    ("adam_beta1", to("beta1", number)), ("adam_beta2", to("beta2", number)), ("adam_epsilon", to("epsilon", number)),
    ("max_grad_norm", to("max-gradient-norm", number)),
    ("label_smoothing_factor neftune_noise_alpha", never("this training technique is not supported")),
    ("average_tokens_across_devices", nothing("the loss is always the mean over all tokens of a step")),
    ("bf16", fact("bf16", switch)), ("fp16", fact("fp16", switch)),
    ("fp16_opt_level fp16_backend half_precision_backend fp16_full_eval bf16_full_eval tf32",
     nothing("--precision decides")),
    ("gradient_checkpointing activation_checkpointing",
     choice("recompute", {"true": "block", "false": "none"}, "must be true or false")),
    ("gradient_checkpointing_kwargs* activation_checkpointing_kwargs*", nothing("--recompute has levels instead")),
    ("torch_compile* jit_mode_eval use_ipex use_liger_kernel liger_kernel_config* torchdynamo "
     "include_num_input_tokens_seen torch_empty_cache_steps use_cache include_tokens_per_second",
     nothing("kernels are compiled and fused")),
    ("auto_find_batch_size", never("plan_memory finds a batch that fits")),
    ("logging_steps", to("log-every", whole)),
    ("logging_* log_* disable_tqdm report_to run_name project trackio_* debug skip_memory_metrics", nothing(REPORTS)),
    ("eval_strategy evaluation_strategy", fact("eval_strategy", lambda value: str(value).rpartition(".")[2].lower())),
    ("eval_steps", fact("eval_steps", number)), ("eval_delay", never("evaluation begins before the first step")),
    ("eval_on_start", nothing("the first evaluation is before the first step")),
    ("per_device_eval_batch_size per_gpu_eval_batch_size prediction_loss_only eval_* include_for_metrics "
     "include_inputs_for_metrics batch_eval_metrics metric_for_best_model greater_is_better label_names do_eval "
     "do_predict",
     nothing("evaluation computes the loss, with --batch")),
    ("do_train", only("true", "the program trains", "the program trains; see evaluate")),
    ("save_strategy", fact("save_strategy", lambda value: str(value).rpartition(".")[2].lower())),
    ("save_steps", fact("save_steps", number)), ("save_total_limit", fact("keep_last", whole)),
    ("load_best_model_at_end", choice("keep-best", {"true": True, "false": False}, "must be true or false")),
    ("save_only_model", never("checkpoints are complete, so that runs resume; --save-hf writes the model only")),
    ("save_safetensors save_on_each_node enable_jit_checkpoint restore_callback_states_from_checkpoint "
     "ignore_data_skip",
     nothing("checkpoints are complete; see docs/checkpoints.md")),
    ("resume_from_checkpoint", fact("resume")),
    ("push_to_hub* hub_*", never("Octavo uploads nothing")),
    ("seed", to("seed", whole)), ("data_seed", never("--seed determines weights and data")),
    ("full_determinism", choice("deterministic", {"true": True, "false": False}, "must be true or false")),
    ("use_cpu no_cuda", choice("device", {"true": "cpu", "false": "cuda"}, "must be true or false")),
    ("use_mps_device tpu_* xpu_backend mp_parameters ray_scope", never("devices are cpu and cuda")),
    ("accelerator_config* parallelism_config*", nothing("pass Accelerate's file to octavo import as well")),
    ("dataloader_* remove_unused_columns group_by_length length_column_name train_sampling_strategy "
     "dispatch_batches split_batches",
     nothing(LOADER)),
    ("ddp_timeout", fact("timeout", whole)),
    ("ddp_* local_rank", nothing("--zero shards all state")),
    ("fsdp", fact("fsdp", shown)),
    ("fsdp_config.fsdp_version fsdp_config.version", nothing("--zero 3 shards block by block")),
    ("fsdp_config* fsdp_*", nothing("blocks are sharded one by one; see docs/ranks.md")),
    ("deepspeed deepspeed_config", fact("deepspeed")),
    ("past_index predict_with_generate generation_max_length generation_num_beams generation_config sortish_sampler",
     nothing("concerns other models")),
)

ROWS = table(
    *TRAINING,
    ("model_name_or_path", to("model", lambda value: f"hf:{name(value)}", "a folder: download the model first")),
    ("config_name config_overrides model_type",
     never("train new weights of a preset: --model NAME; another shape needs a config.json and "
           "--model shape:FOLDER")),
    ("tokenizer_name use_fast_tokenizer cache_dir model_revision token use_auth_token trust_remote_code "
     "low_cpu_mem_usage",
     nothing("files are read from folders; prepare_data --tokenizer encodes text")),
    ("dtype torch_dtype attn_implementation", nothing("--precision determines the formats; attention is fused")),
    ("dataset_name dataset_config_name",
     never("datasets are not downloaded: encode the text with prepare_data, and pass --data FILE")),
    ("train_file",
     to("data", lambda value: [name(value)], "encode it with prepare_data for a model with a tokenizer")),
    ("validation_file", to("validation-data", lambda value: [name(value)])),
    ("validation_split_percentage", to("validation-fraction", lambda value: number(value) / 100)),
    ("max_train_samples max_eval_samples", never("all data is used; pass a smaller file")),
    ("block_size max_length max_seq_length", to("seq-len", whole)),
    ("streaming overwrite_cache preprocessing_num_workers keep_linebreaks",
     nothing("prepare_data encodes text once")),
    ("packing",
     only("true", "windows are full", "pass --document-end TOKEN: documents are still packed into windows")),
)

OPTIMIZERS = {"adamw_torch": "fp32", "adamw_torch_fused": "fp32", "adamw_hf": "fp32", "adamw_apex_fused": "fp32",
              "adamw_bnb_8bit": "8bit", "adamw_8bit": "8bit", "adamw_torch_8bit": "8bit", "paged_adamw_8bit": "8bit",
              "paged_adamw_32bit": "fp32", "paged_adamw": "fp32"}

FSDP = {"true", "full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap"}


def derive(run):
    steps = run.fact("max_steps", -1)
    if "max_steps" in run.facts and steps <= 0:
        run.answer("max_steps", NO_EFFECT, "num_train_epochs decides")
    elif "max_steps" in run.facts:
        run.put_fact("steps", steps, run.facts["max_steps"][1])
    derived.batches(run)
    derived.length(run)
    scheduler(run)
    derived.schedule(run)
    derived.precision(run)
    optimizer(run)
    saving(run)
    evaluation(run)
    sharding(run)
    if "timeout" in run.facts:
        run.map("timeout", "comm-timeout", min(run.fact("timeout"), 2**31 - 1))
    run.flags.setdefault("device", ("cuda", None))


def scheduler(run):
    if "scheduler" in run.facts:
        kind = schedule_of(run.fact("scheduler"))
        if kind is None:
            run.answer("scheduler", REFUSED, "schedules are cosine, linear, constant and wsd")
        else:
            run.map("scheduler", "schedule", kind)
            if kind != "constant" and "min_lr" not in run.facts:
                run.flags.setdefault("final-fraction", (0.0, None))
    if "warmup" in run.facts:
        value, setting = run.facts["warmup"]
        fraction = 0 < value < 1
        if "warmup_fraction" in run.facts and (setting.is_default or value == 0):
            run.say(setting, NO_EFFECT, "warmup_ratio decides")
            return
        run.put_fact("warmup_fraction" if fraction else "warmup_steps", value if fraction else int(value), setting)


def optimizer(run):
    if "optimizer_name" not in run.facts:
        return
    name = run.fact("optimizer_name").rpartition(".")[2].lower()
    if name not in OPTIMIZERS:
        run.answer("optimizer_name", REFUSED, "optimizers are AdamW and Muon")
        return
    setting = run.facts["optimizer_name"][1]
    run.put_flag("optimizer", "adamw", setting)
    if OPTIMIZERS[name] == "8bit":
        run.put_flag("moments", "8bit", setting)


def interval(run, name, flag, value):
    """Maps an interval of steps. A value below 1 is a fraction of the run."""
    total = run.flag("steps")
    if not 0 < value < 1:
        run.map(name, flag, int(value))
    elif total:
        run.map(name, flag, math.ceil(value * total))
    else:
        run.answer(name, REFUSED, derived.NEEDS_STEPS)


def saving(run):
    strategy, steps = run.fact("save_strategy", "steps"), run.fact("save_steps", 500)
    if "save_steps" in run.facts:
        if strategy != "steps":
            run.answer("save_steps", NO_EFFECT, "save_strategy decides")
        else:
            interval(run, "save_steps", "checkpoint-every", steps)
    run.answer("save_strategy", *{
        "steps": (MAPPED, "checkpoint-every"), "no": (NO_EFFECT, "no checkpoints"),
        "best": (REFUSED, "pass --keep-best and --checkpoint-every N"),
    }.get(strategy, (REFUSED, "checkpoints are counted in steps: pass --checkpoint-every N")))
    if run.flag("checkpoint-every"):
        if "keep_last" in run.facts:
            run.map("keep_last", "keep-last", max(2, run.fact("keep_last")))
        return
    run.answer("keep_last", NO_EFFECT, "no checkpoints")
    best = run.flags.pop("keep-best", (None, None))[1]
    if best:
        run.say(best, NO_EFFECT, "no checkpoints")


def evaluation(run):
    strategy = run.fact("eval_strategy", "no")
    if strategy == "steps":
        steps = run.fact("eval_steps", run.flag("log-every", 500))
        fact_name = "eval_steps" if "eval_steps" in run.facts else "eval_strategy"
        interval(run, fact_name, "evaluate-every", steps)
        if fact_name == "eval_steps":
            run.answer("eval_strategy", MAPPED, "evaluate-every")
    elif strategy == "no":
        run.map("eval_strategy", "evaluate-every", 0, "evaluates at the end only")
        run.answer("eval_steps", NO_EFFECT, "eval_strategy is no")
    else:
        run.answer("eval_strategy", REFUSED, "evaluations are counted in steps: pass --evaluate-every N")
        run.answer("eval_steps", NO_EFFECT, "eval_strategy decides")
    if "resume" in run.facts:
        if is_off(run.fact("resume")):
            run.answer("resume", NO_EFFECT, "off")
        elif str(run.fact("resume")).lower() == "true":
            run.map("resume", "resume", "auto")
        else:
            run.answer("resume", REFUSED, "only Octavo's checkpoints resume; pass --model hf:FOLDER for its weights")


def sharding(run):
    if "fsdp" in run.facts:
        value = str(run.fact("fsdp")).lower()
        stage = 3 if "full_shard" in value or value == "true" else 2 if "shard_grad_op" in value else 1
        unknown = set(re.split(r"[,\s]+", value)) - FSDP
        if is_off(value):
            run.answer("fsdp", NO_EFFECT, "off")
        elif unknown:
            run.answer("fsdp", REFUSED, f"must consist of {', '.join(sorted(FSDP))}")
        elif "offload" in value:
            run.answer("fsdp", REFUSED, "--offload does not cover weights; they stay on the GPU")
        else:
            run.map("fsdp", "zero", stage)
    if "deepspeed" in run.facts and not run.facts["deepspeed"][1].answer:
        run.answer("deepspeed", REFUSED, f"{run.fact('deepspeed')} does not exist here; pass the file to octavo import")

"""LLaMA-Factory's YAML (src/llamafactory/hparams, 2024 to 2026)."""
import json
import os

from octavo_command.importing import accelerate, hugging_face
from octavo_command.importing.rows import (choice, fact, name, names, never, nothing, number, only, positive, switch,
                                           table, to, whole)
from octavo_command.importing.run import MAPPED, NO_EFFECT, REFUSED

TITLE = "LLaMA-Factory"

DEFAULTS = {**hugging_face.DEFAULTS, "cutoff_len": 2048, "stage": "sft", "finetuning_type": "lora",
            "disable_gradient_checkpointing": False}
DEFAULTS_WITH_LORA = {"lora_rank": 8, "lora_target": "all"}
DEFAULTS_WITH_FP8 = {"fp8_backend": "auto"}

ROWS = table(
    *hugging_face.TRAINING,
    ("model_name_or_path", to("model", lambda value: f"hf:{name(value)}", "a folder: download the model first")),
    ("adapter_name_or_path", to("load-adapters")),
    ("stage", fact("stage")), ("finetuning_type", fact("finetuning_type")),
    ("dataset", fact("dataset", names)), ("eval_dataset", fact("eval_dataset", names)),
    ("dataset_dir", fact("dataset_dir")),
    ("template", fact("template")), ("cutoff_len", to("seq-len", whole)), ("val_size", fact("val_size", number)),
    ("train_on_prompt", never("the loss covers the assistant's messages only")),
    ("mask_history", choice("last-turn-only", {"true": True, "false": False}, "must be true or false")),
    ("packing", only("true off", "chats are always packed whole, and separated", "")),
    ("neat_packing", nothing("packed chats never attend to each other")),
    ("default_system tool_format enable_thinking preserve_thinking",
     never("write a template file: docs/finetuning.md#templates")),
    ("max_samples", never("all chats are used; pass a smaller file")),
    ("mix_strategy interleave_probs",
     only("concat off", "all chats of all files", "chats of all files have the same weight")),
    ("streaming buffer_size overwrite_cache preprocessing_* tokenized_path data_shared_file_system eval_num_beams"
     " media_dir ignore_pad_token_for_loss eval_on_each_dataset disable_shuffling",
     nothing("chats are read and packed at the start")),
    ("tensor_model_parallel_size", fact("tensor_parallel", positive)),
    ("pipeline_model_parallel_size expert_model_parallel_size context_parallel_size",
     only("1 off", "off", "pipeline, context and expert parallelism are not supported")),
    ("sequence_parallel use_distributed_optimizer overlap_grad_reduce overlap_param_gather apply_rope_fusion "
     "bias_activation_fusion moe_grouped_gemm moe_token_dispatcher_type use_packed_sequences",
     nothing("communication overlaps computation, and kernels are fused")),
    ("recompute_granularity", choice("recompute", {"full": "block"}, "pass --recompute")),
    ("lora_rank", fact("lora_rank", whole)), ("lora_alpha", fact("lora_alpha", whole)),
    ("lora_target", fact("lora_target", names)),
    ("lora_dropout", only("0 0.0", "no dropout", "dropout is not supported; pass 0")),
    ("additional_target loraplus_* use_rslora use_dora pissa_* create_new_adapter use_llama_pro freeze_* oft_* "
     "module_dropout",
     never("adapters are plain LoRA on linear layers")),
    ("fp8", fact("fp8_wanted", switch)), ("fp8_backend", fact("fp8_backend")),
    ("fp8_enable_fsdp_float8_all_gather", fact("fp8_gather", switch)),
    ("pure_bf16", choice("master-weights", {"true": "bf16"}, "must be true or false")),
    ("use_galore galore_* use_apollo apollo_* use_badam badam_* use_adam_mini use_muon",
     never("optimizers are AdamW and Muon: pass --optimizer")),
    ("pref_* dpo_* kto_* simpo_* ppo_* ref_model* reward_model* ld_alpha use_dft_loss use_asft_loss asft_alpha "
     "use_eaft_loss eaft_alpha moe_aux_loss_coef mixture_of_depths shift_attn rope_scaling use_mca "
     "use_megatron_bridge megatron_bridge_args use_hyper_parallel hyper_parallel_*",
     never("this training technique is not supported")),
    ("compute_accuracy early_stopping_steps", never("evaluation computes the loss; see --keep-best")),
    ("plot_loss include_effective_tokens_per_second use_swanlab swanlab_*",
     nothing("compare_runs --html draws the losses")),
    ("flash_attn use_unsloth* enable_liger_kernel use_v1_kernels use_kv_cache upcast_* use_reentrant_gc "
     "low_cpu_mem_usage print_param_status compute_dtype device_map",
     nothing("kernels are compiled and fused")),
    ("disable_gradient_checkpointing",
     choice("recompute", {"true": "none", "false": "block"}, "must be true or false")),
    ("quantization_* double_quantization", never("frozen weights are BF16 or FP8: --precision with --lora")),
    ("resize_vocab add_tokens add_special_tokens new_special_tokens_config init_special_tokens train_from_scratch",
     never("the vocabulary is the model's")),
    ("cache_dir use_fast_tokenizer split_special_tokens model_revision hf_hub_token ms_hub_token om_hub_token "
     "trust_remote_code adapter_folder offload_folder infer_* vllm_* sglang_* use_kt kt_* image_* video_* "
     "crop_to_patches use_audio_in_video audio_sampling_rate model_max_length block_diag_attn",
     nothing("concerns downloads, inference, or other models")),
    ("export_dir", to("save-hf")), ("export_*", nothing("--save-hf writes the format of transformers")),
    ("enable_torch_profiler profiler_* profile_modules", nothing("--timeline FILE writes a trace")),
    ("ray_* master_addr master_port", nothing("mpirun, srun and torchrun launch Octavo as well: docs/ranks.md")),
    ("do_sample temperature top_p top_k num_beams max_new_tokens repetition_penalty length_penalty "
     "skip_special_tokens max_length",
     nothing("concerns generation; see generate")),
    ("task task_dir batch_size lang n_shot save_dir download_mode", nothing("concerns evaluation; see evaluate")),
)

TEMPLATES = {"llama3": "llama3", "qwen": "qwen2.5", "qwen3": "qwen3", "qwen3_nothink": "chatml",
             "chatml": "chatml", "smollm2": "smollm2", "gemma": "gemma", "gemma2": "gemma", "gemma3": "gemma3"}
# The columns of each form that finetune_llama reads.
COLUMNS = {"alpaca": {"prompt": ["instruction"], "query": ["input"], "response": ["output"], "system": ["system"],
                      "history": ["history"]},
           "sharegpt": {"messages": ["conversations", "messages"], "system": ["system"]}}


def derive(run):
    stage(run)
    if "val_size" in run.facts:
        value = run.fact("val_size")
        if value >= 1 or value <= 0:
            run.answer("val_size", *((REFUSED, "must be a fraction: validation-fraction") if value else
                                     (NO_EFFECT, "a fraction is kept for validation, by default 0.1")))
        else:
            run.map("val_size", "validation-fraction", value)
    fp8(run)
    pure_bf16(run)
    lora(run)
    hugging_face.derive(run)
    if run.program == "finetune_llama":
        chats(run)
        template(run)


def stage(run):
    kind = run.fact("stage", "sft")
    run.program = "finetune_llama" if kind == "sft" else "train_llama"
    if kind != "sft" and "last-turn-only" in run.flags:
        run.say(run.flags.pop("last-turn-only")[1], NO_EFFECT, "concerns chats only")
    if kind == "sft":
        run.answer("stage", MAPPED, "finetune_llama")
    elif kind == "pt":
        run.answer("stage", MAPPED, "train_llama")
        run.answer("template", NO_EFFECT, "pretraining has no chats")
        for name in ("dataset", "eval_dataset"):
            run.answer(name, REFUSED, "encode the text with prepare_data, and pass --data FILE")
        run.answer("dataset_dir", NO_EFFECT, "does not name token files")
    else:
        run.answer("stage", REFUSED, "stages are sft (finetune_llama) and pt (train_llama)")
        for name in ("dataset", "eval_dataset", "dataset_dir", "template"):
            run.answer(name, NO_EFFECT, "the stage is not supported")


def pure_bf16(run):
    """pure_bf16 also computes in BF16, with or without the key bf16."""
    weights, setting = run.flag("master-weights"), run.flags.get("master-weights", (None, None))[1]
    if weights == "bf16" and not run.fact("bf16") and not run.fact("fp8"):
        run.answer("bf16", NO_EFFECT, f"overridden by {setting.key}")
        run.facts["bf16"] = (True, setting)


def fp8(run):
    wanted = run.fact("fp8_wanted", False)
    run.answer("fp8_wanted", MAPPED if wanted else NO_EFFECT, "precision" if wanted else "off")
    if not wanted:
        for name in ("fp8_backend", "fp8_gather"):
            run.answer(name, NO_EFFECT, "FP8 is off")
        return
    setting = run.facts["fp8_wanted"][1]
    setting.answer = ""
    accelerate.choose_backend(run, str(run.fact("fp8_backend", "auto")).lower(), setting, history=16, algorithm="max")
    if run.fact("fp8_gather"):
        run.answer("fp8_gather", REFUSED, "weights are gathered in FP8 with one scale per tensor: choose fp8-delayed or "
                                          "fp8-tensorwise, and pass --gather fp8")
    else:
        run.answer("fp8_gather", NO_EFFECT, "off")


def lora(run):
    kind = run.fact("finetuning_type", "lora")
    if kind == "full":
        run.answer("finetuning_type", MAPPED, "all parameters are trained")
        for name in ("lora_rank", "lora_alpha", "lora_target"):
            run.answer(name, NO_EFFECT, "finetuning_type is full")
        return
    if kind != "lora":
        run.answer("finetuning_type", REFUSED, "train all parameters, or adapters with --lora")
        for name in ("lora_rank", "lora_alpha", "lora_target"):
            run.answer(name, NO_EFFECT, f"finetuning_type is {kind}")
        return
    rank = run.fact("lora_rank", 8)
    run.map("finetuning_type", "lora", rank)
    run.answer("lora_rank", MAPPED, f"lora = {rank}")
    if "lora_alpha" in run.facts:
        run.map("lora_alpha", "lora-alpha", run.fact("lora_alpha"))
    else:
        run.flags["lora-alpha"] = (2 * rank, None)
    targets = run.fact("lora_target", ["all"])
    if targets == ["all"]:
        run.answer("lora_target", MAPPED, "all linear layers, the default")
    else:
        run.map("lora_target", "lora-targets", ",".join(targets))


def registered(run, names):
    """Returns the files of the datasets that dataset_info.json names, and the reason if there are none."""
    folder = run.fact("dataset_dir", "data")
    for base in dict.fromkeys([os.path.dirname(path) for path in run.files] + [""]):
        path = os.path.join(base, folder, "dataset_info.json")
        if os.path.isfile(path):
            break
    else:
        return [], f"{folder}/dataset_info.json does not exist here; pass --chats FILE"
    try:
        with open(path, encoding="utf-8") as file:
            known = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        return [], f"cannot read {path}: {error}; correct it, or pass --chats FILE"
    files = []
    for name in names:
        entry = known.get(name) if isinstance(known, dict) else None
        if not isinstance(entry, dict) or not isinstance(entry.get("file_name"), str):
            return [], f"{name} has no file in {path}; download it, and pass --chats FILE"
        form = entry.get("formatting", "alpaca")
        columns = entry.get("columns") or {}
        if not isinstance(form, str) or not isinstance(columns, dict) or form not in COLUMNS or any(column not in COLUMNS[form].get(key, ()) for key, column in columns.items()):
            return [], f"the columns of {name} have other names: rename them, see docs/finetuning.md#chats"
        files.append(os.path.join(os.path.dirname(path), entry["file_name"]))
    return files, ""


def chats(run):
    for name, flag in (("dataset", "chats"), ("eval_dataset", "validation-chats")):
        if name not in run.facts:
            continue
        files, why = registered(run, run.fact(name))
        if files:
            run.map(name, flag, files)
        else:
            run.answer(name, REFUSED, why)
    run.answer("dataset_dir", NO_EFFECT, "the folder of dataset_info.json")


def template(run):
    if "template" in run.facts:
        name = TEMPLATES.get(run.fact("template"))
        if name is None:
            run.answer("template", REFUSED, "write a template file: docs/finetuning.md#templates")
        else:
            run.map("template", "chat-template", name)

"""Detects settings that do not do what they suggest."""
from octavo_command.importing import derive, llm_c_llama3, llm_c_python
from octavo_command.importing.rows import is_off
from octavo_command.importing.run import shown


def values(run, trainer, key):
    """Returns the settings with a key, or with a key in a section of that name."""
    return [setting for setting in run.settings if (trainer is None or setting.trainer == trainer)
            and (setting.key == key or str(setting.key).startswith(key + "."))]


def find(run):
    """Adds a warning for each mistake."""
    if found := values(run, "deepspeed", "fp8"):
        run.warn(f'{found[0].place}: DeepSpeed ignores the section "fp8": it shards state, and the trainer chooses the '
                 "precision. The original run computed in BF16 or FP16")
    for key, cost in (("data_types.grad_accum_dtype", "casts every gradient to FP32 and back at every micro-batch"),
                      ("communication_data_type", "sends twice the bytes of BF16")):
        for setting in values(run, "deepspeed", key):
            if shown(setting.value).lower() in ("fp32", "float32"):
                run.warn(f"{setting.place}: {key} = fp32 {cost} in DeepSpeed; leave it out unless you need it")
    backend(run)
    connections(run)
    for setting in values(run, None, "NVTE_FP8_ALLREDUCE"):
        run.warn(f"{setting.place}: nothing reads NVTE_FP8_ALLREDUCE, so gradients were not exchanged in FP8")
    for trainer in (llm_c_python, llm_c_llama3):
        for setting in values(run, trainer.__name__.rpartition(".")[2], "--zero_stage"):
            if shown(setting.value) in ("2", "3"):
                run.warn(f"{setting.place}: {trainer.PROGRAM} shards only at --zero_stage 1; at --zero_stage "
                         f"{shown(setting.value)}, every rank of the original run kept the whole optimizer state")
    layers = len(run.files) + (1 if run.has_script and not run.files else 0)
    if layers > 1:
        run.warn(f"{layers} files decide this run ({', '.join(run.files)}); the table shows which one decides each "
                 "flag")


def backend(run):
    on = [setting for setting in values(run, "llama_factory", "fp8") if not is_off(setting.value)]
    on += [setting for setting in values(run, "accelerate", "mixed_precision") if shown(setting.value) == "fp8"]
    if not on:
        return
    chosen = values(run, "llama_factory", "fp8_backend") + values(run, "accelerate", "fp8_config.backend")
    chosen = [setting for setting in chosen if not setting.is_default]
    if chosen and all(shown(setting.value).lower() not in ("auto", "") for setting in chosen):
        return
    which = f"is {shown(chosen[0].value)}" if chosen else "is missing"
    run.warn(f"{(chosen or on)[0].place}: the FP8 back end {which}, so torchao runs, not Transformer Engine; every "
             "variable NVTE_* then has no effect")


def connections(run):
    """CUDA_DEVICE_MAX_CONNECTIONS=1 makes communication overlap in Megatron-LM and Transformer Engine."""
    if not run.has_script or not {"megatron", "llama_factory", "hugging_face"} & set(run.trainers):
        return
    if derive.ranks_of(run) == 1:
        return
    value = run.environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    if value is None or shown(value) != "1":
        given = "is not set" if value is None else f"is {shown(value)}"
        run.warn(f"CUDA_DEVICE_MAX_CONNECTIONS {given}: with a value other than 1, communication may not have "
                 "overlapped computation in the original run. Octavo does not need the variable")

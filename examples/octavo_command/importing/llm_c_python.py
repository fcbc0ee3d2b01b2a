"""llm.c's train_gpt2.py, its reference in PyTorch (June 2024 and later)."""
from octavo_command.importing import derive as derived, llm_c
from octavo_command.importing.rows import choice, fact, never, nothing, number, positive, table, to, whole
from octavo_command.importing.run import NO_EFFECT, REFUSED, Setting

TITLE = "llm.c's train_gpt2.py"
PROGRAM = "train_gpt2.py"

DEFAULTS = {"--input_bin": "dev/data/tinyshakespeare/tiny_shakespeare_val.bin", "--input_val_bin": "",
            "--model": "gpt2", "--batch_size": 4, "--sequence_length": 64, "--total_batch_size": 256,
            "--num_iterations": 10, "--learning_rate": 1e-4, "--warmup_iters": 0, "--learning_rate_decay_frac": 1.0,
            "--weight_decay": 0.0, "--grad_clip": 1.0, "--val_loss_every": 0, "--val_max_steps": 20,
            "--sample_every": 0, "--overfit_single_batch": 1, "--device": "", "--dtype": "float32"}

SAMPLE = {"sample": 32, "temperature": 1.0}


def interval(value):
    """Returns an interval in steps. 0 or less disables the repeated action, and becomes 0."""
    return max(0, whole(value))


ROWS = table(
    ("--input_bin", to("data", llm_c.one)), ("--input_val_bin", fact("validation")),
    ("--output_dir", fact("out")),
    ("--model", fact("descriptor")),
    ("--batch_size", to("batch", positive)), ("--sequence_length", to("seq-len", positive)),
    ("--total_batch_size", fact("step_tokens", positive)),
    ("--num_iterations", fact("steps", positive)),
    ("--inference_only", never("the trainer always updates the weights; octavo evaluate measures a loss")),
    ("--learning_rate", to("learning-rate", number)),
    ("--warmup_iters", fact("warmup_steps", whole)),
    ("--learning_rate_decay_frac", to("final-fraction", number)),
    ("--weight_decay", to("weight-decay", number, "matrices only, as in llm.c")),
    ("--grad_clip", fact("norm", number)),
    ("--val_loss_every", fact("evaluate_every", interval)), ("--val_max_steps", fact("validation_batches", positive)),
    ("--sample_every", fact("sample_every", interval)),
    ("--overfit_single_batch",
     never("the script repeats the first batch unless this is 0; a run of Octavo cannot repeat a single batch")),
    ("--tensorcores", nothing("FP32 GEMMs do not use TF32; pass --precision bf16 to use tensor cores")),
    ("--device", fact("device")),
    ("--compile", nothing("the program is compiled, and every step is a CUDA graph")),
    ("--flash", nothing("attention is fused")),
    ("--dtype", fact("dtype")),
    ("--zero_stage", choice("zero", {"0": 1, "1": 1, "2": 2, "3": 3}, "must be 0, 1, 2 or 3")),
    ("--write_tensors", nothing("writes the initial weights and the tokenizer for llm.c's C programs")),
)


def derive(run):
    derive_with(run, model, device, precision, SAMPLE)


def derive_with(run, model_of, device_of, precision_of, sample):
    """Derives what llm.c's two scripts have in common, and calls the functions for the rest."""
    ranks(run)
    llm_c.tokens(run)
    derived.batches(run)
    derived.length(run)
    run.flags["schedule"] = ("cosine", None)
    derived.schedule(run)
    model_of(run)
    device_of(run)
    precision_of(run)
    clipping(run)
    output(run)
    validation(run)
    samples(run, sample)


def is_launched(run):
    """Whether torchrun or a script sets the rank, which makes the script use one GPU for each rank."""
    return "RANK" in run.environment or any(
        setting.trainer == "launcher" and str(setting.key).startswith("--") and not setting.is_default
        for setting in run.settings)


def ranks(run):
    """Adds the number of ranks that torchrun and a script without a launcher start by default."""
    names = ("--nproc_per_node", "--nproc-per-node")
    if derived.ranks_of(run) is None and "RANK" not in run.environment and not any(
            setting.key in names for setting in run.settings):
        setting = Setting(names[0], 1, "default", "launcher")
        run.settings.append(setting)
        run.put_fact("ranks_per_node", 1, setting)


def model(run):
    """Chooses a preset with random weights, or a folder with Hugging Face's."""
    name, setting = run.facts["descriptor"]
    if name in llm_c.PRESETS:
        run.put_flag("model", llm_c.PRESETS[name], setting, "random weights")
    elif name in ("d24", "d36"):
        run.say(setting, REFUSED, llm_c.NO_PRESET)
    elif name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
        run.put_flag("model", f"hf:{name}", setting, "a folder: download the model first")
    else:
        run.say(setting, REFUSED, "must be gpt2, gpt2-medium, gpt2-large, gpt2-xl, d12, d24, d36 or d48")


def device(run):
    name, setting = run.facts["device"]
    if name in ("", "cuda"):
        run.put_flag("device", "cuda", setting)
    elif is_launched(run):
        run.put_flag("device", "cuda", setting, "torchrun's ranks always use GPUs")
    elif name.startswith("cuda:"):
        run.put_flag("device", "cuda", setting, f"choose the GPU with CUDA_VISIBLE_DEVICES={name[5:]}")
    elif name == "cpu":
        run.put_flag("device", "cpu", setting)
    else:
        run.say(setting, REFUSED, "devices are cpu and cuda")


def precision(run):
    """Derives --precision. The script casts only on CUDA."""
    name, setting = run.facts["dtype"]
    if name not in ("float32", "bfloat16", "float16"):
        run.say(setting, REFUSED, "must be float32, bfloat16 or float16")
    elif name != "float32" and run.flag("device") != "cuda":
        run.put_flag("precision", "fp32", setting, f"the script computes in {name} only on CUDA")
    elif name == "float16":
        run.say(setting, REFUSED, "FP16 is not supported; use bf16")
    else:
        run.put_flag("precision", {"float32": "fp32", "bfloat16": "bf16"}[name], setting)


def clipping(run):
    limit, setting = run.facts["norm"]
    if limit > 0:
        run.put_flag("max-gradient-norm", limit, setting)
    else:
        run.say(setting, REFUSED, "must be positive: at 0, the script sets all gradients to 0, but "
                                  "--max-gradient-norm 0 disables clipping")


def output(run):
    if run.fact("out"):
        run.map("out", "out", run.fact("out"))
    else:
        run.answer("out", NO_EFFECT, "no folder")


def validation(run):
    """Derives the evaluations, which the script makes before, during and after the run."""
    if run.fact("validation"):
        run.map("validation", "validation-data", [run.fact("validation")])
        run.map("evaluate_every", "evaluate-every", run.fact("evaluate_every"))
        run.map("validation_batches", "validation-batches", run.fact("validation_batches"))
    else:
        run.answer("validation", NO_EFFECT, "no file; Octavo evaluates --validation-fraction of the data, at the end")
        for name in ("evaluate_every", "validation_batches"):
            run.answer(name, NO_EFFECT, "no validation file")
        run.flags["evaluate-every"] = (0, None)


def samples(run, flags):
    """Derives the samples, which the script prints before, during and after the run."""
    every = run.fact("sample_every")
    if every == 0:
        run.map("sample_every", "sample", 0, "no samples")
        return
    for flag, value in flags.items():
        run.flags[flag] = (value, None)
    if every == run.flag("evaluate-every"):
        run.map("sample_every", "sample", flags["sample"], "at each evaluation, without top-k and top-p")
        run.flags["sample-each"] = (True, None)
    else:
        run.map("sample_every", "sample", flags["sample"], "at the end, without top-k and top-p; for one at each evaluation, "
                                                           "pass --sample-each")

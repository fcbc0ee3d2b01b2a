"""llm.c's train_llama3.py, which fine-tunes Llama-3.1-8B in PyTorch (August 2024 and later)."""
from octavo_command.importing import llm_c_python
from octavo_command.importing.rows import fact, nothing, table
from octavo_command.importing.run import NO_EFFECT, REFUSED

TITLE = "llm.c's train_llama3.py"
PROGRAM = "train_llama3.py"

DEFAULTS = {**llm_c_python.DEFAULTS, "--model": "meta-llama/Meta-Llama-3.1-8B", "--use_hf": 1, "--learning_rate": 1e-5,
            "--dtype": "bfloat16"}

SAMPLE = {"sample": 64, "temperature": 0.6}

ROWS = {key: row for key, row in llm_c_python.ROWS.items() if key != "--flash"} | table(
    ("--use_hf", fact("hugging_face")), ("--ckpt_dir", fact("checkpoint")), ("--tokenizer_path", fact("tokenizer")),
    ("--write_tensors", nothing("writes the initial weights and a reference step for llm.c's C programs")),
)


def derive(run):
    llm_c_python.derive_with(run, model, device, precision, SAMPLE)


def model(run):
    """Chooses the folder with Hugging Face's weights, from which the script loads by default."""
    name, setting = run.facts["descriptor"]
    if name == DEFAULTS["--model"]:
        run.put_flag("model", f"hf:{name}", setting, "a folder: download the model first")
    else:
        run.say(setting, REFUSED, f"must be {DEFAULTS['--model']}")
    value, setting = run.facts["hugging_face"]
    if value == "0":
        run.say(setting, REFUSED, "Meta's checkpoints are not read: convert them with transformers' "
                                  "convert_llama_weights_to_hf.py, and pass --model hf:FOLDER")
    else:
        run.answer("hugging_face", NO_EFFECT, "Octavo reads Hugging Face folders")
    for key in ("checkpoint", "tokenizer"):
        run.answer(key, NO_EFFECT, "belongs to Meta's checkpoint; --model names a folder with both")


def device(run):
    name, setting = run.facts["device"]
    if name in ("", "cuda") or llm_c_python.is_launched(run):
        run.put_flag("device", "cuda", setting)
    elif name.startswith("cuda:"):
        run.put_flag("device", "cuda", setting, f"choose the GPU with CUDA_VISIBLE_DEVICES={name[5:]}")
    else:
        run.say(setting, REFUSED, "must be cuda: the script runs on GPUs only")


def precision(run):
    """The script's weights and moments are in BF16. autocast casts to FP16 or BF16 only."""
    name, setting = run.facts["dtype"]
    if name == "float16":
        run.say(setting, REFUSED, "FP16 is not supported; use bf16")
    elif name in ("bfloat16", "float32"):
        run.put_flag("precision", "bf16", setting, None if name == "bfloat16" else
                     "the script's weights are in BF16, and autocast ignores float32")
        run.flags["master-weights"] = ("bf16", None)
        run.flags["moments"] = ("bf16", None)
    else:
        run.say(setting, REFUSED, "must be float32, bfloat16 or float16")

"""llm.c's command line (train_gpt2cu, 2024 and 2025)."""
import re

from octavo_command.importing import derive as derived
from octavo_command.importing.rows import choice, fact, name, never, nothing, number, positive, table, to, whole
from octavo_command.importing.run import MAPPED, NO_EFFECT, REFUSED

TITLE = "llm.c"
PROGRAM = "train_gpt2cu"
LAUNCHERS = ("mpirun", "mpiexec", "srun", "nsys", "ncu", "nohup", "time")

DEFAULTS = {"-i": "dev/data/tinyshakespeare/tiny_shakespeare_train.bin",
            "-j": "dev/data/tinyshakespeare/tiny_shakespeare_val.bin", "-e": "gpt2_124M_bf16.bin", "-b": 4, "-t": 1024,
            "-x": -1, "-k": "cosine", "-l": 3e-4, "-u": 0, "-q": 1.0, "-c": 0.0, "-v": 20, "-m": 20, "-s": 20, "-g": 64,
            "-r": 1, "-pn": 1}

HELLASWAG = "dev/data/hellaswag/hellaswag_val.bin"  # the only path that llm.c reads
QUESTIONS = 10042
PRESETS = {"d12": "gpt2_124m", "d48": "gpt2_1558m"}
NO_PRESET = "no preset has this shape; write its config.json, and pass --model shape:FOLDER to octavo train"
LAUNCHED = nothing("mpirun, srun and torchrun launch Octavo as well: docs/ranks.md")


def one(value):
    return [name(value)]


ROWS = table(
    ("-i", to("data", one)), ("-j", to("validation-data", one)),
    ("-e", fact("descriptor")),
    ("-o", to("out")),
    ("-n", to("checkpoint-every", whole)),
    ("-nk", fact("kept", whole)), ("-nm", fact("major", whole)),
    ("-y", choice("resume", {"1": "auto"}, "must be 0 or 1")),
    ("-b", to("batch", whole)), ("-t", to("seq-len", whole)),
    ("-d", fact("step_tokens", whole)),
    ("-x", fact("max_steps", whole)),
    ("-k", choice("schedule", {"cosine": "cosine", "linear": "linear", "constant": "constant"},
                  "llm.c's wsd decays by 1 - sqrt, Octavo's linearly: pass --schedule wsd")),
    ("-l", to("learning-rate", number)),
    ("-u", fact("warmup_steps", whole)), ("-q", fact("final_fraction", number)),
    ("-c", to("weight-decay", number, "matrices only, as in llm.c")),
    ("-sl", fact("loss_limit", number)), ("-sg", fact("norm_limit", number)),
    ("-v", to("evaluate-every", whole)), ("-m", fact("validation_batches", whole)),
    ("-s", fact("sample_every", whole)), ("-g", fact("sample", whole)),
    ("-h", fact("hellaswag", whole)),
    ("-a", never("a run cannot repeat a single batch")),
    ("-f", nothing("TF32 concerns FP32 GEMMs, and llm.c computes in BF16")),
    ("-w", choice("master-weights", {"1": "fp32", "0": "bf16"}, "must be 0 or 1")),
    ("-ge", nothing("names an implementation of GELU in llm.c")),
    ("-z", to("zero", lambda value: max(1, whole(value)))),
    ("-r", choice("recompute", {"0": "none", "1": "swiglu", "2": "swiglu"}, "must be 0, 1 or 2")),
    ("-pn", fact("ranks", positive)),
    ("-pr -pg -pi -pm -ps -pp -pf", LAUNCHED),
)


def position(words):
    """Returns where a command names llm.c's program, or None if it does not start it."""
    for at, word in enumerate(words):
        if re.search(rf"(^|/){PROGRAM}$", word):
            first = words[0].rpartition("/")[2]
            return at if at == 0 or first in LAUNCHERS else None
    return None


def derive(run):
    tokens(run)
    steps(run)
    derived.batches(run)
    derived.length(run)
    if run.flag("schedule") == "constant":
        for name in ("warmup_steps", "final_fraction"):
            run.answer(name, NO_EFFECT, "llm.c's constant schedule ignores it")
        for name in ("warmup_steps", "final_fraction"):
            run.facts.pop(name, None)
        run.flags["warmup"] = (0, None)
    derived.schedule(run)
    if "final_fraction" in run.facts:
        run.map("final_fraction", "final-fraction", run.fact("final_fraction"))
    model(run)
    kept(run)
    spikes(run)
    watch(run)
    run.flags.setdefault("precision", ("bf16", None))
    run.flags.setdefault("device", ("cuda", None))


def tokens(run):
    """Converts the tokens of a step to sequences."""
    if "step_tokens" not in run.facts:
        return
    count, setting = run.facts["step_tokens"]
    length = run.flag("seq-len")
    if count == -1:
        run.say(setting, NO_EFFECT, "gradients are not accumulated")
    elif not length:
        run.say(setting, REFUSED, "needs a sequence length of at least 1")
    elif count % length:
        run.say(setting, REFUSED, f"must be a multiple of the sequence length {length}; choose other numbers")
    else:
        run.facts["global_batch"] = (count // length, setting)


def steps(run):
    count, setting = run.facts["max_steps"]
    if count == -1 and "steps" not in run.facts:
        run.say(setting, REFUSED, "one epoch: " + derived.NEEDS_STEPS)
    elif count == -1:
        run.say(setting, NO_EFFECT, "the number of steps is set")
    else:
        run.put_fact("steps", count, setting)


def model(run):
    """Chooses the preset of a descriptor such as d12."""
    descriptor, setting = run.facts["descriptor"]
    depth = re.fullmatch(r"(?:gpt2:)?(d\d+)", descriptor)
    preset = PRESETS.get(depth and depth[1])
    if preset:
        run.put_flag("model", preset, setting, "random weights")
    elif depth or descriptor.startswith("gpt3:"):
        run.say(setting, REFUSED, NO_PRESET)
    else:
        run.say(setting, REFUSED, "checkpoints of llm.c are not read: convert it to a Hugging Face folder with its "
                                  "export_hf.py, and pass --model hf:FOLDER")


def kept(run):
    """Derives which checkpoints are kept: llm.c keeps all, or the newest and those of major steps."""
    every, count, major = run.flag("checkpoint-every", 0), run.fact("kept", 0), run.fact("major", 0)
    if every == 0:
        for name in ("kept", "major"):
            run.answer(name, NO_EFFECT, "no checkpoints")
    elif count == 0:
        run.map("kept", "keep-every", every, "all checkpoints")
        run.answer("major", NO_EFFECT, "all checkpoints are kept")
    else:
        run.map("kept", "keep-last", max(2, count), "" if count > 1 else "the minimum is 2")
        if "major" in run.facts:
            run.map("major", "keep-every", major)


def spikes(run):
    loss, norm = run.fact("loss_limit", 0), run.fact("norm_limit", 0)
    names = [name for name in ("loss_limit", "norm_limit") if name in run.facts]
    for name in names:
        if loss == norm == 0:
            run.answer(name, NO_EFFECT, "off")
        elif loss == norm:
            run.answer(name, MAPPED, f'on-spike = "skip", spike-threshold = {loss:g}; limits are above the median')
        else:
            run.answer(name, REFUSED, "one threshold applies to loss and gradient norm: pass --on-spike skip and "
                                      "--spike-threshold")
    if loss == norm != 0:
        run.flags |= {"on-spike": ("skip", None), "spike-threshold": (loss, None), "spike-window": (128, None)}


def watch(run):
    """Derives validation, HellaSwag and samples, which llm.c measures before, during and after the run."""
    if run.fact("validation_batches") == -1:
        run.answer("validation_batches", REFUSED, "-1 means the whole split; pass its number of batches with "
                                                  "--validation-batches")
    else:
        run.map("validation_batches", "validation-batches", run.fact("validation_batches"))
    if run.fact("hellaswag", 0):
        run.map("hellaswag", "hellaswag", HELLASWAG)
        run.flags["hellaswag-questions"] = (QUESTIONS, None)
    else:
        run.answer("hellaswag", NO_EFFECT, "off")
    every = run.fact("sample_every")
    if every == 0:
        run.map("sample_every", "sample", 0, "no samples")
        run.answer("sample", NO_EFFECT, "no samples")
        return
    run.map("sample", "sample", run.fact("sample"))
    if every == run.flag("evaluate-every"):
        run.map("sample_every", "sample-each", True)
    else:
        run.answer("sample_every", NO_EFFECT, "the run ends with a sample; for one at each evaluation, pass "
                                              "--sample-each")

"""Tests that every flag of train_llama changes the expected values in metrics.jsonl, and no earlier ones.

    flags_test.py PATH_TO_TRAIN_LLAMA

Computes what the metrics must be from the flags and the text.
"""

import json
import math
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

program = os.path.realpath(sys.argv[1])
scratch = tempfile.TemporaryDirectory()
os.chdir(scratch.name)
failures = []
case = ""


def check(condition, *what):
    if not condition:
        failures.append(f"{case}: {' '.join(str(w) for w in what)}")


def near(a, b, tolerance=1e-9):
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


class Run:
    """A finished run: its events, its exit code and what it printed."""

    count = 0
    defaults = {"data": "words.txt", "precision": "bf16", "batch": 1, "seq-len": 16, "steps": 4,
                "warmup": 0, "learning-rate": 1e-2, "validation-batches": 1, "sample": 0,
                "threads": 1}

    def __init__(self, name, **flags):
        global case
        case = name
        Run.count += 1
        self.flags = {**Run.defaults, **{key.replace("_", "-"): value for key, value in flags.items()},
                      "out": f"flags/{Run.count}"}
        command = [program] + [f"--{key}={value}" for key, value in self.flags.items()
                               if value is not None]
        begin = time.monotonic()
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        self.wall = time.monotonic() - begin
        self.code, self.out = done.returncode, done.stdout
        assert self.code in (0, 3, 5), f"{name}: exit code {self.code}: {done.stderr.decode()}"
        with open(self.flags["out"] + "/metrics.jsonl", encoding="utf-8") as file:
            self.lines = [json.loads(line) for line in file]
        self.head, self.end = self.lines[0], self.lines[-1]
        self.steps = self.of("step")
        self.evaluations = self.of("evaluation")

    def of(self, event):
        return [line for line in self.lines if line["event"] == event]

    def column(self, key):
        return [step[key] for step in self.steps]

    def same_until(self, other, step, key="loss"):
        """The first `step` values are bitwise equal, and a later one differs."""
        mine, others = self.column(key), other.column(key)
        check(mine[:step] == others[:step], key, "differs before step", step + 1, mine, others)
        check(mine[step:] != others[step:], key, "is the same after step", step, mine)


random.seed(1)
words = "the a small large model trains learns number step loss eight bits scale of and in".split()
with open("words.txt", "w") as file:
    file.write(" ".join(random.choice(words) for _ in range(1000)))
words_bytes = len(open("words.txt").read())
# Windows of one letter have another gradient than windows of many.
with open("halves.txt", "wb") as file:
    file.write(b"a" * 4096 + bytes(random.randrange(33, 127) for _ in range(4096)) + b"a" * 1024)
with open("train_a_then_b.txt", "w") as file:
    file.write("a" * 9000 + "b" * 1000)
with open("only_a.txt", "w") as file:
    file.write("a" * 3001)

base = Run("the base")

# --- what is not said ------------------------------------------------------------------------
# The defaults that docs/trainer.md names, but for those that every run here sets.
defaults = {"model": "llama_tiny", "device": "cpu", "recompute": "none", "weight-copies": "kept",
            "deterministic": False, "head-chunk": 0, "zero": 1, "gather": "stored", "reduce": "stored", "tensor-parallel": 1,
            "lora": 0,
            "comm-timeout": 600, "check-replicas": 0,
            "optimizer": "adamw", "micro-batches": 1, "most-documents": 0, "validation-fraction": 0.1,
            "schedule": "cosine", "final-fraction": 0.1, "decay-fraction": 0.2, "weight-decay": 0.1,
            "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "max-gradient-norm": 1, "master-weights": "auto",
            "moments": "auto", "offload": "none", "seed": 1, "max-time": 0, "max-skipped": 10,
            "on-spike": "off", "spike-threshold": 8, "spike-window": 50, "max-rollbacks": 3, "no-out": False, "verbose": False, "log-every": 1,
            "evaluate-every": 100, "sample-each": False, "operands-every": 50, "hash-every": 0, "temperature": 0.8,
            "timeline-steps": 3, "checkpoint-every": 0, "keep-last": 2, "keep-every": 0,
            "keep-best": False}
case = "the defaults"
with open(base.flags["out"] + "/config.toml", encoding="utf-8") as file:
    saved = dict(line.rstrip("\n").split(" = ", 1) for line in file)
for key, value in defaults.items():
    check(key in saved and json.loads(saved[key]) == value, key, saved.get(key))
check(set(saved) == {*defaults, *base.flags}, "other choices", set(saved) ^ {*defaults, *base.flags})

# --- spikes ----------------------------------------------------------------------------------
def limit(values, threshold):
    """Median and median absolute deviation, as in docs/trainer.md."""
    median = statistics.median(values)
    sigma = 1.4826 * statistics.median(abs(value - median) for value in values)
    return median + threshold * max(sigma, 0.02 * abs(median))


run = Run("--on-spike skip", steps=14, on_spike="skip", spike_threshold=0.01, spike_window=3,
          max_skipped=14)
applied = []
spikes = {event["step"]: event for event in run.of("spike")}
for step in run.steps:
    values = [(line["loss"], line["gradient_norm"]) for line in applied[-3:]]
    limits = [limit(column, 0.01) for column in zip(*values)] if len(values) == 3 else [math.inf] * 2
    is_spike = step["loss"] > limits[0] or step["gradient_norm"] > limits[1]
    check(step["skipped"] == is_spike == (step["step"] in spikes), step, limits)
    if is_spike:
        check(near(spikes[step["step"]]["loss_limit"], limits[0]), spikes[step["step"]])
    else:
        applied.append(step)
check(len(spikes) > 1, "there are no spikes")
run = Run("--max-rollbacks", steps=60, on_spike="rollback", spike_threshold=0.001, spike_window=3,
          checkpoint_every=2, max_rollbacks=1)
check(run.code == 5 and run.end["end"] == "spike", run.code, run.end)
check([event["action"] for event in run.of("spike")] == ["rollback", "stop"], run.of("spike"))
(events,) = pathlib.Path(run.flags["out"]).glob("events.out.tfevents.*")
starts = events.read_bytes().count(bytes.fromhex("3a020801"))  # Event.session_log: START
check(starts == 3, f"TensorBoard is told {starts} times that steps begin, not for the run, its first step and anew")
run = Run("--on-spike stop", steps=60, on_spike="stop", spike_threshold=0.001, spike_window=3)
check(run.code == 5 and run.end["steps"] == run.steps[-1]["step"] - 1, run.code, run.end)

# --- checkpoints -----------------------------------------------------------------------------


def listed(folder, *more):
    """The rows of --list-checkpoints: step, validation loss and name."""
    global case
    case = "--list-checkpoints"
    done = subprocess.run([program, "--list-checkpoints", "--out", folder, *more],
                          capture_output=True, text=True, timeout=60, check=False)
    check(done.returncode == 0 and done.stderr == "", done)
    rows = [[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines()]
    if len(rows) > 1:
        check(len({line.rindex("|") for line in done.stdout.splitlines()}) == 1, "is no table",
              done.stdout)
    return [(int(row[0]), row[3], row[-1]) for row in rows[1:]]


check(listed(base.flags["out"]) == [], "the base has checkpoints")
saved_run = Run("--checkpoint-every", steps=9, evaluate_every=2, checkpoint_every=2)
check([row[0] for row in listed(saved_run.flags["out"])] == [8, 9], listed(saved_run.flags["out"]))
losses = {e["step"]: f"{e['loss']:.4f}" for e in saved_run.evaluations}
check([row[1] for row in listed(saved_run.flags["out"])] == [losses[8], losses[9]], losses)
events = saved_run.of("checkpoint")
check([e["step"] for e in events] == [2, 4, 6, 8, 9], events)
check(all(e["error"] == "" and e["bytes"] > 0 for e in events), events)
run = Run("--keep-last", steps=9, checkpoint_every=2, keep_last=3)
check([row[0] for row in listed(run.flags["out"])] == [6, 8, 9], listed(run.flags["out"]))
run = Run("--keep-every", steps=9, checkpoint_every=2, keep_every=4)
check([row[0] for row in listed(run.flags["out"])] == [4, 8, 9], listed(run.flags["out"]))
# A rate that destroys what the first steps learn.
run = Run("--keep-best", steps=9, evaluate_every=1, checkpoint_every=1, keep_best="true",
          learning_rate=0.3)
best = min(run.evaluations[1:], key=lambda e: e["loss"])["step"]
check([row[0] for row in listed(run.flags["out"])] == sorted({best, 8, 9}), best,
      listed(run.flags["out"]))
check(best < 8, "the best is among the last", best)

# --- the rate --------------------------------------------------------------------------------


def rate(step, flags):
    peak, warmup, steps = flags["learning-rate"], flags["warmup"], flags["steps"]
    final = flags.get("final-fraction", 0.1)
    if step <= warmup:
        return peak * step / warmup
    at = (step - warmup) / (steps - warmup)
    kind = flags.get("schedule", "cosine")
    if kind == "constant":
        height = 1
    elif kind == "linear":
        height = 1 - at
    elif kind == "cosine":
        height = (math.cos(math.pi * at) + 1) / 2
    else:
        falling = flags.get("decay-fraction", 0.2) * steps  # steps at the end that decay
        height = min(1, (steps - step) / falling) if falling else 1
    return peak * (final + (1 - final) * height)


for flags in ({"schedule": "cosine"}, {"schedule": "linear", "warmup": 3},
              {"schedule": "constant", "warmup": 2}, {"schedule": "wsd", "warmup": 1},
              {"schedule": "wsd", "decay-fraction": 0.6, "final-fraction": 0.25},
              {"final-fraction": 0.5, "warmup": 4}, {"learning-rate": 3e-4, "final-fraction": 0}):
    run = Run(f"the rate with {flags}", **{"steps": 10, **flags})
    for line in run.steps:
        expected = rate(line["step"], run.flags)
        check(near(line["learning_rate"], expected, 1e-12) or
              abs(line["learning_rate"] - expected) < 1e-15,
              "step", line["step"], "has the rate", line["learning_rate"], "not", expected)

# The rate of the column is the one that the step takes: at step 1 both runs have half of 2e-2.
flat = Run("the rate that is used", schedule="constant", learning_rate=1e-2)
rising = Run("the rate that is used", schedule="constant", learning_rate=2e-2, warmup=2)
check(near(rising.steps[0]["learning_rate"], flat.steps[0]["learning_rate"]), "other rates")
rising.same_until(flat, 2)

# --- AdamW -----------------------------------------------------------------------------------
Run("--weight-decay", weight_decay=5).same_until(base, 1)
Run("--epsilon", epsilon=1).same_until(base, 1)
Run("--beta1", beta1=0.5).same_until(base, 1)
Run("--beta2", beta2=0.5).same_until(base, 1)
Run("--max-gradient-norm", max_gradient_norm=1e-3).same_until(base, 1)
check(base.steps[0]["gradient_norm"] > 1, "nothing was clipped")
never, off = (Run("--max-gradient-norm", max_gradient_norm=value) for value in (1e6, 0))
check(never.column("loss") == off.column("loss"),
      "0 clips other than a bound that is never reached")
# Gradients divided by themselves stay near 1, an average divided by the newest does not.
tame = Run("beta1 and beta2", beta1=0, beta2=0.999, steps=8, learning_rate=1e-3)
wild = Run("beta1 and beta2", beta1=0.999, beta2=0, steps=8, learning_rate=1e-3)
check(tame.steps[-1]["loss"] < tame.steps[0]["loss"] < wild.steps[-1]["loss"],
      "the moments are exchanged", tame.column("loss"), wild.column("loss"))

# --- Muon ------------------------------------------------------------------------------------
muon = Run("--optimizer muon", optimizer="muon")
muon.same_until(base, 1)
check(muon.head["optimizer"] == "Muon with fp32 master weights and fp32 moments", muon.head)
check(muon.end["peak_bytes"] < base.end["peak_bytes"], "Muon has a moment less")
check(muon.steps[-1]["loss"] < muon.steps[0]["loss"], "Muon does not learn")
for name, value in (("momentum", 0.5), ("nesterov", "off"), ("iterations", 2), ("rate", "original"),
                    ("adamw_rate", 0.5)):
    Run("--muon-" + name, optimizer="muon", **{"muon_" + name: value}).same_until(muon, 1)
Run("--weight-decay with Muon", optimizer="muon", weight_decay=5).same_until(muon, 1)
Run("--beta1 with Muon", optimizer="muon", beta1=0.5).same_until(muon, 1)

# --- formats of the state --------------------------------------------------------------------
narrow = Run("--master-weights and --moments", master_weights="bf16", moments="bf16")
narrow.same_until(base, 1)
check(base.head["optimizer"] == "AdamW with fp32 master weights and fp32 moments", base.head)
check(narrow.head["optimizer"] == "AdamW with bf16 master weights and bf16 moments", narrow.head)
check(narrow.end["peak_bytes"] < base.end["peak_bytes"] - 6 * base.head["parameters"], "peak")
wide = Run("the optimizer of FP32 weights", precision="fp32")
check(wide.head["optimizer"] == "AdamW with fp32 weights and fp32 moments", wide.head)
moments = Run("--moments", moments="bf16")
check(moments.head["optimizer"] == "AdamW with fp32 master weights and bf16 moments", moments.head)
eight = Run("--moments in 8 bits", moments="8bit")
eight.same_until(base, 1)
check(eight.head["optimizer"] == "AdamW with fp32 master weights and 8-bit moments", eight.head)
check(eight.end["peak_bytes"] < moments.end["peak_bytes"] - 1.9 * base.head["parameters"], "peak")

away = Run("--offload", offload="optimizer")
check(away.column("loss") == base.column("loss"), "another loss", away.column("loss"))
check(away.end["validation_loss"] == base.end["validation_loss"], "another validation loss")
check(away.end["peak_bytes"] < base.end["peak_bytes"], "peak")
state = 12 * base.head["parameters"]
check(base.end["host_bytes"] == 0 and state <= away.end["host_bytes"] < 1.01 * state, "host", away.end)
check(b", host memory " in away.out and b", host memory " not in base.out, "memory is not printed")

# --- the seed --------------------------------------------------------------------------------
check(Run("--seed 1", seed=1).column("loss") == base.column("loss"), "the seed is not 1 unless said")
Run("--seed of batches and weights", seed=2).same_until(base, 0)
# Where all windows are equal only the weights can differ.
one = Run("--seed of weights", data="only_a.txt")
Run("--seed of weights", data="only_a.txt", seed=2).same_until(one, 0)
# Weights that hardly move: a window of one letter shows in the gradient, whatever the weights.
still = {"data": "halves.txt", "learning_rate": 1e-12, "steps": 12}


def kinds(run):
    norms = run.column("gradient_norm")
    middle = (max(norms) + min(norms)) / 2
    check(max(norms) > 1.5 * min(norms), "windows do not differ", norms)
    return [norm > middle for norm in norms]


check(kinds(Run("--seed of batches", **still)) != kinds(Run("--seed of batches", seed=2, **still)),
      "batches come in the same order")
# So hot that the weights do not matter.
hot = {"sample": 60, "temperature": 1e6, "steps": 1}
first, again = Run("--seed of the sample", **hot), Run("--seed of the sample", precision="fp32", **hot)
other = Run("--seed of the sample", seed=2, **hot)
check(first.end["sample"] == again.end["sample"] != other.end["sample"], "the sample's seed")
check(not any(byte < 32 and byte != 10 or byte == 127 for byte in first.out),
      "control bytes of the sample reach the terminal")
check(any(ord(character) < 32 and character not in "\n\t" for character in first.end["sample"]),
      "there were no control bytes")

# --- the sample ------------------------------------------------------------------------------
cold = Run("--temperature", sample=30, temperature=0)
warm = Run("--temperature", sample=30)
check(len(cold.end["sample"]) == 30, "not 30 tokens", cold.end["sample"])
check(len({first.end["sample"], cold.end["sample"], warm.end["sample"]}) == 3,
      "the temperature changes nothing")
check(warm.end["sample"] == Run("--temperature", sample=30, temperature=0.8).end["sample"],
      "the temperature is not 0.8 unless said")
check(base.end["sample"] == "", "a sample that was not asked for")

# --- shapes, text, memory --------------------------------------------------------------------
shaped = Run("--batch, --seq-len, --micro-batches", batch=2, seq_len=8, micro_batches=3)
wide = Run("--batch, --seq-len, --micro-batches", batch=6, seq_len=8)
for run, tokens in ((base, 16), (shaped, 48), (wide, 48)):
    for line in run.steps:
        check(near(line["tokens_per_second"] * line["milliseconds"] / 1000, tokens, 1e-6),
              "step", line["step"], "has not", tokens, "tokens")
for key in ("batch", "seq-len", "micro-batches"):
    name = {"seq-len": "sequence_length"}.get(key, key.replace("-", "_"))
    check(shaped.head[name] == shaped.flags[key], name, shaped.head)
check(near(shaped.steps[0]["loss"], wide.steps[0]["loss"], 1e-2) and
      near(shaped.steps[0]["gradient_norm"], wide.steps[0]["gradient_norm"], 5e-2),
      "micro-batches are not parts of a batch", shaped.steps[0], wide.steps[0])
windows = (words_bytes - shaped.head["validation_tokens"] - 1) / 8
check(near(shaped.steps[-1]["epoch"], 4 * 6 / windows, 2 / windows), "epoch", shaped.steps[-1])

for fraction in (0.1, 0.3):
    run = Run("--validation-fraction", validation_fraction=fraction, validation_batches=3, batch=2)
    check(run.head["validation_tokens"] == math.floor(fraction * words_bytes), run.head)
    check(run.head["training_tokens"] == words_bytes - run.head["validation_tokens"], run.head)
    check(run.evaluations[-1]["tokens"] == 3 * 2 * 16, run.evaluations)
whole = Run("--validation-batches", validation_batches=1000, batch=3)
check(whole.evaluations[-1]["tokens"] == whole.head["validation_tokens"] - 1, whole.evaluations)
check((whole.evaluations[-1]["tokens"] % (3 * 16)) != 0, "the last batch is not partial")

# A model that has seen nothing but a's knows nothing of b's.
split = Run("what validation reads", data="train_a_then_b.txt", steps=12, validation_batches=4)
check(split.steps[-1]["loss"] < 1 and split.end["validation_loss"] > 4,
      "validation is not the text's end", split.steps[-1]["loss"], split.end["validation_loss"])
# Of one letter, with weights that do not move, every loss is the same.
equal = Run("the mean of a validation", data="only_a.txt", learning_rate=1e-12,
            validation_batches=1000, batch=5)
check(near(equal.end["validation_loss"], equal.steps[0]["loss"], 2e-3), "validation",
      equal.end["validation_loss"], "training", equal.steps[0]["loss"])
check(equal.evaluations[-1]["tokens"] % (5 * 16) != 0, "the last batch is not partial")

plain = Run("recomputation", precision="fp8-delayed", batch=2, micro_batches=2)
for flag in ({"recompute": "block"}, {"weight-copies": "remade"}):
    run = Run(f"memory with {flag}", precision="fp8-delayed", batch=2, micro_batches=2, **flag)
    check(run.end["peak_bytes"] < plain.end["peak_bytes"], "not less memory")
    check(run.column("loss") == plain.column("loss"), "another loss")
on_host = Run("--offload activations", precision="fp8-delayed", batch=2, micro_batches=2,
              offload="activations")
check(on_host.end["peak_bytes"] < plain.end["peak_bytes"], "not less memory")
saved = plain.end["peak_bytes"] - on_host.end["peak_bytes"]
check(plain.end["host_bytes"] == 0 and on_host.end["host_bytes"] == saved, "host memory", on_host.end)
check(on_host.column("loss") == plain.column("loss"), "another loss")
check(on_host.end["validation_loss"] == plain.end["validation_loss"], "another validation loss")
halves = Run("--head-chunk", precision="fp8-delayed", batch=2, micro_batches=2, head_chunk=16)
check(halves.end["gemms_total"] == plain.end["gemms_total"] + 3, "the head's GEMMs", halves.end)
check(plain.head["precision"] == "fp8-delayed" and plain.head["gemms_fp8"] > 0, plain.head)
check(base.head["precision"] == "bf16" and base.head["gemms_fp8"] == 0, base.head)

# --- documents -------------------------------------------------------------------------------
# What follows a document's end is no target, and tokens see their own document alone.
space = ord(" ")
documents = Run("--document-end", document_end=space, most_documents=16)
documents.same_until(base, 0)
with open("words.txt", "rb") as file:
    held_out = file.read()[-documents.head["validation_tokens"]:][:documents.flags["seq-len"]]
targets = len(held_out) - held_out.count(space)
check([line["tokens"] for line in documents.evaluations] == [targets, targets], documents.evaluations)
check(0 < targets < base.evaluations[0]["tokens"] == len(held_out), targets, base.evaluations)
run = Run("an end of documents that the text lacks", document_end=0, most_documents=16)
check(run.column("loss") == base.column("loss"), "another loss")

# --- what is recorded, and when --------------------------------------------------------------
long = Run("what a run adds up to", steps=25, evaluate_every=10, operands_every=4,
           precision="fp8-blockwise", log_every=7, seq_len=32)
check([line["step"] for line in long.evaluations] == [0, 10, 20, 25], long.evaluations)
check([line["step"] for line in long.steps if "operands" in line] == [1, 4, 8, 12, 16, 20, 24, 25],
      "operands")
check([int(line.split()[1]) for line in long.out.decode().splitlines() if line.startswith("step ")]
      == [1, 7, 14, 21, 25], "printed steps")
for operand in long.steps[-1]["operands"]:
    block = "128x128" if operand["name"].endswith("weight") else "1x128"
    check(operand["granularity"] == block and operand["scale"] is None, operand)
for operand in plain.steps[-1]["operands"]:
    check(operand["granularity"] == "tensor" and operand["scale"] > 0, operand)
    check(operand["nonfinite"] == 0, operand)
for run in (base, long, shaped):
    milliseconds = run.column("milliseconds")
    tokens = run.head["batch"] * run.head["sequence_length"] * run.head["micro_batches"]
    losses = run.column("loss")[-20:]
    check(near(run.end["train_loss"], sum(losses) / len(losses)), "train_loss", run.end)
    check(run.end["validation_loss"] == run.evaluations[-1]["loss"], "validation_loss", run.end)
    check(near(run.end["seconds"], sum(milliseconds) / 1000), "seconds", run.end)
    check(near(run.end["tokens_per_second"],
               tokens * (len(milliseconds) - 1) / sum(milliseconds[1:]) * 1000),
          "tokens_per_second", run.end)
    check(0 < sum(milliseconds) / 1000 < run.wall, "steps took longer than the run")
    check(run.end["steps"] == len(run.steps) == run.flags["steps"] == run.head["steps"], run.end)
    check(run.end["end"] == "done", run.end)
check(len(Run("--evaluate-every 0", evaluate_every=0, steps=3).evaluations) == 1,
      "it evaluated between")
check(len(Run("--evaluate-every", evaluate_every=1, steps=3).evaluations) == 4, "evaluations")

with open("questions.jsonl", "w") as file:
    for number in range(9):
        endings = [" ".join(random.choices(words, k=2)) for _ in range(4)]
        file.write(json.dumps({"ctx": "the model", "endings": endings, "label": number % 4}) + "\n")
watched = {"steps": 4, "evaluate_every": 2, "batch": 4, "seq_len": 64}
watched, unwatched = (Run("--hellaswag and --sample-each", **watched, **more) for more in (
    {"hellaswag": "questions.jsonl", "hellaswag_questions": 5, "sample_each": "true", "sample": 8}, {}))
for event in ("hellaswag", "sample"):
    check([line["step"] for line in watched.of(event)] == [line["step"] for line in watched.evaluations],
          event, watched.of(event))
check(all(line["questions"] == 5 and 0 <= line["accuracy"] <= 1 for line in watched.of("hellaswag")),
      watched.of("hellaswag"))
check(all(len(line["text"]) == 8 for line in watched.of("sample")), watched.of("sample"))
check(watched.column("loss") == unwatched.column("loss"), "measurements change the loss")
check(watched.end["sample"] == watched.of("sample")[-1]["text"], "the summary has another sample")
case = "--sample-each prints each sample once"
printed = subprocess.run([program, *"--data only_a.txt --precision bf16 --batch 1 --seq-len 16 --steps 2 --warmup 0 "
                          "--evaluate-every 1 --sample 3 --temperature 0 --sample-each --no-out --threads 1 "
                          "--learning-rate 0.03".split()], capture_output=True, timeout=60, check=True).stdout
_, *samples = printed.split(b"sample at step ")
check(len(samples) == 3, printed)
text = samples[-1].split(b"|\n", 1)[1].splitlines()[0]
check(text and samples[-1].splitlines().count(text) == 1, text, printed)

for most in (2, 5):
    run = Run("--max-skipped", max_skipped=most, learning_rate=1e30, steps=40, schedule="constant",
              precision="fp8-tensorwise")
    check(run.code == 3 and run.end["end"] == "not finite", run.code, run.end)
    skipped = run.column("skipped")
    check(skipped[-most:] == [True] * most and not any(skipped[:-most][-1:]), skipped)
    for line in run.steps:
        if line["skipped"]:
            check(any(operand["nonfinite"] > 0 for operand in line["operands"]),
                  "no operand of step", line["step"], "says why")

# The ranks' test sees to what it compares; that changes no bit.
check(Run("--check-replicas", check_replicas=3).column("loss") == base.column("loss"), "a loss")

hashed = Run("--hash-every", hash_every=3, steps=7)
check([line["step"] for line in hashed.steps if "weights_hash" in line] == [3, 6], "hashes")
hashes = [line.get("weights_hash") for line in hashed.steps]
check(hashes[2] != hashes[5], "weights that do not move", hashes)
again = Run("--hash-every", hash_every=1, steps=7)
check([again.column("weights_hash")[i] for i in (2, 5)] == [hashes[2], hashes[5]], "other hashes")

for steps, asked, timed in ((6, 2, [2, 3]), (4, 9, [2, 3, 4]), (1, 3, [1])):
    run = Run("--timeline", timeline="timeline.json", timeline_steps=asked, steps=steps)
    events = [event for event in json.load(open("timeline.json"))["traceEvents"]
              if event["ph"] == "X"]
    whole = [event for event in events if event["name"] == "step"]
    check(len(whole) == len(timed), "steps", whole)
    check({event["pid"] for event in events} == {0}, "other ranks")
    line = run.of("timeline")[0]
    check([line["first_step"] + i for i in range(line["steps"])] == timed, line)
    check(line["exposed_communication_milliseconds"] == 0, "one rank communicates", line)
    check(near(line["milliseconds"], sum(event["dur"] for event in whole) / len(whole) / 1000, 1e-6),
          line)
    for event in whole:
        parts = [part for part in events if part["cat"] == "compute"
                 and event["ts"] <= part["ts"] <= event["ts"] + event["dur"]]
        names = [part["name"] for part in parts]
        for name in ("forward blocks.0", "backward blocks.0", "optimizer"):
            check(names.count(name) == 1, name, names)
        check(sum(part["dur"] for part in parts) > 0.8 * event["dur"], "time without a stage")
    os.remove("timeline.json")
check(not base.of("timeline"), "a timeline that was not asked for")
run = Run("--timeline of a run that goes on", timeline="timeline.json", timeline_steps=2, steps=13,
          resume=saved_run.flags["out"] + "/checkpoints/step-00000009")
lines = run.of("timeline")
check([(line["first_step"], line["steps"]) for line in lines] == [(11, 2)], lines)
check(os.path.exists("timeline.json"), "there is no file")

# --- Hugging Face folders --------------------------------------------------------------------


def tensors(folder):
    """The tensors of a safetensors file, by name: their format, shape and bytes."""
    with open(folder + "/model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


saved = Run("--save-hf", save_hf="hf/saved", steps=8)
check(saved.column("loss") == Run("no --save-hf", steps=8).column("loss"), "another loss")
with open("hf/saved/config.json", encoding="utf-8") as file:
    config = json.load(file)
check(config["model_type"] == "llama" and config["hidden_size"] == 128 and
      config["max_position_embeddings"] == 16, config)
check(tensors("hf/saved")["model.embed_tokens.weight"][:2] == ("BF16", [256, 128]), "the embedding")
# Weights that hardly move are those that were saved, whatever the seed.
loaded = Run("--model hf:", model="hf:hf/saved", seed=2, steps=1, learning_rate=1e-12, weight_decay=0,
             seq_len=8, save_hf="hf/again")
check(loaded.head["model"] == "llama_tiny", loaded.head)
check(tensors("hf/again") == tensors("hf/saved"), "other weights")
with open("hf/again/config.json", encoding="utf-8") as file:
    check(json.load(file) == config, "another configuration")
longer = Run("--model hf:", model="hf:hf/saved", steps=1, learning_rate=1e-12)
check(longer.end["validation_loss"] == saved.end["validation_loss"], "another loss")

checkpoints = Run("--export-hf", save_hf="hf/end", steps=8, checkpoint_every=4)
for resume in (checkpoints.flags["out"], checkpoints.flags["out"] + "/checkpoints/step-00000008/"):
    case = "--export-hf of " + resume
    shutil.rmtree("hf/exported", ignore_errors=True)
    done = subprocess.run([program, "--export-hf", "hf/exported", "--resume", resume],
                          capture_output=True, text=True, timeout=60, check=False)
    check(done.returncode == 0 and done.stderr == "" and "of step 8" in done.stdout, done)
    check(tensors("hf/exported") == tensors("hf/end"), "other weights")
    with open("hf/exported/config.json", encoding="utf-8") as file, \
            open("hf/end/config.json", encoding="utf-8") as end:
        check(file.read() == end.read(), "another configuration")
for arguments, said in ((["--export-hf", "hf/new"], "--resume with its path"),
                        (["--export-hf", "hf/new", "--resume", "none"], "there is no such folder"),
                        (["--export-hf", "hf/exported", "--resume", checkpoints.flags["out"]],
                         "already exists")):
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60,
                          check=False)
    check(done.returncode == 2 and said in done.stderr and not os.path.exists("hf/new"), done)

# --- on a GPU --------------------------------------------------------------------------------


def gpus():
    """The number of GPUs of this program and machine, and a note if there are none."""
    help_text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    if not any("--device" in line and "cuda" in line for line in help_text.splitlines()):
        return 0, "the program has no cuda device"
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0, "there is no nvidia-smi"
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        count = min(count, len([name for name in visible.split(",") if name]))
    return count, "nvidia-smi lists no GPU, or CUDA_VISIBLE_DEVICES names none"


def plans(run):
    """The line with the source of a run's GEMM algorithms."""
    lines = [line for line in run.out.decode().splitlines() if line.startswith("gemm plans: ")]
    check(len(lines) == 1, "not one line of plans", lines)
    return lines[0] if lines else ""


count, why_none = gpus()
if count == 0:
    print(f"skipped: the flags of the cuda device: {why_none}")
else:
    on_gpu = {"device": "cuda", "threads": None, "precision": "fp8-tensorwise", "batch": 2,
              "seq_len": 128, "evaluate_every": 0}
    first = Run("the cuda device", **on_gpu)
    check(first.head["device"] == "cuda", first.head)
    check("rehearsal" not in plans(first) and "by heuristics" in plans(first), plans(first))
    # One more than there are: whoever ignores the flag trains on the first.
    case = "--gpu"
    refused = subprocess.run([program, "--data", "words.txt", "--device", "cuda", "--gpu", str(count),
                              "--precision", on_gpu["precision"], "--no-out"], capture_output=True, text=True, timeout=60, check=False)
    check(refused.returncode == 2 and refused.stderr.count("\n") == 1, refused)
    check(f"for GPU {count};" in refused.stderr, refused.stderr)
    Run("--gpu", **on_gpu, gpu=count - 1)

    fixed = [Run("--deterministic", **on_gpu, deterministic="true") for _ in range(2)]
    for key in ("loss", "gradient_norm"):
        check(fixed[0].column(key) == fixed[1].column(key), key, "differs from run to run")

    file = {**on_gpu, "gemm_plans": "kept-plans"}
    chosen = Run("--gemm-plans", **file)
    check("chosen in a rehearsal" in plans(chosen), plans(chosen))
    kept = open("kept-plans", "rb").read()
    taken = Run("--gemm-plans", **file)
    check("taken from records" in plans(taken) and "rehearsal" not in plans(taken), plans(taken))
    check(open("kept-plans", "rb").read() == kept, "a run that takes all plans changes them")
    # Nothing is tried in a deterministic run, which takes what stands in a file all the same.
    for name in ("no-plans", "kept-plans"):
        run = Run(f"--deterministic --gemm-plans {name}",
                  **{**on_gpu, "gemm_plans": name, "deterministic": "true"})
        wanted = "by heuristics" if name == "no-plans" else "taken from records"
        check("rehearsal" not in plans(run) and wanted in plans(run), plans(run))

for failure in failures:
    print(f"FAILED: {failure[:2000]}", file=sys.stderr)
print(f"{Run.count} runs", file=sys.stderr)
os.chdir("/")
sys.exit(1 if failures else 0)

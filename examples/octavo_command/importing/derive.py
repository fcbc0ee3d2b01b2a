"""Computes the flags that depend on several keys, from facts with the same names for all trainers."""
import math

from octavo_command.importing import shapes
from octavo_command.importing.run import MAPPED, NO_EFFECT, REFUSED, toml

NEEDS_RANKS = "depends on the number of ranks, which is unknown; pass --ranks N"
NEEDS_STEPS = "depends on the number of steps, which is unknown; pass --steps N"


def ranks_of(run):
    """Returns the number of ranks, or None if it is unknown."""
    if "ranks" in run.facts:
        return run.fact("ranks")
    if "ranks_per_node" in run.facts:
        return run.fact("ranks_per_node") * run.fact("nodes", 1)
    return None


def launch(run):
    ranks = ranks_of(run)
    for name in ("ranks", "ranks_per_node", "nodes"):
        run.answer(name, MAPPED, f"mpirun -n {ranks}" if ranks else "the launch command sets the number of ranks")
    tensor = run.fact("tensor_parallel", 1)
    if "tensor_parallel" in run.facts:
        if tensor == 1:
            run.answer("tensor_parallel", NO_EFFECT, "1 is the default")
        else:
            run.map("tensor_parallel", "tensor-parallel", tensor)


def batches(run):
    """Derives --micro-batches from the global batch, in sequences."""
    launch(run)
    if "accumulation" in run.facts:
        run.map("accumulation", "micro-batches", run.fact("accumulation"))
    if "global_batch" not in run.facts:
        return
    ranks, batch = ranks_of(run), run.flag("batch", 1)
    total = run.fact("global_batch")
    if min(batch, total) < 1:
        run.answer("global_batch", REFUSED, "needs batches of at least 1")
    elif "batch" not in run.flags:
        whole_batch(run, ranks)
    elif "micro-batches" in run.flags:
        if ranks and total != batch * run.flag("micro-batches") * ranks // run.fact("tensor_parallel", 1):
            run.answer("global_batch", REFUSED, "is not batch × micro-batches × ranks; leave one of them out")
        else:
            run.answer("global_batch", NO_EFFECT, "follows from batch × micro-batches × ranks")
    elif ranks is None:
        run.answer("global_batch", REFUSED, NEEDS_RANKS)
    else:
        groups = max(1, ranks // run.fact("tensor_parallel", 1))
        if total % (batch * groups):
            run.answer("global_batch", REFUSED,
                       f"must be a multiple of batch {batch} × {groups} ranks; choose other numbers")
        else:
            run.map("global_batch", "micro-batches", total // (batch * groups),
                    f"{total} = batch {batch} × micro-batches × {groups} ranks")


def whole_batch(run, ranks):
    """Derives --batch without a micro-batch, as DeepSpeed does: a rank's share of the global batch is not split further."""
    total, parts = run.fact("global_batch"), run.flag("micro-batches", 1)
    if ranks is None:
        run.answer("global_batch", REFUSED, NEEDS_RANKS)
        return
    groups = max(1, ranks // run.fact("tensor_parallel", 1))
    if parts < 1 or total % (parts * groups):
        run.answer("global_batch", REFUSED, f"must be a multiple of micro-batches {parts} × {groups} ranks; choose other "
                                            "numbers")
    else:
        run.map("global_batch", "batch", total // (parts * groups),
                f"{total} = batch × micro-batches {parts} × {groups} ranks")


def length(run):
    """Derives --steps, or --epochs of finetune_llama."""
    if "steps" in run.facts:
        run.map("steps", "steps", run.fact("steps"))
        for name in ("epochs", "samples"):
            run.answer(name, NO_EFFECT, "the number of steps is set")
    elif "samples" in run.facts:
        if run.fact("global_batch", 0) > 0:
            run.map("samples", "steps", max(1, run.fact("samples") // run.fact("global_batch")),
                    f"{run.fact('samples')} sequences in batches of {run.fact('global_batch')}")
        else:
            run.answer("samples", REFUSED, NEEDS_STEPS)
    elif "epochs" in run.facts:
        epochs = run.fact("epochs")
        if run.program != "finetune_llama":
            run.answer("epochs", REFUSED, "train_llama counts steps: pass --steps N")
        elif epochs != int(epochs) or epochs < 1:
            run.answer("epochs", REFUSED, "must be a whole number of epochs; pass --steps N")
        else:
            run.map("epochs", "epochs", int(epochs))


def common(run):
    """Derives the flags that no trainer of the run has derived, for example if a file configures only part of a run."""
    batches(run)
    length(run)
    schedule(run)
    precision(run)
    if "device" not in run.flags:
        run.flags["device"] = ("cuda", None)


def to_steps(run, name, total):
    """Converts a length that is known in steps, in sequences or as a fraction to steps.

    Returns it, its fact, and the reason if it is unknown.
    """
    for suffix in ("steps", "samples", "fraction"):
        fact = f"{name}_{suffix}"
        if fact not in run.facts:
            continue
        value = run.fact(fact)
        if suffix == "steps":
            return value, fact, ""
        if suffix == "samples":
            batch = run.fact("global_batch")
            return (value // batch if batch else None), fact, NEEDS_STEPS
        return (math.ceil(value * total) if total else 0 if value == 0 else None), fact, NEEDS_STEPS
    return None, "", ""


def schedule(run):
    """Derives the warm-up, the end of the decay, and the final learning rate."""
    total = run.flag("steps")
    warmup, fact, why = to_steps(run, "warmup", total)
    if fact and warmup is None:
        run.answer(fact, REFUSED, why)
    elif fact:
        run.map(fact, "warmup", warmup)
        for other in ("warmup_steps", "warmup_samples", "warmup_fraction"):
            if other != fact:
                run.answer(other, NO_EFFECT, f"the warm-up is set by {run.facts[fact][1].key}")
    kind = run.flag("schedule", "cosine")
    decay, fact, why = to_steps(run, "decay", total)
    if fact:
        if decay is None or total is None:
            run.answer(fact, REFUSED, why or NEEDS_STEPS)
        elif kind == "constant" or decay == total:
            run.answer(fact, NO_EFFECT, "the schedule ends with the last step")
        else:
            run.answer(fact, REFUSED, f"the schedule ends with the last step, {total}, and not with step {decay}")
    falling, fact, why = to_steps(run, "falling", total)
    if fact and kind != "wsd":
        run.answer(fact, NO_EFFECT, "the schedule is not wsd")
    elif fact:
        if falling is None or not total:
            run.answer(fact, REFUSED, why or NEEDS_STEPS)
        else:
            run.map(fact, "decay-fraction", falling / total)
    final(run)


def final(run):
    rate = run.flag("learning-rate")
    if "min_lr" in run.facts:
        least = run.fact("min_lr")
        if run.flag("schedule") == "constant":
            run.answer("min_lr", NO_EFFECT, "the schedule is constant")
        elif not rate and run.facts["min_lr"][1].is_default:
            run.answer("min_lr", NO_EFFECT, "there is no learning rate")
        elif not rate or least > rate:
            run.answer("min_lr", REFUSED, "must be at most the learning rate")
        else:
            run.map("min_lr", "final-fraction", float(f"{least / rate:.12g}"), f"{least:g} / {rate:g}")


def decay(run):
    """Replaces a schedule whose final fraction is 1, which the trainers refuse, by a constant schedule."""
    fraction, setting = run.flags.get("final-fraction", (0, None))
    if fraction < 1:
        return
    del run.flags["final-fraction"]
    if fraction > 1:
        run.say(setting, REFUSED, "must be at most 1: the learning rate does not rise after the warm-up")
        return
    run.say(setting, MAPPED, 'schedule = "constant"; the learning rate does not decay')
    _, kind = run.flags.pop("schedule", (None, None))
    if kind is not None:
        run.say(kind, NO_EFFECT, f"{setting.key} = 1: the learning rate does not decay")
    run.flags["schedule"] = ("constant", setting)


NAMED = {"delayed": ("fp8-delayed", "Delayed"), "tensorwise": ("fp8-tensorwise", "Tensorwise"),
         "rowwise": ("fp8-rowwise", "Rowwise"), "blockwise": ("fp8-blockwise", "Blockwise")}
FP8_FACTS = ("fp8_recipe", "amax_history", "amax_algorithm", "fp8_margin", "bf16_edges", "bf16_first", "bf16_last")


def precision(run):
    """Derives --precision from the facts about FP8, BF16 and FP16."""
    if run.fact("fp8"):
        return fp8(run)
    for name in FP8_FACTS:
        run.answer(name, NO_EFFECT, "FP8 is off")
    run.answer("fp8", NO_EFFECT, "off")
    if run.fact("fp16"):
        run.answer("fp16", REFUSED, "FP16 with loss scaling is not supported; use bf16")
        run.answer("bf16", NO_EFFECT, "off")
        return None
    run.answer("fp16", NO_EFFECT, "off")
    if run.fact("bf16"):
        run.map("bf16", "precision", "bf16")
    elif "bf16" in run.facts:
        run.map("bf16", "precision", "fp32")
    return None


def fp8(run):
    for name in ("fp16", "bf16"):
        run.answer(name, NO_EFFECT, "every FP8 recipe stores BF16" if run.fact(name) else "off")
    if run.fact("fp16"):
        run.answer("fp16", REFUSED, "FP8 recipes store BF16, not FP16")
    recipe, formats = run.fact("fp8_recipe", "delayed"), run.fact("fp8")
    if recipe not in NAMED:
        run.answer("fp8_recipe", REFUSED, {
            "mxfp8": "GPUs multiply MX blocks only from compute capability 10.0 on; see --precision mxfp8",
        }.get(recipe, "must be delayed, tensorwise, rowwise or blockwise here"))
        run.answer("fp8", REFUSED, "its recipe is not supported")
        for name in FP8_FACTS[1:]:
            run.answer(name, NO_EFFECT, "the recipe is not supported")
        return
    name, scaling = NAMED[recipe]
    if recipe == "delayed":
        history, algorithm = run.fact("amax_history", 1024), run.fact("amax_algorithm", "max")
        margin = run.fact("fp8_margin", 0)
        if (history, algorithm, margin) != (1024, "max", 0):
            name, scaling = None, f"DelayedScaling<{history}, AmaxReduction::{algorithm}, Margin{{{margin}}}>"
    else:
        for fact in ("amax_history", "amax_algorithm", "fp8_margin"):
            run.answer(fact, NO_EFFECT, f"{recipe} scaling keeps no history")
    wide = formats == "e4m3" and recipe != "blockwise"
    policy = f"Fp8Recipe<{scaling}{', E4M3Only' if wide else ''}>"
    first, last = edges(run)
    if wide:
        name = None
    if first or last:
        named = name in ("fp8-delayed", "fp8-tensorwise") and (first, last) == (1, 1)
        name = name + "-bf16-edges" if named else None
        parts = [f"First<{first}, Bf16>"] * bool(first) + [policy] + [f"Last<{last}, Bf16>"] * bool(last)
        policy = f"Layerwise<{', '.join(parts)}>"
    elif run.fact("fp8_head"):
        name = name + "-fp8-head" if name else None
        policy = f"Layerwise<{policy}, Head<Fp8Recipe<Rowwise>>>"
    if formats == "hybrid" and recipe == "blockwise":
        run.answer("fp8", REFUSED, "blockwise scaling uses E4M3 for gradients also; use the format e4m3")
        run.flags.setdefault("precision", (name or policy, None))
    else:
        command = "octavo train" if run.program == "train_llama" else "octavo finetune"
        run.map("fp8", "precision", name or policy, "" if name else f"a type, which `{command}` builds")
    for fact in FP8_FACTS:
        if fact in run.facts and not run.facts[fact][1].answer:
            run.answer(fact, MAPPED, f"precision = {toml(name or policy)}")


def edges(run):
    """Returns the numbers of first and last blocks in BF16."""
    if not run.fact("bf16_edges"):
        for name in ("bf16_edges", "bf16_first", "bf16_last"):
            run.answer(name, NO_EFFECT, "all blocks run in FP8")
        return 0, 0
    return run.fact("bf16_first", 1), run.fact("bf16_last", 1)


def model(run):
    """Chooses the preset with the shape that the facts describe."""
    known = {name: run.fact(name) for name in shapes.FIELDS if name in run.facts}
    if not known:
        return
    preset, wrong = shapes.nearest(known, run.fact("experts", 0))
    if preset is None:
        for name in known:
            run.answer(name, REFUSED, "no preset has this shape; write its config.json into a folder, and "
                                      "pass --model shape:FOLDER")
        return
    for name in known:
        if name in wrong:
            found = f"{preset} has {shapes.WORDS[name]} = {toml(shapes.PRESETS[preset][name])}"
            if name == "rope_theta" and not known[name]:
                found = f"{preset} has rotary positions, but these settings select learnt positions"
            run.answer(name, REFUSED, f"{found}; write a config.json for the shape into a folder, and pass --model "
                                      "shape:FOLDER")
        else:
            run.answer(name, MAPPED, f'model = "{preset}"')
    run.flags.setdefault("model", (preset, None))

"""Flags that have an effect only with others: the trainers refuse them alone (examples/train_llama/needs.hpp)."""
from octavo_command.importing.run import NO_EFFECT


def is_quantised(run):
    return run.flag("precision") not in ("fp32", "bf16")


NEEDS = (  # flags, whether they have an effect, and why not
    ("keep-last keep-every keep-best", lambda run: run.flag("checkpoint-every", 0) != 0, "checkpoints are off"),
    ("validation-fraction", lambda run: "validation-data" not in run.flags and "validation-chats" not in run.flags,
     "validation has its own files"),
    ("decay-fraction", lambda run: run.flag("schedule") == "wsd", "the schedule is not wsd"),
    ("final-fraction", lambda run: run.flag("schedule") != "constant", "the schedule is constant"),
    ("muon-momentum muon-nesterov muon-iterations muon-rate", lambda run: run.flag("optimizer") == "muon",
     "the optimizer is not Muon"),
    ("master-weights", lambda run: run.flag("precision") != "fp32" or run.flag("master-weights") != "bf16",
     "the precision is fp32"),
    ("weight-copies", is_quantised, "FP8 is off"),
    ("lora-alpha lora-targets load-adapters save-adapters", lambda run: run.flag("lora", 0) != 0, "LoRA is off"),
    ("spike-threshold spike-window", lambda run: run.flag("on-spike", "off") != "off", "spikes have no action"),
    ("sample-each temperature", lambda run: run.flag("sample") != 0, "no samples"),
    ("hellaswag-questions", lambda run: "hellaswag" in run.flags, "HellaSwag is off"),
)


def drop(run):
    """Removes the flags without an effect."""
    for names, is_met, why in NEEDS:
        if is_met(run):
            continue
        for name in names.split():
            _, setting = run.flags.pop(name, (None, None))
            if setting is not None:
                run.say(setting, NO_EFFECT, why)

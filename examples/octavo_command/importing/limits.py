"""Ranges of flags. The trainers check the same ones, by validators of these names (examples/common/flags.hpp)."""
import math

from octavo_command.importing.run import REFUSED, toml


def _whole(least, most=2**31 - 1):
    return (f"a whole number from {least} to {most}",
            lambda value: value == math.floor(value) and least <= value <= most)


FP32 = 3.4028234663852886e38
RULES = {  # the rule, and whether a number satisfies it
    "at_least_one": _whole(1),
    "at_least_two": _whole(2),
    "one_to_hundred": _whole(1, 100),
    "non_negative_integer": _whole(0),
    "above_zero": ("a number above 0", lambda value: 0 < value <= FP32),
    "non_negative_number": ("a number of at least 0", lambda value: 0 <= value <= FP32),
    "share": ("a number from 0 to below 1", lambda value: 0 <= value < 1),
    "share_above_zero": ("a number above 0 and below 1", lambda value: 0 < value < 1),
}
FLAGS = {
    "at_least_one": "batch comm-timeout epochs hellaswag-questions log-every micro-batches seq-len steps "
                    "tensor-parallel validation-batches",
    "at_least_two": "keep-last spike-window",
    "one_to_hundred": "muon-iterations",
    "non_negative_integer": "check-replicas checkpoint-every evaluate-every keep-every lora sample seed warmup",
    "above_zero": "epsilon learning-rate lora-alpha spike-threshold",
    "non_negative_number": "max-gradient-norm temperature weight-decay",
    "share": "beta1 beta2 decay-fraction final-fraction muon-momentum",
    "share_above_zero": "validation-fraction",
}


def broken(name, value):
    """Returns the rule that a flag's value breaks, or ""."""
    if name == "zero":
        return "" if value in (1, 2, 3) else "1, 2 or 3"
    for rule, names in FLAGS.items():
        text, holds = RULES[rule]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if name in names.split() and not (is_number and holds(value)):
            return text
    return ""


def refuse(run):
    """Removes the flags that the trainers would refuse, and refuses the settings that they come from."""
    for name, (value, setting) in list(run.flags.items()):
        rule = broken(name, value)
        if rule and setting is not None:
            del run.flags[name]
            run.say(setting, REFUSED, f"{name} must be {rule}, but would be {toml(value)}")

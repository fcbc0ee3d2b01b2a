"""`octavo plan`: plan_memory."""
import os

from octavo_command import arguments, cache, model, pages, program
from octavo_command.combination import Program
from octavo_command.flags import Flags, read_toml

SUMMARY = "compute the memory that training needs"
PROGRAM = Program("plan_memory", "plan", default_precision="fp8-delayed", flag_of_word="model",
                  own_flags="""flag of octavo:
  --config FILE           plans the run of this configuration of the trainer""")


def check(flags, root):
    arguments.require_card(flags, "card", root)
    model.take_for_plan(flags, root, os.path.join(cache.folder(os.environ), "models"))


def _value(name, flags, defaults):
    """Returns a flag's value in the trainer's run, or "" if the trainer has no such flag."""
    if name == "lora-targets":
        return ",".join(flags.values(name)).removeprefix("all-linear")
    if name == "most-documents" and "most-chats" in defaults:  # those of chats
        batch, length, most = (flags.whole(one, int(defaults[one])) for one in ("batch", "seq-len", "most-chats"))
        return str(batch * min(length, most))
    return flags.get(name, defaults.get(name, ""))


def with_configuration(words, root):
    """Replaces --config by the flags of plan_memory that it sets, or for which the trainer has another default.

    Values that are plan_memory's defaults are left out, so that it may suggest others.
    """
    flags = Flags(words)
    if not flags.has("config"):
        return words
    read_toml(flags.get("config"), must_read=True)  # the program does not see it
    own = pages.defaults(root, "plan_memory")
    trainers = pages.defaults(root, "finetune_llama" if flags.values("chats") else "train_llama")
    chosen = []
    for name, default in own.items():
        if flags.has(name) or (name == "device" and flags.has("card", "card-memory")):
            continue
        value = _value(name, flags, trainers)
        if value == "True":
            chosen.append(f"--{name}")
        elif value not in ("", "False", default or trainers.get(name)):
            chosen += [f"--{name}", value]
    flags.take("config")
    return chosen + flags.words


def run(words):
    return program.run(PROGRAM, with_configuration(words, program.ROOT), check=check)

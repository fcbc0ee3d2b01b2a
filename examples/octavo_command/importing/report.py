"""Prints the results as a table, and the configuration."""
import os
import re

from octavo_command.importing.run import MAPPED, NO_EFFECT, REFUSED, UNKNOWN, shown, toml
from octavo_command.importing.unresolved import BLANK, MARK

ORDER = ("model precision device recompute weight-copies deterministic lora lora-alpha lora-targets load-adapters "
         "save-adapters zero gather reduce tensor-parallel comm-timeout check-replicas data validation-data chats "
         "validation-chats chat-template last-turn-only batch seq-len micro-batches validation-fraction validation-batches steps "
         "max-time epochs learning-rate schedule warmup final-fraction decay-fraction optimizer weight-decay "
         "beta1 beta2 epsilon "
         "muon-momentum muon-nesterov muon-iterations muon-rate max-gradient-norm master-weights moments offload seed "
         "on-spike spike-threshold spike-window out save-hf log-every evaluate-every hellaswag hellaswag-questions "
         "sample sample-each temperature checkpoint-every keep-last keep-every keep-best resume").split()


def cut(text, width):
    text = re.sub(r"[\x00-\x1f\x7f]", " ", text.replace(MARK, "").replace(BLANK, " "))
    return text if len(text) <= width else text[:width - 1] + "…"


def lines(run):
    """Returns the table: one row for each setting, by trainer and in the order of the sources."""
    rows = []
    for setting in run.settings:
        value = "" if setting.value is True and str(setting.key).startswith("-") else shown(setting.value)
        rows.append((cut(str(setting.key), 44), cut(value, 28), setting.answer, cut(setting.text, 400),
                     "default" if setting.is_default else ""))
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}"
            + (f" ({row[4]})" if row[4] else "") for row in rows]


def counts(run):
    answers = [setting.answer for setting in run.settings]
    return {answer: answers.count(answer) for answer in (MAPPED, NO_EFFECT, REFUSED, UNKNOWN)}


def configuration(run, ranks):
    """Returns the text of the TOML."""
    names = ", ".join(os.path.basename(path) for path in run.files) or "a command line"
    head = [f"# Imported by octavo import from {names}.", "#", f"#   {command(run, ranks)}", "#"]
    left = [setting for setting in run.settings if setting.answer in (REFUSED, UNKNOWN)]
    if left:
        head += ["# Without these settings, which do not exist here or need a decision:"]
        head += [f"#   {cut(str(setting.key), 60)}: {cut(setting.text, 300)}" for setting in left]
    known = {name: position for position, name in enumerate(ORDER)}
    names = sorted(run.flags, key=lambda name: known.get(name, len(known)))
    return "\n".join(head + [f"{name} = {toml(run.flags[name][0])}" for name in names]) + "\n"


def command(run, ranks, path="FILE.toml"):
    """Returns the command line that trains with the configuration."""
    word = "train" if run.program == "train_llama" else "finetune"
    missing = {"train": ("data", " --data FILE"), "finetune": ("chats", " --chats FILE")}[word]
    launch = f"mpirun -n {ranks} " if ranks and ranks > 1 else ""
    template = " --chat-template NAME" if word == "finetune" and "chat-template" not in run.flags else ""
    return f"{launch}octavo {word} --config {path}" + ("" if missing[0] in run.flags else missing[1]) + template

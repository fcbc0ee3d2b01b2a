"""octavo import: reads the configuration of another trainer, and writes Octavo's."""
import argparse
import os
import re
import sys

from octavo_command.errors import CommandError
from octavo_command.importing import (accelerate, deepspeed, derive, effects, environment, hugging_face, limits,
                                      llama_factory, llm_c, llm_c_llama3, llm_c_python, megatron, mistakes, report,
                                      rows, shell, sources, torchtitan)
from octavo_command.importing.run import MAPPED, NO_EFFECT, REFUSED, UNKNOWN, Run, Setting, shown
from octavo_command.parser import Parser

SUMMARY = "write Octavo's configuration from that of another trainer"

TRAINERS = {"megatron": megatron, "torchtitan": torchtitan, "deepspeed": deepspeed, "accelerate": accelerate,
            "llama_factory": llama_factory, "hugging_face": hugging_face, "llm_c": llm_c,
            "llm_c_python": llm_c_python, "llm_c_llama3": llm_c_llama3}
HELP = """octavo import FILE... [--out FILE.toml]
octavo import -- torchrun ... pretrain_gpt.py ...

Reads a script of Megatron-LM or llm.c, a torchtitan TOML, a DeepSpeed JSON, an Accelerate YAML, a LLaMA-Factory YAML,
or Hugging Face's TrainingArguments (JSON, a Python file or a command line), and every file that these name. Several files form one
run. Nothing is executed. Prints a table with one row per key, and the configuration for train_llama or
finetune_llama.

Exit codes: 0 if every key is mapped or has no effect here; 1 if a key is refused or unknown (the configuration is
written without it); 2 if a file cannot be read or the command line is wrong (nothing is written)."""


def parse(words):
    parser = Parser(prog="octavo import", description=HELP, allow_abbrev=False, usage="octavo import FILE... [flags]",
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="configurations and scripts; or -- COMMAND")
    parser.add_argument("--out", metavar="FILE", help="new file for the configuration; by default it is only printed")
    parser.add_argument("--from", dest="trainer", choices=sorted(TRAINERS), help="trainer of JSON and YAML files")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="value of a variable in a script; 1=VALUE sets the script's first argument")
    parser.add_argument("--ranks", type=int, metavar="N", help="number of ranks, if no source sets it")
    parser.add_argument("--steps", type=int, metavar="N", help="number of optimizer steps; replaces samples and epochs")
    command = []
    if "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1:]
    options = parser.parse_args(words)
    if bool(options.files) == bool(command):
        raise CommandError("pass either files or, after --, a command line; see octavo import --help")
    for name in ("ranks", "steps"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise CommandError(f"--{name} must be at least 1, but is {getattr(options, name)}")
    for pair in options.set:
        if "=" not in pair:
            raise CommandError(f"--set must be NAME=VALUE, but is {pair}")
    if options.out and os.path.exists(options.out):
        raise CommandError(f"--out must name a new file, but {options.out} exists")
    return options, command


def row_of(setting):
    if setting.trainer in TRAINERS:
        return rows.find(TRAINERS[setting.trainer].ROWS, str(setting.key))
    if setting.trainer == "wrapper":
        return environment.WRAPPER
    found = rows.find(environment.LAUNCHER if setting.trainer == "launcher" else environment.ENVIRONMENT, setting.key)
    return found or (environment.SCRIPT_VARIABLE if setting.trainer == "script" else None)


def answer(setting, run):
    """Maps a setting by its row, or stores a fact."""
    if setting.answer:
        return
    row = row_of(setting)
    if row is None and str(setting.key).rpartition(".")[2].strip("_").lower() in ("comment", "comments"):
        run.say(setting, NO_EFFECT, "a comment")
    elif row is None:
        run.say(setting, UNKNOWN, "unknown to this importer")
    elif shell.unresolved(setting.value) and not isinstance(row, (rows.nothing, rows.exported)):
        missing = shell.unresolved(setting.value)
        variable = re.match(r"\$\{?([A-Za-z_]\w*)", missing)
        run.say(setting, REFUSED, f"depends on {missing}; pass --set {variable[1] if variable else 'NAME'}=VALUE")
        setting.is_usable = False
    elif setting.value is None:
        run.say(setting, NO_EFFECT, "not set")
        setting.is_usable = not str(setting.key).startswith("-")
    elif setting.value == "auto" and setting.trainer == "deepspeed":
        run.say(setting, NO_EFFECT, "the trainer's arguments set it")
    else:
        try:
            row.take(setting, run)
        except rows.Malformed as error:
            run.say(setting, REFUSED, f"must be {error}, but is '{report.cut(shown(setting.value), 60)}'; correct it")
            setting.is_usable = False


def overridden(run):
    """Marks settings that a command line overrides: it overrides files, and its last value overrides earlier ones."""
    last = {}
    for setting in run.settings:
        if setting.place in run.commands and setting.trainer in TRAINERS:
            last[setting.trainer, setting.key] = setting
    for setting in run.settings:
        winner = last.get((setting.trainer, setting.key), setting)
        if winner is not setting and not setting.answer:
            run.say(setting, NO_EFFECT, f"overridden by {winner.key} on the command line")
            setting.is_usable = False


def defaults(run):
    """Adds the trainers' own defaults for the keys without a usable value."""
    for name in run.trainers:
        module = TRAINERS[name]
        added = dict(module.DEFAULTS)
        present = {getattr(module, "OLD_KEYS", {}).get(setting.key, setting.key)
                   for setting in run.settings if setting.trainer == name and setting.is_usable}
        if any(key in present for key in ("--fp8-format", "fp8")):
            added.update(getattr(module, "DEFAULTS_WITH_FP8", {}))
        if "--lr-warmup-fraction" in present or "--lr-warmup-samples" in present:
            added.pop("--lr-warmup-iters", None)
        for key, value in added.items():
            if key not in present and row_of(Setting(key, value, "default", name)) is not None:
                run.settings.append(Setting(key, value, "default", name))


def named_files(run, given):
    """Reads DeepSpeed's file if a key names it."""
    for setting in list(run.settings):
        key = str(setting.key)
        if key == "deepspeed" and setting.value is True:
            run.say(setting, NO_EFFECT, "deepspeed_config names the file")
        if key not in ("deepspeed", "deepspeed_config", "deepspeed_config.deepspeed_config_file") or \
                not isinstance(setting.value, str):
            continue
        folder = os.path.dirname(setting.place.rpartition(":")[0] or setting.place)
        before = len(run.settings)
        sources.read_named(run, setting, folder, given, "deepspeed")
        del run.settings[run.settings.index(setting, before)]  # it is in the list already


def import_run(options, command):
    given = dict(pair.split("=", 1) for pair in options.set)
    run = Run()
    for path in options.files:
        sources.read(run, path, given, options.trainer)
    if command:
        sources.read_command(run, command, "command line", {}, "", given)
    named_files(run, given)
    if options.ranks:
        run.settings.insert(0, Setting("--ranks", options.ranks, "octavo import", "importer"))
        run.facts["ranks"] = (options.ranks, run.settings[0])
        run.say(run.settings[0], MAPPED, "the number of ranks")
    if options.steps:
        run.settings.insert(0, Setting("--steps", options.steps, "octavo import", "importer"))
        run.facts["steps"] = (options.steps, run.settings[0])
        run.say(run.settings[0], MAPPED, "the number of steps")
    overridden(run)
    for setting in run.settings:
        answer(setting, run)
    given_settings = len(run.settings)
    defaults(run)
    for setting in run.settings[given_settings:]:
        answer(setting, run)
    order = ["deepspeed", "accelerate", "torchtitan", "megatron", "llama_factory", "hugging_face", "llm_c",
             "llm_c_python", "llm_c_llama3"]
    for name in sorted(run.trainers, key=order.index):
        TRAINERS[name].derive(run)
    if not set(run.trainers) - {"deepspeed", "accelerate"}:
        derive.common(run)
    derive.decay(run)
    limits.refuse(run)
    effects.drop(run)
    for setting in run.settings:
        if not setting.answer:
            run.say(setting, UNKNOWN, "unknown to this importer in combination with the other keys")
    mistakes.find(run)
    return run


def run(words):
    options, command = parse(words)
    found = import_run(options, command)
    ranks = derive.ranks_of(found)
    text = report.configuration(found, ranks)
    lines = "\n".join(report.lines(found))
    require_utf8(lines + "\n" + text)
    print(lines)
    for warning in found.warnings:
        print(f"\nwarning: {warning}")
    counted = report.counts(found)
    print("\n" + ", ".join(f"{count} {name}" for name, count in counted.items()))
    if options.out:
        write(options.out, text)
        print(f"wrote {options.out}; train with: {report.command(found, ranks, options.out)}")
    else:
        print("\n" + text, end="")
    sys.stdout.flush()
    return 1 if counted[REFUSED] or counted[UNKNOWN] else 0


def require_utf8(text):
    """@throws CommandError  if a name or value cannot be written to a file"""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = text[max(0, error.start - 20):error.end + 20].encode("ascii", "backslashreplace").decode()
        raise CommandError("names and values must be valid UTF-8, but one is not: "
                           f"{' '.join(found.split())}; rename the file, or correct the value") from None


def write(path, text):
    """Writes a new file as a whole, or not at all."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                os.remove(path)
                raise
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}", 1) from None

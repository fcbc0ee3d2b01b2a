"""Runs a program that octavo builds first, if necessary."""
import os
import shutil
import signal
import subprocess
import sys
import textwrap

from octavo_command import arguments, build, cache, combination, model, pages, precision
from octavo_command.flags import Flags

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def has_gpu():
    """Returns whether both nvcc and a GPU are available."""
    if shutil.which("nvcc") is None or shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0


def _stop(number, _frame):
    raise SystemExit(128 + number)


def _help(program, command):
    """Returns the flags that only octavo has, the values for which it builds a program, and the program's flags."""
    text = ""
    if program.default_precision:
        text += precision.HELP + "\n\n"
    if program.own_flags:
        text += program.own_flags + "\n\n"
    if program.has_model:
        values = (("model", model.presets(ROOT) + ["hf:FOLDER", "shape:FOLDER"]),
                  ("precision", [*precision.named(ROOT), "any C++ type of a precision"]),
                  ("device", ["cpu", "cuda"]))
        text += "values for which octavo builds a program:\n"
        for flag, accepted in values:
            text += textwrap.fill(", ".join(accepted), 110, initial_indent=f"  --{flag:<11}",
                                  subsequent_indent=" " * 15, break_on_hyphens=False) + "\n"
        text += "\n"
    usage, flags = pages.help_text(ROOT, program.target, command).split("\n", 1)
    return f"{usage}\n\n{text}{flags.lstrip()}"


def _answer(program, words):
    """Answers --help and --version, which need no built program; returns whether it did."""
    words = words[:words.index("--")] if "--" in words else words
    if "--help" in words or "-h" in words:
        print(_help(program, f"octavo {program.command}"))
    elif "--version" in words:
        print(f"octavo {pages.version(ROOT)}")
    else:
        return False
    return True


def run(program, words, gpu=lambda: False, check=None):
    """Replaces this process with the program.

    @param check  called with the flags and the checkout before the build
    """
    if _answer(program, words):
        return 0
    arguments.require_no_word_first(words, program.flag_of_word)
    flags = Flags(words)
    models = os.path.join(cache.folder(os.environ), "models")
    wanted = combination.combine(program, flags, ROOT, models, os.environ, gpu)
    arguments.require_known_flags(flags, ROOT, program.target)
    arguments.require_numbers(flags, ROOT, program.target)
    arguments.require_inputs(flags, program.required)
    if check is not None:
        check(flags, ROOT)
    if program.has_model and wanted.device == "cuda":
        arguments.require_gpu(os.environ)
    # A signal that is ignored, such as SIGHUP under nohup, stays ignored.
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
              if signal.getsignal(number) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, _stop)
    path = build.program(ROOT, wanted, os.environ)
    for number, handler in before.items():
        signal.signal(number, handler)
    sys.stdout.flush()
    os.execv(path, [path, *flags.words])

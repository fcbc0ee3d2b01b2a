"""Runs a program that octavo builds first, if necessary."""
import os
import shutil
import signal
import subprocess
import sys
import textwrap

from octavo_command import build, cache, combination, model, precision
from octavo_command.flags import Flags

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def has_gpu():
    """Returns whether both nvcc and a GPU are available."""
    if shutil.which("nvcc") is None or shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0


def _stop(number, _frame):
    raise SystemExit(128 + number)


def _help(program):
    """Returns the flags and the values that the program's help lacks, because it was not built with them."""
    text = precision.HELP + "\n"
    if program.has_model:
        values = (("model", model.presets(ROOT) + ["hf:FOLDER", "shape:FOLDER"]),
                  ("precision", [*precision.named(ROOT), "any C++ type of a precision"]),
                  ("device", ["cpu", "cuda"]))
        text += "\nvalues for which octavo builds a program; those in the list below are compiled into one program:\n"
        for flag, accepted in values:
            text += textwrap.fill(", ".join(accepted), 110, initial_indent=f"  --{flag:<11}",
                                  subsequent_indent=" " * 15, break_on_hyphens=False) + "\n"
    return text


def run(program, words, gpu=lambda: False):
    """Replaces this process with the program."""
    flags = Flags(words)
    models = os.path.join(cache.folder(os.environ), "models")
    wanted = combination.combine(program, flags, ROOT, models, os.environ, gpu)
    if program.default_precision and (flags.has("help") or "-h" in flags.words):
        print(_help(program), flush=True)
    before = signal.signal(signal.SIGTERM, _stop)
    path = build.program(ROOT, wanted, os.environ)
    signal.signal(signal.SIGTERM, before)
    sys.stdout.flush()
    os.execv(path, [path, *flags.words])

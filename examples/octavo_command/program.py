"""Runs a program that octavo builds first, if necessary."""
import os
import shutil
import signal
import subprocess
import sys
import textwrap

from octavo_command import arguments, build, cache, combination, model, precision
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


def run(program, words, gpu=lambda: False, check=None):
    """Replaces this process with the program.

    @param check  called with the flags and the checkout before the build, unless they ask for help
    """
    flags = Flags(words)
    models = os.path.join(cache.folder(os.environ), "models")
    wanted = combination.combine(program, flags, ROOT, models, os.environ, gpu)
    asks_help = flags.has("help", "version") or "-h" in flags.words
    if not asks_help:
        arguments.require_known_flags(flags, ROOT, program.target)
        arguments.require_inputs(flags, program.required)
        if check is not None:
            check(flags, ROOT)
        if program.has_model and wanted.device == "cuda":
            arguments.require_gpu(os.environ)
    if program.default_precision and asks_help and not flags.has("version"):
        print(_help(program), flush=True)
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

"""Runs a program that octavo builds first, if necessary."""
import os
import shutil
import signal
import subprocess
import sys

from octavo_command import build, cache, combination, precision
from octavo_command.flags import Flags

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def has_gpu():
    """Returns whether both nvcc and a GPU are available."""
    if shutil.which("nvcc") is None or shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0


def _stop(number, _frame):
    raise SystemExit(128 + number)


def run(program, words, gpu=lambda: False):
    """Replaces this process with the program."""
    flags = Flags(words)
    models = os.path.join(cache.folder(os.environ), "models")
    wanted = combination.combine(program, flags, ROOT, models, os.environ, gpu)
    if program.default_precision and (flags.has("help") or "-h" in flags.words):
        print(precision.HELP + "\n", flush=True)
    before = signal.signal(signal.SIGTERM, _stop)
    path = build.program(ROOT, wanted, os.environ)
    signal.signal(signal.SIGTERM, before)
    sys.stdout.flush()
    os.execv(path, [path, *flags.words])

"""The list of checks, and functions that they share."""

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
INCLUDE = ROOT / "include"
WORK = ROOT / "build" / "check"
JOBS = len(os.sched_getaffinity(0))

CHECKS = {}
NIGHTLY = set()  # names of the checks that take long; a landing omits them
ONE_PROCESSOR = set()  # names of the checks that use one process; others run at the same time
PRINTING = threading.Lock()


def check(function):
    """Registers a check: a function that returns its faults as texts."""
    CHECKS[function.__name__.replace("_", "-")] = function
    return function


def nightly(function):
    """Registers a slow check."""
    NIGHTLY.add(function.__name__.replace("_", "-"))
    return check(function)


def one_processor(function):
    """Registers a check that uses one process."""
    ONE_PROCESSOR.add(function.__name__.replace("_", "-"))
    return check(function)


def sources(folders, suffixes):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*")
                  if path.suffix in suffixes)


def headers(*suffixes):
    return sources(["include"], suffixes)


def name_of(path):
    return str(path.relative_to(ROOT))


def say(text):
    """Prints a text as a whole, not between the lines of another check."""
    with PRINTING:
        print(text, flush=True)


def run(command, text=None, folder=ROOT):
    """Runs a command in a folder with `text` as its standard input, never the terminal; returns its
    exit status and its output."""
    done = subprocess.run([str(part) for part in command], input=text or "", cwd=folder,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout


def each(function, items):
    """Calls a function on all items in parallel; returns the faults that it returned."""
    with ThreadPoolExecutor(JOBS) as pool:
        return [fault for fault in pool.map(function, items) if fault]


def fault_of(title, command, text=None, folder=ROOT):
    status, output = run(command, text, folder)
    return f"{title}\n{output}" if status else None


def build(preset, *targets):
    """Configures a preset and builds all or some of its targets; returns the faults."""
    only = ["--target", *targets] if targets else []
    for command in (["cmake", "--preset", preset],
                    ["cmake", "--build", "--preset", preset, "--parallel", JOBS, *only]):
        if fault := fault_of(" ".join(map(str, command)), command):
            return [fault]
    return []


def include_of(path):
    return f"#include <{path.relative_to(INCLUDE)}>"


def code_of(path):
    """The lines of a header that are not comments."""
    return [line for line in path.read_text().splitlines() if line and not line.startswith("//")]


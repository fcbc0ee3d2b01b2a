"""TensorBoard's reader on runs that were killed and resumed, against a run that was not."""
import collections
import random
import shutil
import subprocess
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import support

ROOT = Path(__file__).resolve().parents[2]
STEPS, RUNS = 60, 6
REPEATABLE = ("train/loss", "train/learning_rate", "train/gradient_norm", "train/skipped", "validation/loss")


def command(programs, folder, text):
    return [programs / "train_llama", "--model", "llama_tiny", "--precision", "fp32", "--data", text,
            "--steps", STEPS, "--warmup", 5, "--batch", 2, "--seq-len", 32, "--threads", 1, "--sample", 0,
            "--evaluate-every", 10, "--validation-batches", 2, "--checkpoint-every", 7, "--out", folder,
            "--resume", "auto"]


def scalars(folder):
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)]
            for tag in reader.Tags()["scalars"]}


def run_and_kill(rng, programs, folder, text, seconds):
    """The number of times that the run was killed before it ended; `seconds` is the time of a whole run."""
    killed = 0
    while True:
        process = subprocess.Popen([str(word) for word in command(programs, folder, text)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            _, errors = process.communicate(timeout=rng.uniform(0.1, 0.8) * seconds if killed < 8 else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            killed += 1
            continue
        if process.returncode != 0:
            raise RuntimeError(errors.decode())
        return killed


def check(report, programs, work):
    rng = random.Random(3)
    text = work / "text.txt"
    text.write_bytes(b"".join(path.read_bytes() for path in sorted((ROOT / "docs").glob("*.md"))))
    shutil.rmtree(work / "whole", ignore_errors=True)
    began = time.monotonic()
    support.call(*command(programs, work / "whole", text))
    seconds = time.monotonic() - began
    expected = scalars(work / "whole")
    differences, repeated, kills = [], collections.Counter(), 0
    for run in range(RUNS):
        folder = work / f"killed{run}"
        shutil.rmtree(folder, ignore_errors=True)
        kills += run_and_kill(rng, programs, folder, text, seconds)
        found = scalars(folder)
        if found.keys() != expected.keys():
            differences.append(f"run {run}: tags {sorted(found)}, not {sorted(expected)}")
        for tag, values in found.items():
            while tag == "validation/loss" and len(values) > 1 and values[-1] == values[-2]:
                values = values[:-1]
                repeated["a run that is resumed after its last step repeats its last evaluation"] += 1
            steps = [step for step, _ in values]
            if steps != [step for step, _ in expected.get(tag, [])]:
                differences.append(f"run {run}: {tag} has steps {steps}")
            elif tag in REPEATABLE and values != expected[tag]:
                differences.append(f"run {run}: {tag} has other values than the run that was not killed")
    report.add(f"scalars of {RUNS} runs that were killed {kills} times", RUNS * len(expected), differences,
               repeated)


if __name__ == "__main__":
    support.main(check)

#!/usr/bin/env python3
"""Tests programs on the GPUs of one host: resuming with other ZeRO stages, exit codes, and faults.

    ranks_on_gpus.py PATH_TO_TRAIN_LLAMA PATH_TO_EVALUATE [RANKS]

Needs as many GPUs as ranks, two unless said, and programs that were built with NCCL, llama3_small
and fp8-delayed. Runs in an empty folder.
"""
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

train_llama, evaluate = (str(pathlib.Path(program).resolve()) for program in sys.argv[1:3])
world = int(sys.argv[3]) if len(sys.argv) > 3 else 2
failures = []
case = ""


def check(condition, *what):
    if not condition:
        failures.append(f"{case}: {' '.join(str(w) for w in what)}")
        print("FAILED:", failures[-1], flush=True)


class Ranks:
    """Processes of a program, one per GPU; their output is in NAME.RANK.log."""

    def __init__(self, name, program, *flags, ranks=world, of_last=()):
        global case
        case, self.logs, self.processes = name, [], []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank in range(ranks):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks,
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            self.logs.append(pathlib.Path(f"{name.replace(' ', '-')}.{rank}.log"))
            with open(self.logs[-1], "w", encoding="utf-8") as log:
                self.processes.append(subprocess.Popen(
                    [program, *map(str, flags), *(of_last if rank == ranks - 1 else ())], stdout=log, stderr=subprocess.STDOUT,
                    env={**os.environ, **{key: str(value) for key, value in place.items()}}))

    def codes(self, limit=90):
        """Exit codes, once all have ended; None for a rank that has not ended within the limit."""
        end = time.monotonic() + limit
        codes = []
        for process in self.processes:
            try:
                codes.append(process.wait(max(0.0, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
                process.kill()
        return codes

    def must_end_well(self):
        codes = self.codes()
        check(not any(code != 0 for code in codes), "exit codes", codes, self.logs[0].read_text()[-500:])
        return self


def events(folder, event):
    file = pathlib.Path(folder, "metrics.jsonl")
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines()) if file.exists() else []
    return [line for line in lines if line["event"] == event]


random.seed(1)
words = "the a small large model trains learns number step loss eight bits scale of and in".split()
pathlib.Path("text.txt").write_text(" ".join(random.choice(words) for _ in range(100_000)))
training = ["--model", "llama3_small", "--precision", "fp8-delayed", "--device", "cuda", "--data", "text.txt",
            "--batch", 2, "--seq-len", 256, "--warmup", 5, "--validation-batches", 1, "--evaluate-every", 0, "--sample", 0]

# --- a state goes on under every stage, to the bit --------------------------------------------------------
exact = [*training, "--deterministic", "--steps", 30]
gathers = {"whole": ["--zero", 2, "--gather", "fp8"], "ZeRO-1": ["--zero", 1],
           "ZeRO-1 in FP8": ["--zero", 1, "--gather", "fp8"], "ZeRO-2 in FP8": ["--zero", 2, "--gather", "fp8"],
           "ZeRO-3": ["--zero", 3],
           "ZeRO-3 in FP8, remade": ["--zero", 3, "--gather", "fp8", "--weight-copies", "remade"]}
expected = {}
for name, gather in gathers.items():
    begins = ["--checkpoint-every", 20] if not expected else ["--resume", "whole/checkpoints/step-00000020"]
    Ranks(name, train_llama, *exact, *gather, *begins, "--out", name).must_end_well()
    steps = {step["step"]: (step["loss"], step["gradient_norm"]) for step in events(name, "step")}
    expected = expected or steps
    check(sorted(steps) == list(range(1 if name == "whole" else 21, 31)), "steps", sorted(steps))
    check(all(expected.get(step) == values for step, values in steps.items()), "other losses or norms", steps)

# --- evaluation: the same of any number of ranks, and all of them end -------------------------------------
losses = {}
for ranks in sorted({1, 2, world}):
    Ranks(f"evaluate on {ranks}", evaluate, "--checkpoint", "whole/checkpoints", "--device", "cuda", "--data", "text.txt",
          "--tokenizer", "bytes", "--seq-len", 256, "--batch", 2, "--batches", 12, "--json", f"{ranks}.json", ranks=ranks).must_end_well()
    if pathlib.Path(f"{ranks}.json").exists():
        losses[ranks] = json.loads(pathlib.Path(f"{ranks}.json").read_text())["perplexity"]
case = "evaluations"
check(len(losses) == len({1, 2, world}) and len({(one["tokens"], one["loss"]) for one in losses.values()}) == 1, losses)

# --- a rank that cannot be set up ends all, and says why --------------------------------------------------
for name, program, flags in (("trainer without a GPU", train_llama, [*training, "--steps", 1, "--no-out"]),
                             ("evaluate without a GPU", evaluate, ["--checkpoint", "whole/checkpoints", "--device", "cuda",
                                                                   "--data", "text.txt", "--tokenizer", "bytes",
                                                                   "--seq-len", 256])):
    run = Ranks(name, program, *flags, of_last=("--gpu", "99"))
    check(run.codes() == [1] * (world - 1) + [2], "exit codes", [process.returncode for process in run.processes])
    for log in run.logs[:-1]:
        check(f"rank {world - 1} gave up: " in log.read_text(), log, "has no reason:", log.read_text()[-300:])

# --- a rank that is killed or stopped ends all, and is named ----------------------------------------------
time_out = 8
for zero in (1, 3):
    for sent, said in ((signal.SIGKILL, "has closed its connection"), (signal.SIGSTOP, "has been silent")):
        name = f"ZeRO-{zero}, {sent.name}"
        run = Ranks(name, train_llama, *training, "--zero", zero, "--steps", 100_000, "--comm-timeout", time_out, "--out", name)
        begin = time.monotonic()
        while len(events(name, "step")) < 20 and time.monotonic() < begin + 60:
            time.sleep(0.1)
        run.processes[-1].send_signal(sent)
        begin = time.monotonic()
        survivors, lost = run.processes[:-1], run.processes[-1]
        run.processes = survivors
        codes = run.codes(time_out + 20)
        check(all(code == 1 for code in codes), "exit codes", codes)
        check(time.monotonic() - begin < time_out + 5, "they ended after", time.monotonic() - begin, "s")
        for log in run.logs[:-1]:
            check(f"rank {world - 1} {said}" in log.read_text(), log, "does not name it:", log.read_text()[-300:])
        lost.kill()
        lost.wait()

print(f"{len(failures)} failures" if failures else f"ranks_on_gpus: {world} ranks behave as they should")
sys.exit(bool(failures))

"""Support for the tests of train_llama: runs of the program, their files and their messages.

Each *_test.py tests a topic: NAME_test.py PATH_TO_TRAIN_LLAMA [CLASS[.TEST]...]
"""

import dataclasses
import glob
import json
import os
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent.parent
BASE = "--data text.txt --seq-len 32 --validation-batches 2 --evaluate-every 2 --threads 2 "
OPERANDS = "--operands-every 2 "  # refused with --no-out
SMALL = BASE + "--batch 2 --steps 4 --warmup 1 --sample 0 "
TINY = ("--data text.txt --seq-len 32 --batch 1 --steps 1 --sample 0 --precision bf16 --threads 1 "
        "--validation-batches 1 ")
ONE_STEP = ("--seq-len 32 --batch 1 --steps 1 --warmup 0 --precision bf16 --threads 1 "
            "--validation-batches 1 ")
FEW_STEPS = ("--seq-len 32 --batch 2 --validation-batches 2 --evaluate-every 0 --threads 2 --warmup 1 "
             "--sample 0 ")
SHORT = "--data text.txt " + FEW_STEPS + OPERANDS
SAVED = SHORT + "--steps 30 --checkpoint-every 3 "


@dataclasses.dataclass
class Done:
    """What a finished program printed, and its exit code."""
    code: int
    out: str
    err: str

    @property
    def steps(self):
        """The numbers of the steps that were printed."""
        return [int(number) for number in re.findall(r"^step (\d+) ", self.out, re.MULTILINE)]

    @property
    def lines(self):
        return self.out.splitlines()


class TrainerTest(unittest.TestCase):
    """Tests that share a folder, their working directory, which contains text.txt at first."""

    program = ""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        os.chdir(cls.folder)
        write_text("text.txt")

    @classmethod
    def tearDownClass(cls):
        os.chdir("/")
        shutil.rmtree(cls.folder, ignore_errors=True)

    def train(self, flags="", *words, code=0, program=None, stdout=subprocess.PIPE, limit=60,
              **options):
        """Runs the trainer with flags, which are split at spaces, and further words; it must end with
        the exit code, unless that is None."""
        command = [*(program or [self.program]), *shlex.split(flags), *map(str, words)]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, timeout=limit,
                              check=False, **options)
        done = Done(done.returncode, (done.stdout or b"").decode(errors="replace"),
                    done.stderr.decode(errors="replace"))
        if code is not None:
            self.assertEqual(done.code, code, f"{shlex.join(command)}\n{done.out[-2000:]}{done.err}")
        return done

    def fails(self, texts, flags="", *words, code=2, **options):
        """Runs the trainer, which prints one line to standard error with each of the texts."""
        done = self.train(flags, *words, code=code, **options)
        self.tells(done, texts)
        return done

    def tells(self, done, texts):
        self.assertEqual(done.err.count("\n"), 1, done.err)
        for text in [texts] if isinstance(texts, str) else texts:
            self.assertIn(text, done.err)

    def refused(self, texts, flags="", *words):
        """The trainer refuses the flags with exit code 2 and one line, and writes nothing."""
        with self.subTest(flags=flags, words=words):
            self.fails(texts, flags, *words, "--out", "refused", limit=10)
            self.assertFalse(os.path.exists("refused") or os.path.exists("runs"))

    def assertPrints(self, done, *lines):
        for line in lines:
            self.assertIn(line, done.lines)


def metrics(folder):
    """The lines of a run's metrics.jsonl, which must all be strict JSON."""
    def no_constant(name):
        raise ValueError(f"{name} is not JSON")
    text = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n"), text[-100:]
    return [json.loads(line, parse_constant=no_constant) for line in text.splitlines()]


def of(event, lines):
    return [line for line in lines if line["event"] == event]


def steps_of(folder):
    return of("step", metrics(folder))


def losses_of(folder):
    return [(line["step"], line["loss"]) for line in steps_of(folder)]


def checkpoints(folder):
    return sorted(name for name in os.listdir(f"{folder}/checkpoints") if name[0] != ".")


def step_names(*steps):
    return [f"step-{step:08d}" for step in steps]


def copy(source, target):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
    return target


def contents(folder):
    """The bytes of all files of a folder, by path."""
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*"))
            if path.is_file()}


def edit(path, old, new):
    """Replaces a regular expression, which must occur in the file; ^ and $ match at lines."""
    text, count = re.subn(old, new, Path(path).read_text(), flags=re.MULTILINE)
    assert count > 0, f"{path}: no {old}"
    Path(path).write_text(text)


def add_to_manifest(folder, members):
    """Adds members, such as '"written":"before"', to the manifest of a run's newest checkpoint."""
    path = sorted(Path(folder, "checkpoints").glob("step-*"))[-1] / "manifest.json"
    begin = path.read_text().rsplit(',"crc32c"', 1)[0] + "," + members
    path.write_text(f'{begin},"crc32c":"{crc32c(begin.encode()):08x}"}}\n')


def crc32c(data):
    total = 0xffffffff
    for byte in data:
        total ^= byte
        for _ in range(8):
            total = total >> 1 ^ (0x82f63b78 if total & 1 else 0)
    return total ^ 0xffffffff


def write_text(path, count=4000):
    random.seed(1)
    words = "the a small large model trains learns number step loss eight bits scale of and in"
    Path(path).write_text(" ".join(random.choice(words.split()) for _ in range(count)))


def write_token_files():
    """Token files with and without a header, and files that the trainer must refuse."""
    random.seed(3)

    def tokens(count):
        return struct.pack(f"<{count}H", *(random.randrange(256) for _ in range(count)))
    Path("llm_c.bin").write_bytes(struct.pack("<3i1012x", 20240520, 1, 3000) + tokens(3000))
    for name in ("shard_1.bin", "shard_2.bin"):
        Path(name).write_bytes(tokens(1000))
    Path("for_validation.bin").write_bytes(tokens(400))
    Path("few.bin").write_bytes(tokens(30))
    Path("other.bin").write_bytes(struct.pack("<2000H", *[300] * 1700, *[30] * 300))
    Path("other_behind.bin").write_bytes(struct.pack("<2000H", *[30] * 1805, 300, *[30] * 194))


def another_user(program):
    """The start of a command that runs the program as a user who cannot read or write everything,
    or None. Root can do both, so it needs setpriv, and a copy that the user can run."""
    if os.getuid() != 0:
        return [program]
    if not shutil.which("setpriv"):
        return None
    shutil.copy(program, "train_llama")
    os.chmod("train_llama", 0o755)
    os.chmod(".", 0o755)
    return ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "./train_llama"]


class Disk:
    """A small file system in ./disk; skips the test if mounting is not permitted."""

    def __init__(self, test, size):
        os.makedirs("disk", exist_ok=True)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", "disk"],
                                 stderr=subprocess.DEVNULL, check=False).returncode == 0
        if not mounted:
            test.skipTest("mounting a small disk needs privileges")
        test.addCleanup(subprocess.run, ["umount", "disk"], check=False)


def fields(data):
    """The fields of a Protocol Buffers message, by number."""
    found, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value
    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 2: None, 5: 4}[kind]
            size = varint() if size is None else size
            value = data[at:at + size]
            at += size
        found.setdefault(key >> 3, []).append(value)
    return found


def shown(folder):
    """What TensorBoard's reader in Python shows of a run: (step, number) and (step, text), by tag."""
    scalars, texts = {}, {}
    for path in sorted(glob.glob(f"{folder}/events.out.tfevents.*")):
        data = Path(path).read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event, data = fields(data[12:12 + length]), data[16 + length:]
            step = event.get(2, [0])[0]
            if 7 in event:  # a session's START hides earlier events of later steps
                assert fields(event[7][0]) == {1: [1]}
                for kind in (scalars, texts):
                    for tag, values in kind.items():
                        kind[tag] = [value for value in values if value[0] < step]
            for summary in event.get(5, []):
                for value in map(fields, fields(summary)[1]):
                    tag = value[1][0].decode()
                    if 2 in value:
                        number = struct.unpack("<f", value[2][0])[0]
                        scalars.setdefault(tag, []).append((step, number))
                    if 8 in value:
                        text = fields(value[8][0])[8][0].decode()
                        texts.setdefault(tag, []).append((step, text))
    return scalars, texts


def main():
    """Runs the tests of the script that calls it."""
    TrainerTest.program = str(Path(sys.argv.pop(1)).resolve())
    unittest.main("__main__", failfast=bool(os.environ.get("OCTAVO_STOP_AT_FAILURE")))

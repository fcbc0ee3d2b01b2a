"""Tests what a run prints, records and keeps, and where."""

import os
import re
import struct
import subprocess
from pathlib import Path

from trainer import BASE, OPERANDS, SMALL, TINY, TrainerTest, checkpoints, contents, main, metrics, of, shown


def timeless(folder):
    """The metrics of a run without its name and times."""
    return [{key: value for key, value in line.items()
             if key not in ("name", "milliseconds", "tokens_per_second", "seconds")}
            for line in metrics(folder)]


class ARun(TrainerTest):
    """Tests one run, and runs that repeat it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.done = cls().train(BASE + OPERANDS + "--batch 2 --steps 4 --warmup 4 --sample 12 --out run")
        cls.lines = metrics("run")
        cls.printed = [line.split(" | ") for line in cls.done.lines]

    def test_prints_steps_and_gemms(self):
        self.assertEqual(self.done.err, "")
        step = (r"step [0-9]+ \| epoch [0-9]+\.[0-9]{2} \| loss [0-9]+\.[0-9]{4} \| "
                r"lr [0-9]\.[0-9]{2}e[+-][0-9]{2} \| norm [0-9]+\.[0-9]{3} \| [0-9]+\.[0-9] ms \| "
                r"[0-9]+ tok/s \| fp8-delayed")
        steps = [i for i, line in enumerate(self.done.lines) if re.fullmatch(step, line)]
        self.assertEqual(len(steps), 4)
        self.assertLessEqual(steps[0], 25, "too many lines before the first step")
        self.assertPrints(self.done, "run | kept in run", "gemm | head | bf16 | octavo loops",
                          "gemm | blocks.0-3: qkv, output, gate_up, down | fp8-delayed | octavo loops")
        self.assertRegex(self.done.out, r"(?m)^flags \| .*batch = 2, .*steps = 4")
        self.assertNotIn("learning-rate = ", self.done.out, "a flag that nobody chose is printed")

    def test_prints_tokens_and_the_time_left(self):
        done = self.train(BASE + "--batch 2 --steps 4 --warmup 4 --sample 0 --no-out --log-every 2 --max-time 7200")
        self.assertPrints(done, "run | steps 1 to 4 of 64 tokens, 256 tokens in all, for at most 2 h 00 min")
        self.assertRegex(done.out, r"(?m)^step 2 .* \| fp8-delayed \| 128 of 256 tokens \| [0-9]+ s left$")
        self.assertRegex(done.out, r"(?m)^step 4 .* \| 256 of 256 tokens \| 0 s left$")
        self.assertPrints(self.done, "run | steps 1 to 4 of 64 tokens, 256 tokens in all")

    def test_manifest_has_every_gemm(self):
        manifest = Path("run/manifest.txt").read_text()
        self.assertEqual(len(re.findall(r"(?m)^gemm \| ", manifest)), 15)
        self.assertRegex(manifest, r"(?m)^memory \| peak +\| +[0-9.]+ MiB, allocated once$")
        self.assertRegex(manifest, r"(?m)^gemm \| blocks\.0-3\.qkv forward +\| 256 x 128 +\| "
                         r"E4M3 x E4M3 -> bf16 \| fp8-delayed \| octavo loops$")
        done = self.train(BASE + "--batch 2 --steps 4 --warmup 4 --sample 0 --no-out --verbose")
        self.assertPrints(done, "learning-rate = 0.001")
        kernels = [[line for line in text.splitlines() if re.match("(gemm|attention) ", line)]
                   for text in (done.out, manifest)]
        self.assertEqual(*kernels)

    def test_prints_what_it_records(self):
        for step in of("step", self.lines):
            self.assertIn([
                f"step {step['step']}", f"epoch {step['epoch']:.2f}", f"loss {step['loss']:.4f}",
                f"lr {step['learning_rate']:.2e}", f"norm {step['gradient_norm']:.3f}",
                f"{step['milliseconds']:.1f} ms", f"{step['tokens_per_second']:.0f} tok/s",
                "fp8-delayed"], self.printed)
        for one in of("evaluation", self.lines):
            self.assertIn([f"evaluation at step {one['step']}", f"validation loss {one['loss']:.4f}",
                           f"{one['tokens']} tokens"], self.printed)
        end = self.lines[-1]
        self.assertIn([
            f"4 steps in {end['seconds']:.1f} s", f"{end['tokens_per_second']:.0f} tok/s after the first",
            f"train loss {end['train_loss']:.4f}", f"validation loss {end['validation_loss']:.4f}",
            "48 of 51 GEMMs in FP8", "0 skipped", f"peak {end['peak_bytes'] / 2**20:.1f} MiB"],
            self.printed)

    def test_tensorboard_shows_what_it_records(self):
        wanted = {}

        def want(tag, step, number):
            single = struct.unpack("<f", struct.pack("<f", number))[0]
            wanted.setdefault(tag, []).append((step, single))
        for line in self.lines:
            if line["event"] == "step":
                for name in ("loss", "learning_rate", "gradient_norm", "skipped"):
                    want("train/" + name, line["step"], float(line[name]))
                for name in ("milliseconds", "tokens_per_second"):
                    want("speed/" + name, line["step"], line[name])
                for operand in line.get("operands", []):
                    for name in ("amax", "saturated", "flushed"):
                        want(name + "/" + operand["name"], line["step"], operand[name])
            if line["event"] == "evaluation":
                want("validation/loss", line["step"], line["loss"])
        scalars, texts = shown("run")
        self.assertGreater(len(wanted), 100)
        self.assertEqual(scalars, wanted)
        head = Path("run/metrics.jsonl").read_text().splitlines(keepends=True)[0]
        self.assertEqual(texts, {"config": [(0, f"```\n{Path('run/config.toml').read_text()}```")],
                                 "run": [(0, f"```\n{head}```")]})

    def test_metrics(self):
        self.assertEqual([line["event"] for line in self.lines],
                         ["run", "evaluation", "step", "step", "evaluation", "step", "step",
                          "evaluation", "summary"])
        head, end = self.lines[0], self.lines[-1]
        wanted = {"model": "llama_tiny", "precision": "fp8-delayed", "recipe": "fp8-delayed", "batch": 2,
                  "sequence_length": 32, "steps": 4, "seed": 1, "gemms_fp8": 48, "gemms_total": 51,
                  "trained_parameters": head["parameters"], "adapters": "", "card": "", "ranks": 1,
                  "name": "run", "libraries": "", "transport": "", "zero": 1, "tensor_parallel": 1,
                  "gather": "stored", "reduce": "stored",
                  # All weights multiply except the table of 256 x 128; attention in 4 blocks is as
                  # wide as 128.
                  "flops_per_token": 6 * (head["parameters"] - 256 * 128) + 6 * 32 * 4 * 128}
        self.assertEqual({name: head[name] for name in wanted}, wanted)
        wanted = {"gemms_fp8": 48, "gemms_total": 51, "steps": 4, "skipped": 0, "end": "done"}
        self.assertEqual({name: end[name] for name in wanted}, wanted)
        self.assertGreater(end["peak_bytes"], 4 * head["parameters"])
        self.assertGreater(len(end["sample"]), 0)
        steps = of("step", self.lines)
        self.assertEqual([step["step"] for step in steps], [1, 2, 3, 4])
        for step in steps:
            self.assertTrue(4 < step["loss"] < 7, step)
            self.assertIs(step["skipped"], False)
            for name in ("gradient_norm", "milliseconds", "tokens_per_second", "learning_rate", "epoch"):
                self.assertGreater(step[name], 0, name)
        self.assertEqual(["operands" in step for step in steps], [True, True, False, True])
        operands = steps[-1]["operands"]
        self.assertEqual(len(operands), 48)
        self.assertEqual({one["format"] for one in operands}, {"E4M3", "E5M2"})
        for one in operands:
            self.assertTrue(one["amax"] > 0 and one["scale"] > 0 and 0 <= one["saturated"] <= 1
                            and 0 <= one["flushed"] <= 1, one)

    def test_names_the_text(self):
        size = os.path.getsize("text.txt")
        self.assertPrints(self.done, f"text | read 1 file, {size} bytes",
                          f"text |   text.txt | {size} bytes")

    def test_is_not_overwritten(self):
        before = contents("run")
        self.fails("run/metrics.jsonl exists already", SMALL + "--out run")
        # Two sequences are two documents, which the session would refuse later.
        self.fails("run/metrics.jsonl exists already", "--data text.txt --batch 2 --seq-len 32 "
                   "--document-end 0 --most-documents 1 --out run")
        self.fails("run/config.toml", "--config run/config.toml")
        self.assertEqual(contents("run"), before)
        os.mkdir("taken")
        Path("taken/metrics.jsonl").write_bytes(Path("run/metrics.jsonl").read_bytes())
        done = self.fails("taken/metrics.jsonl exists already", "--config run/config.toml --out taken")
        self.assertNotIn("run/config.toml", done.err, "the configuration is blamed for --out")

    def test_a_configuration_is_not_overwritten(self):
        os.mkdir("own_folder")
        configuration = Path("own_folder/config.toml")
        configuration.write_text('# mine\ndata = ["text.txt"]\n')
        before = contents("own_folder")
        self.fails("own_folder/config.toml exists already",
                   "--config own_folder/config.toml --steps 1 --out own_folder")
        self.assertEqual(contents("own_folder"), before)

    def test_files_of_others_are_not_mixed_with_a_run(self):
        os.makedirs("of_others/folder")
        os.mkdir("noted")
        Path("noted/notes.txt").write_text("mine")
        Path("noted.toml").write_text('out = "noted"\n')
        for folder, flags in (("of_others", "--out of_others"), ("noted", "--out noted"),
                              ("noted", "--out noted --resume auto"), ("noted", "--config noted.toml")):
            before = sorted(os.listdir(folder))
            done = self.fails([f"--out {folder} must be", f"such as {before[0]}"], TINY + flags)
            self.assertEqual("it is set in noted.toml" in done.err, "--config" in flags)
            self.assertEqual(sorted(os.listdir(folder)), before)
        # Logs may exist before a run, and a run may reuse the folder of an earlier one.
        os.mkdir("logged")
        Path("logged/nohup.txt").touch()
        Path("logged/job.log").write_text("started\n")
        self.train(TINY + "--out logged")
        for name in ("config.toml", "metrics.jsonl"):
            os.remove(f"logged/{name}")
        Path("logged/nohup.txt").write_text("of the run\n")
        self.train(TINY + "--out logged")

    def test_its_configuration_repeats_it(self):
        self.train("--config run/config.toml --out again")
        self.assertEqual(timeless("again"), timeless("run"))

    def test_a_configuration(self):
        Path("own.toml").write_text(
            'data = ["text.txt"]\nbatch = 2\nseq-len = 32\nsteps = 4\nwarmup = 4\nsample = 12\n'
            "validation-batches = 2\nevaluate-every = 2\noperands-every = 2\nthreads = 2\n")
        self.train("--config own.toml --out own")
        self.assertEqual(timeless("own"), timeless("run"))
        done = self.train("--config own.toml --steps 1 --sample 0 --precision bf16 --no-out")
        self.assertEqual(done.steps, [1])
        self.assertRegex(done.out, r"(?m)^step 1 .*\| bf16$")
        self.assertIn("0 of 51 GEMMs in FP8", done.out)
        self.fails("--warmup 4", "--config own.toml --steps 3 --sample 0 --no-out", code=0)
        with open("own.toml", "rb") as file:
            done = self.train("--config /dev/stdin --steps 1 --sample 0 --no-out", stdin=file)
        self.assertEqual(done.steps, [1])

    def test_names_of_folders(self):
        self.train(TINY, "--out", "back\\new")
        os.remove("back\\new/metrics.jsonl")
        os.rename("back\\new/config.toml", "back.toml")
        self.train("--config back.toml")
        self.assertTrue(os.path.exists("back\\new/metrics.jsonl"))
        self.fails("--out must be valid UTF-8", SMALL, "--out", "latin-\udcfc")  # no UTF-8
        self.assertFalse(os.path.exists("latin-\udcfc"))
        self.fails("File name too long", SMALL, "--out", "a" * 300)

    def test_sequences_are_padded_for_fp8(self):
        done = self.train("--data text.txt --batch 3 --seq-len 21 --steps 2 --out filled")
        self.assertEqual(done.out.count("sequences of 21 tokens are padded to 32"), 1)
        lines = metrics("filled")
        self.assertEqual((lines[0]["sequence_length"], lines[0]["run_length"]), (21, 32))
        self.assertTrue(all(0 < step["loss"] < 10 for step in of("step", lines)))

    def test_a_text_without_targets(self):
        Path("newlines.txt").write_text("\n" * 3000)
        done = self.train("--data newlines.txt --document-end 10 --most-documents 64 --batch 2 "
                          "--seq-len 32 --steps 2 --warmup 1 --sample 0 --evaluate-every 1 "
                          "--validation-batches 2 --checkpoint-every 1 --keep-best --threads 2 --out none")
        self.assertEqual(len(re.findall(r"(?m)^step [12] .*\| loss none \(no targets\) \|", done.out)), 2)
        self.assertNotIn("nan", done.out)
        lines = metrics("none")
        losses = [line["loss"] for line in lines if line["event"] in ("step", "evaluation")]
        self.assertEqual(losses, [None] * 5)
        for name in checkpoints("none"):
            self.assertNotIn('"validation_loss":0', Path("none/checkpoints", name,
                                                         "manifest.json").read_text())

    def test_micro_batches_count_gemms_once(self):
        done = self.train(BASE + "--steps 1 --sample 0 --batch 1 --micro-batches 2 --no-out")
        self.assertIn("48 of 51 GEMMs in FP8", done.out)


class WhereARunIsKept(TrainerTest):
    """Tests the folders of runs, and what tells that weights are lost."""

    def test_dated_folders(self):
        for _ in range(2):  # within a second
            done = self.train(TINY)
        folders = sorted(os.listdir("runs"))
        self.assertEqual(len(folders), 2)
        for folder in folders:
            self.assertRegex(folder, r"^\d{4}-\d\d-\d\d-\d{6}-llama_tiny-bf16(-\d+)?$")
            self.assertTrue(os.path.getsize(f"runs/{folder}/config.toml"))
            self.assertEqual(metrics(f"runs/{folder}")[-1]["event"], "summary")
        self.assertPrints(done, f"run | kept in runs/{folders[-1]}")
        self.train(f"--config runs/{folders[0]}/config.toml")
        self.assertEqual(len(os.listdir("runs")), 3)

    def test_no_folder(self):
        os.mkdir("nowhere")
        done = self.train("--data ../text.txt " + TINY.split(" ", 2)[2] + "--no-out", cwd="nowhere")
        self.assertEqual(os.listdir("nowhere"), [])
        self.assertIn("--save-hf", done.out)
        self.fails("--no-out", TINY + "--no-out --out few")

    def test_runs_that_begin_at_once(self):
        os.mkdir("at_once")
        command = [self.program, "--data", "../text.txt", *TINY.split()[2:]]
        both = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 cwd="at_once") for _ in range(2)]
        self.assertEqual([run.wait(60) for run in both], [0, 0])
        self.assertEqual(len(os.listdir("at_once/runs")), 2)

    def test_runs_of_one_folder_that_begin_at_once(self):
        both = [subprocess.Popen([self.program, *TINY.split(), "--out", "one"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for _ in range(2)]
        self.assertEqual(sorted(run.wait(60) for run in both), [0, 2])
        self.assertEqual([line["event"] for line in metrics("one")],
                         ["run", "evaluation", "step", "evaluation", "summary"])

    def test_a_locked_folder(self):
        os.mkdir("locked")
        self.fails("locked: another run", TINY + "--out locked",
                   program=["flock", "locked/.lock", self.program])
        self.assertEqual(os.listdir("locked"), [".lock"])

    def test_weights_that_are_not_kept(self):
        lost = "the trained weights are not kept"
        self.assertIn(lost, self.train(TINY + "--out lost").out)
        for flags in ("--checkpoint-every 1 --out saved", "--save-hf exported --no-out"):
            self.assertNotIn(lost, self.train(TINY + flags).out)

    def test_a_run_that_is_done(self):
        self.train(TINY.replace("--steps 1 ", "--steps 9 ") + "--checkpoint-every 3 --out done")
        before = contents("done")
        for steps in (9, 5):
            done = self.train(TINY.replace("--steps 1 ", f"--steps {steps} ") +
                              "--checkpoint-every 3 --resume latest --out done --timeline none.json")
            self.assertEqual(done.steps, [])
            self.assertIn("nothing to train: the run is at step 9", done.out)
            self.assertRegex(done.out, r"(?m)^no new steps, 9 in total \| train loss ")
            self.assertNotRegex(done.lines[-2], "GEMMs in FP8|tok/s")
            self.assertFalse(os.path.exists("none.json"))
        after = contents("done")
        for name in ("config.toml", "metrics.jsonl"):
            self.assertEqual(after["done/" + name], before["done/" + name])


class Help(TrainerTest):
    """Tests --help and --version."""

    def test_version(self):
        self.assertRegex(self.train("--version").out, r"^octavo \d+\.\d+\.\d+\n$")

    def test_help(self):
        done = self.train("--help")
        for flag in ("model", "precision", "device", "data", "batch", "seq-len", "steps", "learning-rate",
                     "seed", "out", "config"):
            self.assertIn(f"--{flag}", done.out)
        for group in ("Model", "Data", "Training", "Output"):
            self.assertRegex(done.out, f"(?m)^{group}:")


if __name__ == "__main__":
    main()

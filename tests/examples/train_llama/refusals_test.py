"""Tests that wrong flags and configurations are refused, with the culprit's name."""

import os
import re
import shutil
from pathlib import Path

from trainer import PROJECT, SMALL, TINY, TrainerTest, main, metrics, of


class Refusals(TrainerTest):
    """Tests the command line."""

    def has_cuda(self):
        return "cuda" in self.train("--help").out.split("--device")[1].split("--", 1)[0]

    def test_numbers(self):
        for flag in ("batch", "seq-len", "steps", "micro-batches", "max-skipped", "operands-every",
                     "log-every", "validation-batches"):
            for value in ("0", "-1", "nan", "1.5", "many", ""):
                self.refused(flag, "--data text.txt", f"--{flag}={value}")
        for flags, values in (
                (["learning-rate"], ["0", "-0.001", "nan", "NaN", "inf", "-inf", "fast", "1e39"]),
                (["weight-decay", "max-gradient-norm", "temperature"], ["-1", "nan", "inf"]),
                (["beta1", "beta2", "final-fraction", "decay-fraction"], ["-0.1", "1", "nan"]),
                (["validation-fraction"], ["0", "1", "-0.1", "nan"]),
                (["epsilon"], ["0"]), (["muon-iterations"], ["0", "101"]), (["seed", "threads", "evaluate-every"], ["-1"]),
                (["steps"], ["1e3", "0x10", "010", "99999999999999999999999"]), (["zero"], ["4"])):
            for flag in flags:
                for value in values:
                    self.refused(flag, "--data text.txt", f"--{flag}={value}")

    def test_words(self):
        for flag, value, suggestion in (
                ("gather", "FP8", "fp8"), ("reduce", "E4M3", "e4m3"), ("exchange", "NCCL", "nccl"),
                ("schedule", "step", ""), ("recompute", "bock", "block"), ("moments", "BF16", "bf16"),
                ("weight-copies", "Remad", "remade"), ("master-weights", "fp16", ""),
                ("precision", "fp8", "fp8-delayed"), ("precision", "fp4", ""), ("device", "tpu", "cpu"),
                ("model", "llama3_8", "llama3_8b"), ("model", "llama_huge", "llama_tiny"),
                *(("device", name, "cuda") for name in ("gpu", "GPU", "gpu:0", "cude", "CUDA"))):
            self.refused(["--" + flag, value, suggestion], f"--data text.txt --{flag} {value}")
        self.refused(["--device", "gpu"], "--data text.txt --threads 1 --device gpu")

    def test_unknown_flags(self):
        for flag in ("ckpt", "zzz"):
            self.refused(flag, f"--data text.txt --{flag} 1")
        for flags, suggestion in (("--data text.txt --stpes 5", "steps"), ("--dat text.txt", "data"),
                                  ("--data text.txt --learning-rat 1e-3", "learning-rate"),
                                  ("--data text.txt --step=5", "steps"),
                                  ("--data text.txt -steps 5", "--steps"),
                                  ("--data text.txt -steps=5", "--steps")):
            self.refused(suggestion, flags)
        self.refused("extra", "--data text.txt --steps 1 -- extra")
        for words in (["text.txt"], ["text.txt", "--steps", "1"], ["--steps", "1", "text.txt"]):
            self.refused("pass --data text.txt", "", *words)
        self.refused("pass --data 'my text.txt'", "", "my text.txt")
        self.refused(r"\x1B[31mred", "--data text.txt --", "\033[31mred")

    def test_help_has_no_empty_defaults(self):
        options = re.findall(r"(?m)^  --.*", self.train("--help").out)
        self.assertGreater(len(options), 60)
        self.assertEqual([line for line in options if re.search(r"=?(\[\]|\"\"|\{\})", line)], [])

    def test_flags_of_other_trainers(self):
        for flag, own in (("lr", "learning-rate"), ("min-lr", "final-fraction"), ("max-steps", "steps"),
                          ("train_iters", "steps"), ("gradient-accumulation-steps", "micro-batches"),
                          ("micro-batch-size", "batch"), ("global-batch-size", "micro-batches"),
                          ("seq-length", "seq-len"), ("tensor-model-parallel-size", "tensor-parallel"),
                          ("fp8-format", "precision"), ("bf16", "precision"), ("dtype", "precision"),
                          ("clip-grad", "max-gradient-norm"), ("lr-warmup-iters", "warmup"),
                          ("warmup_ratio", "warmup"), ("save-interval", "checkpoint-every"),
                          ("load", "resume")):
            self.refused(f"unknown option '{flag}'; use '{own}'", f"--data text.txt --{flag} 1")

    def test_values(self):
        self.refused("--deterministic", "--data text.txt --deterministic=maybe")
        self.refused("--steps", "--data text.txt --steps 2 --steps 30")
        for flag in ("threads", "data", "config", "model", "steps"):
            self.fails("--" + flag, f"--data text.txt --{flag}")

    def test_flags_that_exclude_each_other(self):
        self.refused("--optimizer muon", "--data text.txt --muon-momentum 0.9")
        self.refused("--gpu", "--data text.txt --gpu 0")
        self.refused("--gemm-plans", "--data text.txt --gemm-plans plans")
        self.refused("--threads", "--data text.txt --device cuda --threads 1")

    def test_flags_without_effect(self):
        for flags, need in (("--hellaswag-questions 5", "--hellaswag FILE"), ("--timeline-steps 2", "--timeline FILE"),
                            ("--decay-fraction 0.3", "--schedule wsd"),
                            ("--final-fraction 0 --schedule constant", "--schedule cosine, linear or wsd"),
                            ("--spike-window 9", "--on-spike"), ("--spike-threshold 9", "--on-spike"),
                            ("--max-rollbacks 2 --on-spike skip", "--on-spike rollback"),
                            ("--sample-each --sample 0", "--sample N"),
                            ("--sample-each --evaluate-every 0", "--evaluate-every N"), ("--temperature 0 --sample 0", "--sample N"),
                            ("--keep-last 2", "--checkpoint-every N"), ("--convert", "--resume"),
                            ("--replays 2", "--replay-step N"), ("--muon-rate original", "--optimizer muon"),
                            ("--lora-alpha 8", "--lora RANK"), ("--weight-copies remade --precision bf16", "--precision"),
                            ("--master-weights bf16 --precision fp32", "--precision bf16")):
            flag = flags.split()[0]
            self.refused([f"train_llama: {flag} needs {need}", f", but {need.split()[0]} is ", f"leave {flag} out"],
                         "--data text.txt " + flags)
        for flags, other in (("--validation-fraction 0.3 --validation-data text.txt", "--validation-data"),
                             ("--hash-every 2 --no-out", "--no-out"), ("--operands-every 3 --no-out", "--no-out")):
            done = self.train("--data text.txt " + flags, code=2)
            self.tells(done, f"{flags.split()[0]} has no effect with {other}; leave one of them out")

    def test_adapters_of_a_resumed_run(self):
        for resume in ("latest", "there"):
            self.refused(["--load-adapters sets the adapters with which a run begins, but --resume "
                          f"{resume} continues with those of its checkpoint; leave one of them out"],
                         f"--data text.txt --precision fp32 --lora 2 --load-adapters adapters --resume {resume}")

    def test_a_folder_on_the_command_line(self):
        Path("folder.toml").write_text('out = "unused"\n')
        self.train(TINY + "--config folder.toml --no-out")
        self.assertFalse(os.path.exists("unused"))
        Path("folder.toml").write_text("no-out = true\n")
        self.train(TINY + "--config folder.toml --out used")
        self.assertIn("no-out = false", Path("used/config.toml").read_text())
        self.fails("--out and --no-out exclude each other", TINY + "--no-out --out both")

    def test_one_task(self):
        """One of the tasks, and flags of the others, would have no effect."""
        for flags in ("--export-hf a --list-checkpoints", "--replay-step 2 --list-checkpoints",
                      "--resume latest --list-checkpoints", "--save-hf a --list-checkpoints",
                      "--replay-step 2 --export-hf a --resume latest", "--save-hf a --export-hf b --resume latest",
                      "--timeline a.json --replay-step 2", "--save-hf a --replay-step 2",
                      "--checkpoint-every 2 --replay-step 2", "--max-time 9 --replay-step 2",
                      "--convert --export-hf a --resume latest", "--replays 3 --list-checkpoints"):
            flag, task = flags.split()[0], [word for word in flags.split() if word.startswith("--")][1]
            self.fails(f"train_llama: {flag} has no effect with {task}; leave one of them out",
                       flags + " --out absent --data text.txt")
        self.assertFalse(os.path.exists("a") or os.path.exists("b") or os.path.exists("absent"))
        # Not if a file sets the flags, as a run's config.toml does.
        Path("task.toml").write_text('out = "listed"\nsave-hf = "a"\ntimeline = "a.json"\nresume = "auto"\n')
        os.mkdir("listed")
        self.assertIn("contains no checkpoint", self.train("--config task.toml --list-checkpoints").out)

    def test_flags_of_files_without_effect(self):
        Path("effect.toml").write_text('data = ["text.txt"]\nspike-window = 9\n')
        self.fails("effect.toml:2: --spike-window needs --on-spike stop, skip or rollback, but --on-spike is off",
                   "--config effect.toml --no-out")
        # Defaults have none either, but a run's config.toml sets them all.
        Path("effect.toml").write_text('data = ["text.txt"]\nspike-window = 50\nsample-each = false\n')
        self.train("--config effect.toml --no-out " + TINY.replace("--data text.txt", ""))
        # The command line overrides the file.
        Path("effect.toml").write_text('data = ["text.txt"]\nspike-window = 9\non-spike = "skip"\n')
        flags = "--config effect.toml --on-spike off " + TINY.replace("--data text.txt", "")
        self.train(flags + "--out overridden")
        self.assertIn("\nspike-window = 50\n", Path("overridden/config.toml").read_text())
        self.fails("train_llama: --spike-window needs", flags + "--no-out --spike-window 8")

    def test_models(self):
        os.makedirs("shape")
        os.makedirs("full")
        os.makedirs("piped")
        shutil.copy(PROJECT / "tests/golden/hugging_face/llama.5.json", "shape/config.json")
        Path("full/config.json").write_text(
            Path("shape/config.json").read_text().replace('llama"', 'phi3"'))
        os.mkfifo("piped/config.json")
        self.refused(["llama3_70b", "-DOCTAVO_PRESETS="], "--data text.txt --model llama3_70b")
        self.refused(f"-DOCTAVO_MODELS=my_model:{os.getcwd()}/shape", "--data text.txt --model hf:shape")
        self.refused("phi3", "--data text.txt --model hf:full")
        self.refused("hf:none", "--data text.txt --model hf:none")
        self.refused("piped/config.json", "--data text.txt --model hf:piped")
        if not self.has_cuda():
            self.refused("-DOCTAVO_CUDA=ON", "--data text.txt --precision fp8-delayed --device cuda")

    def test_outputs(self):
        os.makedirs("taken")
        Path("taken/file").touch()
        self.refused("taken", SMALL + "--save-hf taken")
        Path("taken.toml").write_text('save-hf = "taken"\n')
        self.refused("taken.toml:1", SMALL + "--config taken.toml")
        self.train(SMALL + "--config taken.toml --save-hf '' --no-out")
        for name in ("checkpoints", "checkpoints/tuned", "config.toml", "metrics.jsonl", "./checkpoints/../checkpoints/"):
            self.refused("--save-hf refused/", SMALL + f"--save-hf refused/{name}")
        for flags in ("--save-hf outer --out outer/run", "--save-hf outer --out outer/",
                      "--save-hf . --no-out --timeline trace.json"):
            done = self.train(SMALL + flags, code=2)
            self.tells(done, "is in the folder of --save-hf, ")
            self.assertFalse(os.path.exists("outer"))
        self.refused("/proc/trace.json", SMALL + "--timeline /proc/trace.json")
        text = Path("text.txt").read_text()
        self.refused("not written by this program", SMALL + "--timeline text.txt")
        self.assertEqual(Path("text.txt").read_text(), text)


class Configurations(TrainerTest):
    """Tests files of flags."""

    def wrong(self, culprits, line):
        Path("wrong.toml").write_text(f'data = ["text.txt"]\n{line}\n')
        culprits = [culprits] if isinstance(culprits, str) else culprits
        with self.subTest(line=line):
            self.refused(["wrong.toml:2: ", *culprits], "--config wrong.toml")

    def test_wrong_lines(self):
        for culprit, line in (
                ("steps", "--steps = 3"), ("warm-up", "warm-up = 3"),
                ("'max-gradient-norm'", "max_grad_norm = 1"), ("help", "help = true"),
                ("[training]", "training.steps = 3"), ("[training]", "[training]\nsteps = 3"),
                ("batch", "batch = 0"), ("steps", "steps = 1.5"), ("learning-rate", "learning-rate = nan"),
                ("steps", 'steps = "3"'), ("llama_tiny", "model = llama_tiny"), ("", 'model = "llama_tiny'),
                ("", "model = 'llama_tiny"), ("", 'validation-data = ["text.txt]'),
                ("", 'model = "llama\\q"'), ("out", "out = 3"), ("out", "out = 2026-11-22"),
                ("deterministic", "deterministic = 1"), ("batch", "batch = [1, 2]"),
                ("schedule", 'schedule = "step"'), ("", "steps = = 3"), ("model", 'model = "llama_huge"'),
                ("precision", 'precision = "fp4"'), ("device", 'device = "tpu"'), ("--gpu", "gpu = 1")):
            self.wrong(culprit, line)

    def test_wrong_files(self):
        Path("twice.toml").write_text('data = ["text.txt"]\nsteps = 3\nsteps = 3\n')
        self.refused("twice.toml:3: ", "--config twice.toml")
        Path("no_text.toml").write_text("data = []\n")
        self.refused("no_text.toml:1: data", "--config no_text.toml")
        self.refused("absent.toml", "--config absent.toml")
        self.refused("'.'", "--config .")
        self.refused("/dev/zero", SMALL + "--config /dev/zero")

    def test_pipes(self):
        os.mkfifo("pipe.toml")  # without a writer
        os.symlink("pipe.toml", "linked.toml")
        for name in ("pipe.toml", "linked.toml"):
            self.refused(f"--config: '{name}' is a named pipe; pass a TOML file", "--config " + name)
        Path("piped.toml").write_text("steps = 2\n")
        done = self.train(TINY.replace("--steps 1", "--no-out"), program=[
            "bash", "-c", 'exec "$0" --config <(cat piped.toml) "$@"', self.program])
        self.assertEqual(done.steps, [1, 2])

    def test_the_command_line_is_blamed_for_its_flags(self):
        Path("tpu.toml").write_text('data = ["text.txt"]\ndevice = "tpu"\n')
        self.refused("train_llama: --device", "--config tpu.toml --device gpu")
        Path("gpu.toml").write_text('data = ["text.txt"]\ngpu = 1\n')
        self.refused("train_llama: --gpu", "--config gpu.toml --gpu 2")
        Path("threads.toml").write_text('data = ["text.txt"]\nthreads = 2\n')
        self.refused(["threads.toml:2", "'cuda'"], "--config threads.toml --device cuda")

    def test_all_of_toml(self):
        os.mkdir("texts")
        shutil.copy("text.txt", "texts/a.txt")
        Path("full.toml").write_text("""# Everything that TOML has for these values.
data = [
  "text.txt",  # with a comment
  'texts/a.txt',
]
steps = 1_0
batch = 0x2
learning-rate = 1_0e-4
weight-decay = 0
warmup = +3
seq-len = 3.2e1
precision = '''bf16'''
out = "full \\u0041 \\"quoted\\""
sample = 0
""")
        self.train("--config full.toml --steps 2")
        lines = metrics('full A "quoted"')
        head = lines[0]
        self.assertEqual((head["steps"], head["batch"], head["sequence_length"]), (2, 2, 32))
        self.assertEqual((head["precision"], head["files"]), ("bf16", 2))
        self.assertAlmostEqual(of("step", lines)[0]["learning_rate"], 1e-3 / 3, delta=1e-12)
        self.train("", "--config", 'full A "quoted"/config.toml', "--out", "quoted")
        self.assertEqual(metrics("quoted")[0]["steps"], 2)


if __name__ == "__main__":
    main()

"""Tests the configurations in examples/experiments/, with a small model in place of theirs."""

import re
from pathlib import Path

from trainer import PROJECT, SMALL, TrainerTest, main, metrics

FEW = ("--model llama_tiny --device cpu --threads 2 --data text.txt --batch 1 --micro-batches 1 --seq-len 64 "
       "--steps 2 --warmup 1 --validation-batches 1 --checkpoint-every 0 --sample 0 ")


class Experiments(TrainerTest):
    """Tests that each configuration runs, or says what to build."""

    def test_all(self):
        help_text = self.train("--help").out
        has_cuda = "cuda" in help_text.split("--device")[1].split("--", 1)[0]
        tried = 0
        for experiment in sorted((PROJECT / "examples/experiments").glob("*.toml")):
            text = experiment.read_text()
            if "train_llama --config" not in text:
                continue
            with self.subTest(experiment=experiment.stem):
                tried += 1
                # GEMM plans are for the other device.
                Path(experiment.name).write_text(re.sub("(?m)^gemm-plans = .*\n", "", text))
                flags = FEW + f"--config {experiment.name} --out {experiment.stem}"
                precision = re.search('(?m)^precision = "(.*)"$', text)[1]
                if re.search(rf"(^|[ ,]){precision}(,| |$)", help_text, re.MULTILINE):
                    self.assertEqual(self.train(flags).steps, [1, 2])
                else:
                    self.fails(f';{precision}" && cmake', flags)
                built = re.search(r"(?m)^# Compiled with (.*)\.$", text)
                if built and not has_cuda:
                    self.fails(f"cmake BUILD_FOLDER {built[1]} && cmake",
                               f"--config {experiment} --data text.txt")
        self.assertGreater(tried, 3)
        self.assertEqual(metrics("llama3_8b_fp8_delayed")[0]["gather"], "fp8")

    def test_weights_that_no_rank_gathers(self):
        self.fails("warning: --gather fp8 has no effect on one rank",
                   SMALL + "--precision fp8-delayed --gather fp8 --no-out", code=0)


if __name__ == "__main__":
    main()

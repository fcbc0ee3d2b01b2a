"""Tests runs that end early: by numbers that are not finite, by signals; warnings, and the progress bar."""

import os
import pty
import re
import signal
import subprocess
import time

from trainer import BASE, TrainerTest, checkpoints, main, metrics, of, shown, step_names


class Numbers(TrainerTest):
    """Tests runs whose numbers go wrong."""

    def test_steps_that_are_not_finite(self):
        flags = BASE + "--batch 2 --steps 50 --learning-rate 1e30 --warmup 0 --max-skipped 3 "
        done = self.fails("nan/metrics.jsonl", flags + "--sample 0 --out nan", code=3)
        self.assertRegex(done.err, r"blocks\.[0-9]+\.[a-z_.]+ and [0-9]+ more operands")
        self.assertIn("SKIPPED", done.out)
        lines = metrics("nan")
        steps, end = of("step", lines), lines[-1]
        self.assertEqual((end["event"], end["end"]), ("summary", "not finite"))
        self.assertTrue(3 <= end["skipped"] and end["steps"] < 50, end)
        skipped = [step["skipped"] for step in steps]
        self.assertEqual(skipped[-3:], [True] * 3)
        self.assertFalse(skipped[0])
        self.assertEqual(sum(skipped), end["skipped"])
        for step in steps:
            if step["skipped"]:
                met = [operand for operand in step["operands"] if operand["nonfinite"] > 0]
                self.assertTrue(met)
                self.assertTrue(all(operand["amax"] is None for operand in met
                                    if operand["name"].endswith("input")), met[:3])
        done = self.fails("more operands", flags + "--no-out", code=3)
        self.assertIn(" skipped | peak ", done.lines[-1], "a sample of a model that was given up")

    def test_a_last_loss_that_is_not_finite(self):
        flags = BASE + "--batch 2 --sample 0 --warmup 0 --precision bf16 --no-out "
        done = self.fails("the validation loss after the last step is not finite",
                          flags + "--steps 1 --learning-rate 1e16", code=0)
        self.assertIn("| validation loss not finite |", done.out)

    def test_divergence(self):
        done = self.fails("--learning-rate", BASE + "--batch 2 --sample 0 --steps 6 --learning-rate 10 "
                          "--warmup 0 --precision bf16 --no-out", code=0)
        losses = [float(loss) for loss in re.findall(r"(?m)^step .* \| loss ([0-9.]+) ", done.out)]
        now, step, first = re.search(r"loss is (\S+) at step (\d+), (\S+) at first", done.err).groups()
        loss = losses[int(step) - 1]
        self.assertAlmostEqual(float(first), losses[0], delta=1e-2)
        self.assertGreater(loss, 2 * losses[0])
        self.assertAlmostEqual(float(now) / loss, 1, delta=1e-2)

    def test_operands_in_trouble(self):
        done = self.train("--data text.txt --seq-len 32 --batch 2 --threads 2 --validation-batches 1 "
                          "--evaluate-every 0 --operands-every 1 --steps 8 --warmup 0 --learning-rate 1 "
                          "--sample 0 --out troubled")
        lines = metrics("troubled")
        warnings = of("warning", lines)
        texts = [(line["step"], line["text"]) for line in warnings]
        told = re.findall(r"(?m)^train_llama: warning: at step (\d+), (.*)\. If the loss suffers", done.err)
        self.assertTrue(texts)
        self.assertEqual(texts, [(int(step), text) for step, text in told])
        self.assertEqual(shown("troubled")[1]["warnings"], texts)
        names = {operand["name"] for operand in of("step", lines)[0]["operands"]}
        for line in warnings:
            self.assertIn(line["kind"], ("saturated", "flushed", "drifting"))
            self.assertLessEqual(set(line["operands"]), names)
            self.assertTrue(line["text"].startswith(line["operands"][0] + ": "), line)
        self.assertTrue(any(len(line["operands"]) > 1 for line in warnings), warnings)

    def test_a_warning_names_its_flags(self):
        self.fails(["--warmup 4", "--steps 3"], BASE + "--batch 2 --steps 3 --warmup 4 --sample 0 --no-out",
                   code=0)


class Signals(TrainerTest):
    """Tests that a signal ends a run after its step."""

    def stopped_after(self, step, flags):
        """Sends SIGTERM once the step is printed; what follows it takes longer than the signal.
        Returns the exit code, the last step that was printed, the messages, and the summary."""
        command = [self.program, *("--data text.txt --batch 4 --precision bf16 --validation-batches 1 "
                                   f"--threads 1 --out after {flags}").split()]
        printed = 0
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            for line in run.stdout:
                if match := re.match(r"step (\d+) ", line):
                    printed = int(match[1])
                if line.startswith(f"step {step} "):
                    run.send_signal(signal.SIGTERM)
            err = run.stderr.read()
            code = run.wait(60)
        end = metrics("after")[-1]
        subprocess.run(["rm", "-r", "after"], check=True)
        return code, printed, err, end

    def test_the_run_ends_after_its_step(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            folder = f"stopped_{number}"
            command = [self.program, *("--data text.txt --batch 2 --seq-len 32 --steps 1000000 --sample 0 "
                                       f"--validation-batches 1 --threads 2 --out {folder}").split()]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True) as run:
                for line in run.stdout:
                    if line.startswith("step 3 "):
                        # Schedulers and terminals may send it more than once.
                        for _ in range(3):
                            run.send_signal(number)
                            time.sleep(0.001)
                        break
                printed = run.stdout.read()
                err = run.stderr.read()
                self.assertEqual(run.wait(60), 128 + number)
            self.assertEqual(err.count("\n"), 1, err)
            lines = metrics(folder)
            steps, end = of("step", lines), lines[-1]
            self.assertEqual((end["event"], end["steps"], end["end"]),
                             ("summary", len(steps), f"signal {number}"))
            self.assertEqual(["operands" in step for step in steps],
                             [True] + [False] * (len(steps) - 2) + [True])
            self.assertTrue(3 <= len(steps) < 1000, len(steps))
            self.assertIn(f"{len(steps)} steps in ", printed)

    def test_max_time(self):
        done = self.train("--data text.txt --batch 2 --seq-len 32 --steps 1000000 --sample 0 --threads 2 "
                          "--validation-batches 1 --max-time 1s --checkpoint-every 1000000 --out timed",
                          code=143)
        self.assertIn("--max-time", done.err)
        lines = metrics("timed")
        self.assertEqual(lines[-1]["end"], "signal 15")
        self.assertEqual(checkpoints("timed"), step_names(lines[-1]["steps"]))

    def test_the_last_step_is_printed(self):
        code, printed, err, end = self.stopped_after(1, "--sample 0 --steps 1000 --log-every 500")
        self.assertEqual((code, printed, end["end"]), (143, end["steps"], "signal 15"))
        self.assertLess(end["steps"], 100)
        self.assertNotIn("--resume", err, "there is no checkpoint")

    def test_a_signal_in_the_last_step(self):
        for sample in (0, 1000000000):  # which the signal ends
            code, printed, _, end = self.stopped_after(1, f"--sample {sample} --steps 2")
            self.assertEqual((code, printed, end["steps"], end["end"]), (0, 2, 2, "done"))


class Terminal(TrainerTest):
    """Tests what is printed on a terminal."""

    def test_the_progress_bar(self):
        ours, its = pty.openpty()
        flags = ("--data text.txt --batch 1 --seq-len 32 --steps 8 --sample 0 --validation-batches 1 "
                 "--no-out --threads 1")
        with subprocess.Popen([self.program, *flags.split()], stdout=subprocess.DEVNULL,
                              stderr=its) as run:
            os.close(its)
            text = b""
            while True:
                try:
                    piece = os.read(ours, 65536)
                except OSError:
                    break
                if not piece:
                    break
                text += piece
            self.assertEqual(run.wait(60), 0)
        os.close(ours)
        lines = re.findall(r"\[(=* *)\] (\d+)/8 \| loss \d\.\d{4} \| [0-9,]+ of 256 tokens \| (\d+) s left", text.decode())
        self.assertEqual([int(step) for _, step, _ in lines], list(range(1, 9)), text)
        for bar, step, _ in lines:
            self.assertEqual(bar, ("=" * (30 * int(step) // 8)).ljust(30))
        self.assertEqual(int(lines[-1][2]), 0)


if __name__ == "__main__":
    main()

"""Tests that several ranks have the losses of one, also if they share layers, and their timeline."""

import json
from pathlib import Path

from ranks import RANKS, RanksTest
from trainer import main, metrics, of

TWO = "--precision fp8-delayed --steps 2 --no-out --sample 12 "


class Losses(RanksTest):
    """Tests 20 steps with the same tokens per step, on one rank and on several."""

    def trained(self, folder, ranks, flags):
        """Trains, and returns the losses and the peak memory."""
        done = self.on_ranks(ranks, RANKS + f"--steps 20 --sample 0 --out {folder} " + flags)
        self.assertEqual(len(done.steps), 20)
        lines = metrics(folder)
        self.assertEqual(lines[0]["ranks"], ranks)
        losses = [line["loss"] for line in lines if line["event"] in ("step", "evaluation")]
        self.assertEqual(len(losses), 22)
        return losses, lines[-1]["peak_bytes"], done

    def compare(self, precision, allowed):
        flags = f"--precision {precision} "
        one, memory_of_one, _ = self.trained(f"{precision}-1", 1, flags + "--micro-batches 4")
        self.assertLess(one[-1], 0.9 * one[0])
        several = {}
        for zero in (1, 2, 3):
            for ranks, micro, shared in ((2, 2, 1), (4, 1, 1), (4, 2, 2)):
                more = f"--micro-batches {micro} --zero {zero} --tensor-parallel {shared} "
                if shared == 2:
                    more += f"--check-replicas {20 if zero < 3 else 0}"
                name = f"{precision}-{ranks}-{shared}-{zero}"
                several[name] = self.trained(name, ranks, flags + more)
        name = f"{precision}-2-2"
        several[name] = self.trained(name, 2, flags + "--micro-batches 4 --tensor-parallel 2")
        for name, (losses, _, done) in several.items():
            self.assertNotIn("on one rank", done.err)
            difference = max(abs(a - b) / a for a, b in zip(one, losses))
            self.assertLessEqual(difference, allowed, name)
        # With one micro-batch per rank, sharding changes no bit.
        of_stages = [several[f"{precision}-4-1-{zero}"] for zero in (1, 2, 3)]
        self.assertEqual(of_stages[1][0], of_stages[0][0])
        self.assertEqual(of_stages[2][0], of_stages[0][0])
        self.assertTrue(of_stages[2][1] < of_stages[0][1] < memory_of_one)
        return of_stages[2]

    def test_fp32(self):
        self.compare("fp32", 1e-6)

    def test_fp8(self):
        losses, memory, _ = self.compare("fp8-delayed", 2e-3)
        gathered = self.trained("gathered", 4, "--precision fp8-delayed --micro-batches 1 --zero 3 "
                                "--gather fp8")
        self.assertRegex(gathered[2].out, r"(?m)^gather \| [1-9][0-9]* of [0-9]+ parameters in FP8")
        self.assertEqual(gathered[0], losses)
        self.assertLess(gathered[1], memory)

    def test_what_cannot_be_exchanged(self):
        done = self.on_ranks(2, RANKS + "--precision fp32 --gather fp8 --no-out", code=2)
        self.assertIn("FP8", done.err)
        done = self.train(RANKS + "--precision fp32 --reduce e4m3 --no-out", code=2)
        self.assertIn('-DOCTAVO_REDUCE="stored;e4m3"', done.err)


class Samples(RanksTest):
    """Tests that several ranks write one text."""

    def test_samples(self):
        self.on_ranks(2, RANKS + TWO + "--zero 3")
        done = self.on_ranks(2, RANKS + TWO + "--tensor-parallel 2 --zero 2")
        self.assertNotIn("on one rank", done.err)


class Timeline(RanksTest):
    """Tests the timeline of two ranks."""

    def test_timeline(self):
        done = self.on_ranks(2, RANKS + "--precision fp8-delayed --steps 4 --sample 0 --timeline trace.json "
                             "--timeline-steps 2 --out timeline --check-replicas 2")
        self.assertRegex(done.out, r"(?m)^exposed communication [0-9.]+ ms of [0-9.]+ ms per step "
                         r"\(rank [01], .* steps 2 to 3\)")
        events = [event for event in json.loads(Path("trace.json").read_text())["traceEvents"]
                  if event["ph"] == "X"]
        (line,) = of("timeline", metrics("timeline"))

        def within(part, whole):
            return (whole["ts"] <= part["ts"] and
                    part["ts"] + part["dur"] <= whole["ts"] + whole["dur"])
        exposed = {}
        for rank in (0, 1):
            own = [event for event in events if event["pid"] == rank]
            steps = [event for event in own if event["name"] == "step"]
            self.assertEqual(len(steps), 2)
            blocks = {event["name"].removeprefix("forward ") for event in own
                      if event["name"].startswith("forward blocks.")}
            for step in steps:
                (backward,) = [event for event in own
                               if event["name"] == "backward" and within(event, step)]
                reduces = [event for event in own
                           if event["name"].startswith("reduce blocks.") and within(event, step)]
                self.assertEqual({event["name"].removeprefix("reduce ") for event in reduces}, blocks)
                self.assertTrue(all(within(event, backward) for event in reduces))
            # On the cpu device, nothing overlaps with communication.
            exposed[rank] = sum(event["dur"] for event in own if event["cat"] == "communication") / 2e3
        worst = max(exposed, key=exposed.get)
        found = line["exposed_communication_milliseconds"]
        self.assertEqual(line["rank"], worst)
        self.assertGreater(found, 0)
        self.assertLess(abs(found - exposed[worst]), 1e-6 * found)

    def test_a_folder_that_does_not_exist(self):
        flags = RANKS + "--steps 1 --no-out --timeline nowhere/trace.json "
        self.assertIn("nowhere/trace.json", self.on_ranks(2, flags, code=2).err)
        # Only rank 0 looks; the others must not begin a collective operation.
        done = self.on_ranks(2, flags + "--precision fp32 --tensor-parallel 2", code=2)
        self.assertEqual(done.err.count("train_llama: "), 1)


if __name__ == "__main__":
    main()

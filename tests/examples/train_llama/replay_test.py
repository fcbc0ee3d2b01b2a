"""Tests --hash-every and --replay-step: which steps are equal to their records."""

import json
import shutil
from pathlib import Path

from trainer import (SAVED, SHORT, TrainerTest, add_to_manifest, contents, copy, main, metrics, of)


class Replay(TrainerTest):
    """Tests replays of a run of 8 steps that records hashes."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls().train(SHORT + "--steps 8 --checkpoint-every 3 --hash-every 2 --out hashed")

    def replay(self, folder, step, flags="", code=0):
        """Replays a step of a run, whose files stay as they are."""
        before = contents(folder)
        done = self.train(f"--config hashed/config.toml --out {folder} --replay-step {step} {flags}",
                          code=code)
        self.assertEqual(contents(folder), before)
        return done

    def recorded(self, change):
        """A copy of the run whose records, a list and a dictionary of steps, are changed."""
        lines = metrics(copy("hashed", "other"))
        change(lines, {line["step"]: line for line in of("step", lines)})
        Path("other/metrics.jsonl").write_text(
            "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))

    def test_hashes(self):
        hashes = {step["step"]: step["weights_hash"] for step in of("step", metrics("hashed"))
                  if "weights_hash" in step}
        self.assertEqual(sorted(hashes), [2, 4, 6, 8])
        self.assertEqual(len(set(hashes.values())), 4)
        for text in hashes.values():
            self.assertTrue(len(text) == 16 and int(text, 16))

    def test_equal_steps(self):
        for step, times, begin in ((2, 2, "the start of the run"),
                                   (8, 3, "hashed/checkpoints/step-00000006")):
            done = self.replay("hashed", step, f"--replays {times}")
            self.assertRegex(done.out, rf"(?m)^replay \| step {step}, {times} times, .*, from {begin}$")
            self.assertRegex(done.out, "(?m)^equal: .* equal to its record")
            rows = [[cell.strip() for cell in line.split(" | ")] for line in done.lines]
            rows = [row for row in rows if len(row) == 5]
            record = [line for line in of("step", metrics("hashed")) if line["step"] == step][0]
            self.assertEqual([row[0] for row in rows], ["replay", "recorded", *map(str, range(1, times + 1))])
            for row in rows[1:]:
                self.assertEqual([float(row[1]), float(row[2]), row[3]],
                                 [record["loss"], record["gradient_norm"], record["weights_hash"]])
            self.assertEqual(len({row[4] for row in rows[2:]}), 1)
            self.assertTrue(int(rows[2][4], 16))

    def test_another_loss(self):
        def change(_, step):
            step[7]["loss"] += 1e-15
        self.recorded(change)
        self.assertIn("from step 7 on", self.replay("other", 8, code=6).out)
        self.replay("other", 6)

    def test_another_hash(self):
        def change(_, step):
            step[8]["weights_hash"] = step[6]["weights_hash"]
        self.recorded(change)
        self.assertIn("from step 8 on", self.replay("other", 8, code=6).out)

    def test_spikes(self):
        def behind_a_rollback(lines, step):
            lines.insert(lines.index(step[8]), {"event": "spike", "step": 7, "resumed_step": 6})
            step[8]["loss"] = 1.0
        self.recorded(behind_a_rollback)
        self.assertIn("no record", self.replay("other", 8).out)

        def behind_a_later_checkpoint(lines, step):
            lines.insert(1, {"event": "spike", "step": 5, "resumed_step": 3})
            step[8]["loss"] = 1.0
        self.recorded(behind_a_later_checkpoint)
        self.replay("other", 8, code=6)

    def test_a_step_that_was_not_recorded(self):
        def change(lines, _):
            del lines[1:]
        self.recorded(change)
        self.replay("other", 8)
        shutil.rmtree("other/checkpoints")
        elsewhere = "--resume hashed/checkpoints/step-00000006"
        done = self.replay("other", 8, elsewhere)
        self.assertIn(", from hashed/checkpoints/step-00000006\n", done.out)
        self.assertNotIn("may differ", done.out)
        self.fails("--replay-step 6", f"--config hashed/config.toml --out other --replay-step 6 {elsewhere}")

    def test_a_run_that_resumed_in_its_folder(self):
        """Its config.toml names the run itself, as the resume command of a stopped run does."""
        self.train(SHORT + "--steps 8 --checkpoint-every 3 --schedule constant --out resumed")
        self.train("--config resumed/config.toml --resume resumed --steps 9")
        for step, begin in ((2, "the start of the run"), (9, "resumed/checkpoints/step-00000008")):
            done = self.train(f"--config resumed/config.toml --replay-step {step}")
            self.assertRegex(done.out, rf"(?m)^replay \| step {step}, .*, from {begin}$")
            self.assertRegex(done.out, "(?m)^equal: .* equal to its record")

    def test_a_run_that_began_elsewhere(self):
        """It resumed in its own folder later, and its config.toml names only that."""
        first = "checkpoints/step-00000006"
        copy("hashed", "elsewhere")
        self.train(SHORT + f"--steps 9 --checkpoint-every 8 --schedule constant --resume elsewhere/{first} --out begun")
        self.train("--config begun/config.toml --resume begun --steps 11")
        for step, begin in ((7, f"elsewhere/{first}"), (8, f"elsewhere/{first}"),
                            (11, "begun/checkpoints/step-00000009")):
            done = self.train(f"--config begun/config.toml --replay-step {step}")
            self.assertRegex(done.out, rf"(?m)^replay \| step {step}, .*, from {begin}$")
            self.assertRegex(done.out, "(?m)^equal: .* equal to its record")
        replayed = "--config begun/config.toml --replay-step "
        self.fails("--replay-step must be a step of the run in begun, which began after step 6, but is 6", replayed + "6")
        shutil.rmtree("elsewhere")
        self.fails(f"the run in begun began with elsewhere/{first} in {self.folder}, which is not a checkpoint",
                   replayed + "8")
        done = self.train(replayed + f"8 --resume hashed/{first}")
        self.assertRegex(done.out, "(?m)^equal: .* equal to its record")

    def test_other_libraries(self):
        copy("hashed", "of_gpu")
        shutil.rmtree("of_gpu/checkpoints/step-00000008")
        add_to_manifest("of_gpu", '"libraries":"a GPU, cuDNN 9.19.0"')
        self.assertRegex(self.replay("of_gpu", 8).out, r"(?m)^replay \| .*cuDNN 9\.19\.0.* may differ")

    def test_wrong_flags(self):
        self.fails(["--replay-step", "8 steps", "9"], "--config hashed/config.toml --replay-step 9")
        self.fails("--out", "--data text.txt --replay-step 3")
        self.fails("--replay-step", SAVED + "--out few --replays 3")


if __name__ == "__main__":
    main()

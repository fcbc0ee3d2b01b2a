"""Tests which checkpoints a run keeps, also when it resumes with another configuration."""

import os
import re
import shutil
from pathlib import Path

from trainer import TrainerTest, checkpoints, copy, edit, main, step_names

KEPT = ("--data text.txt --seq-len 32 --batch 1 --sample 0 --precision bf16 --threads 1 "
        "--validation-batches 1 ")
RESUME = KEPT + "--resume latest "
SAVED_AS = "run | saved as in its config.toml: --checkpoint-every 1"


class Kept(TrainerTest):
    """Tests a run that keeps every second checkpoint."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        test = cls()
        test.train(KEPT + "--out kept --steps 5 --checkpoint-every 1 --keep-every 2")
        for steps in (7, 9):
            done = test.train(RESUME + f"--out kept --steps {steps}")
            test.assertPrints(done, SAVED_AS + " --keep-every 2")
            test.assertRegex(done.out, rf"(?m)^2 steps in [0-9.]+ s, {steps} in total \| [0-9]+ tok/s")

    def test_saves_as_before(self):
        self.assertEqual(checkpoints("kept"), step_names(2, 4, 6, 8, 9))

    def test_flags_without_checkpoints(self):
        for flags in ("--keep-best", "--keep-every 2", "--keep-last 3"):
            self.refused([flags.split()[0], "--checkpoint-every"], "--data text.txt " + flags)
        Path("keep.toml").write_text('data = ["text.txt"]\nkeep-best = true\n')
        self.fails("keep.toml:2: --keep-best", "--config keep.toml")

    def test_the_best_of_none(self):
        for flags, warns in (("--evaluate-every 0", 1), ("--evaluate-every 3", 1), ("--evaluate-every 1", 0)):
            done = self.train(KEPT + f"--steps 4 --checkpoint-every 2 --warmup 1 --keep-best {flags} --out best")
            self.assertEqual(done.err.count("warning: --keep-best compares checkpoints of evaluated steps, but with "
                                            f"--checkpoint-every 2 and {flags}, only the last step is both"), warns)
            shutil.rmtree("best")

    def test_resumes_without_saves(self):
        copy("kept", "unsaved")
        edit("unsaved/config.toml", "^keep-best = false", "keep-best = true")
        for flags in ("--checkpoint-every 0", ""):
            done = self.train(f"--config unsaved/config.toml --out unsaved --steps 10 --resume latest {flags}")
            self.assertNotIn("checkpoint | ", done.out)
        self.assertEqual(re.findall(r"(?m)^(?:checkpoint|keep)-.*", Path("unsaved/config.toml").read_text()),
                         ["checkpoint-every = 0", "keep-last = 2", "keep-every = 0", "keep-best = false"])
        self.fails("--keep-best", "--config unsaved/config.toml --out unsaved --steps 10 --resume latest "
                   "--checkpoint-every 0 --keep-best")
        self.assertIn("the trained weights are not kept",
                      self.train(RESUME + "--out unsaved --steps 11 --checkpoint-every 0").out)
        self.assertEqual(checkpoints("unsaved"), step_names(2, 4, 6, 8, 9))

    def test_a_wrong_value_of_the_saved_configuration(self):
        for flag, value in (("checkpoint-every", '"often"'), ("checkpoint-every", "-5"), ("keep-last", "1"),
                            ("keep-best", '"maybe"')):
            with self.subTest(flag=flag, value=value):
                copy("kept", "wrong")
                edit("wrong/config.toml", f"^{flag} = .*", f"{flag} = {value}")
                self.fails(["wrong/config.toml: " + flag, value.strip('"')],
                           RESUME + "--out wrong --steps 10")
                self.assertEqual(checkpoints("wrong"), checkpoints("kept"))
        self.train(RESUME + "--out wrong --steps 10 --keep-best")

    def cut(self, name, change):
        """A copy of the run with a changed configuration; it resumes for a step, which it saves."""
        copy("kept", name)
        path = Path(name, "config.toml")
        path.write_text(change(path.read_text()))
        return self.train(RESUME + f"--out {name} --steps 10 --warmup 1")

    def test_a_configuration_with_other_spaces(self):
        done = self.cut("spaced", lambda text: re.sub(r"(?m)^(checkpoint-every|keep-[a-z]+) = ", r"  \1=",
                                                      text))
        self.assertEqual(done.err, "")
        self.assertPrints(done, SAVED_AS + " --keep-every 2")
        self.assertIn(step_names(10)[0], checkpoints("spaced"))

    def test_a_configuration_without_a_line(self):
        done = self.cut("lacking", lambda text: re.sub(r"(?m)^keep-every = .*\n", "", text))
        self.tells(done, ["lacking/config.toml", "--keep-every"])
        self.assertPrints(done, SAVED_AS)
        self.assertIn(step_names(10)[0], checkpoints("lacking"))

    def test_a_configuration_that_ends_within_a_text(self):
        line = 1 + Path("kept/config.toml").read_text().split("\nkeep-every = ")[0].count("\n") + 1
        done = self.cut("ended", lambda text: text.split("keep-every = ")[0] + 'model = "lla')
        self.tells(done, [f"ended/config.toml:{line}: ", "--keep-every, --keep-best"])
        self.assertPrints(done, SAVED_AS)
        self.assertIn(step_names(10)[0], checkpoints("ended"))

    def test_a_configuration_that_is_cut_off(self):
        done = self.cut("cut", lambda text: text.split("checkpoint-every")[0])
        self.tells(done, ["cut/config.toml",
                          "--checkpoint-every, --keep-last, --keep-every, --keep-best"])

    def test_a_configuration_that_is_gone(self):
        for flags, lines in (("", 1), ("--checkpoint-every 0", 0)):
            copy("kept", "gone")
            os.remove("gone/config.toml")
            done = self.train(RESUME + f"--out gone --steps 9 --warmup 1 {flags}")
            self.assertEqual(done.err.count("\n"), lines)
            self.assertEqual("gone/config.toml" in done.err, lines == 1)
        Path("gone/config.toml").unlink(missing_ok=True)
        os.mkdir("gone/config.toml")
        done = self.train(RESUME + "--out gone --steps 11 --warmup 1", code=1)
        self.assertEqual(done.err.count("warning: gone/config.toml"), 1)


if __name__ == "__main__":
    main()

"""Tests that ranks resume, also on other numbers of ranks, and that they replay steps."""

import json
import re
from pathlib import Path

from ranks import RANKS, WITHOUT_DATA, RanksTest
from trainer import losses_of, main, steps_of

SAVED = RANKS + "--precision fp8-delayed --sample 0 --checkpoint-every 4 --keep-last 9 "


class Resume(RanksTest):
    """Tests runs of four ranks that other ranks resume."""

    def exports_as_saved(self, run, folder):
        """The last checkpoint of a run has the weights that the run saved."""
        self.train(f"--resume {run} --export-hf exported-{run}")
        for name in ("model.safetensors", "config.json"):
            self.assertEqual(Path(f"exported-{run}", name).read_bytes(), Path(folder, name).read_bytes())

    def resumed(self, shared, name, ranks, flags, allowed):
        """Resumes the run from step 8; its losses may differ by a share."""
        out = f"on-{shared}-{name}"
        done = self.on_ranks(ranks, SAVED + f"--steps 10 --out {out} {flags} "
                             f"--resume saved-{shared}/checkpoints/step-00000008")
        whole, losses = dict(losses_of(f"saved-{shared}")), dict(losses_of(out))
        self.assertEqual(sorted(losses), [9, 10])
        for step, loss in losses.items():
            self.assertLessEqual(abs(loss - whole[step]), allowed * loss, out)
        return done

    def saved_by(self, shared):
        self.on_ranks(4, SAVED + f"--tensor-parallel {shared} --micro-batches 2 --steps 10 "
                      f"--out saved-{shared} --save-hf weights-of-{shared}")
        self.exports_as_saved(f"saved-{shared}", f"weights-of-{shared}")
        same = f"--tensor-parallel {shared} "
        # As many ranks have the same bits.
        self.resumed(shared, "1", 4, same + "--micro-batches 2 --zero 1", 0)
        self.resumed(shared, "3", 4, same + "--micro-batches 2 --zero 3", 1e-4)
        self.resumed(shared, "2", 2, same + "--micro-batches 4", 1e-3)

    def test_ranks_that_share_no_layers(self):
        self.saved_by(1)
        done = self.resumed(1, "shared", 2, "--tensor-parallel 2 --micro-batches 8", 2e-3)
        self.assertRegex(done.out, "(?m)^resumed [|] .* 512 tokens.* 2048 .*--micro-batches 32")
        done = self.on_ranks(2, SAVED + "--micro-batches 4 --steps 12 --out saved-1 --resume auto")
        self.assertIn("\nresumed | after step 10, from saved-1/checkpoints/step-00000010\n", done.out)

    def test_ranks_that_share_layers(self):
        self.saved_by(2)
        self.resumed(2, "shared", 2, "--micro-batches 2", 2e-3)
        done = self.on_ranks(2, "--resume saved-2 --export-hf exported-by-two")
        self.assertEqual(done.out.count("weights of step"), 1)

    def test_weights_that_are_gathered_in_fp8(self):
        self.on_ranks(4, SAVED + "--tensor-parallel 2 --zero 3 --gather fp8 --micro-batches 2 --steps 4 "
                      "--out saved-fp8 --save-hf weights-of-fp8")
        self.exports_as_saved("saved-fp8", "weights-of-fp8")


class TooManyDocuments(RanksTest):
    """Tests a batch of one rank with more documents than --most-documents."""

    def ends_and_resumes(self, shared):
        text = Path("text.txt").read_text()[:3000]
        Path("crowded.txt").write_text(text[:1605] + 9 * "\n" + text[1605:])
        out = f"crowded-{shared}"
        done = self.on_ranks(
            4, WITHOUT_DATA + "--precision fp8-delayed --sample 0 --data crowded.txt --seed 1 --document-end 10 "
            f"--most-documents 4 --steps 12 --checkpoint-every 100 --micro-batches {shared} "
            f"--tensor-parallel {shared} --out {out} --comm-timeout 20 --timeline {out}.json "
            f"--timeline-steps 100 --save-hf weights-{shared}", code=1)
        self.assertIn(f"--config {out}/config.toml --resume {out} --most-documents", done.err)
        self.assertNotIn("has not answered", done.err)
        self.assertFalse(Path(f"weights-{shared}").exists(), "weights that the resumed run must write")
        steps = [event["pid"] for event in json.loads(Path(f"{out}.json").read_text())["traceEvents"]
                 if event["name"] == "step"]
        self.assertGreater(steps.count(0), 0)
        self.assertEqual([steps.count(rank) for rank in range(4)], [steps.count(0)] * 4)
        done = self.on_ranks(4, re.search("resume with (.*) or more", done.err)[1])
        self.assertIn("\nresumed | after step ", done.out)

    def test_ranks_that_share_no_layers(self):
        self.ends_and_resumes(1)

    def test_ranks_that_share_layers(self):
        self.ends_and_resumes(2)


class Replay(RanksTest):
    """Tests that two ranks replay a step, and hash the same weights under ZeRO-1 and ZeRO-3."""

    def test_replay(self):
        hashes = []
        for zero in (1, 3):
            self.on_ranks(2, SAVED + f"--zero {zero} --steps 6 --hash-every 3 --out hashed-{zero}")
            done = self.on_ranks(2, f"--config hashed-{zero}/config.toml --replay-step 6")
            self.assertIn(f", from hashed-{zero}/checkpoints/step-00000004", done.out)
            self.assertRegex(done.out, "(?m)^equal: .* equal to its record")
            hashes.append({step["step"]: step["weights_hash"] for step in steps_of(f"hashed-{zero}")
                           if "weights_hash" in step})
        self.assertEqual(sorted(hashes[0]), [3, 6])
        self.assertEqual(*hashes)


if __name__ == "__main__":
    main()

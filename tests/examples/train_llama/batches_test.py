"""Tests that a run resumes with the same batches, and batches with too many documents."""

import json
import os
import random
import re
import shutil
from pathlib import Path

from trainer import (FEW_STEPS, SHORT, TrainerTest, edit, losses_of, main, metrics, of,
                     write_token_files)


class OtherBatches(TrainerTest):
    """Tests runs that resume with other data."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.mkdir("texts")
        shutil.copy("text.txt", "texts/a.txt")
        Path("short.txt").write_text("short\n")
        write_token_files()
        cls().train(SHORT + "--steps 3 --checkpoint-every 3 --out whole")
        shutil.copy("whole/config.toml", "whole.toml")

    def differs(self, flags, *named):
        with self.subTest(flags=flags):
            self.fails(["whole/checkpoints/step-00000003", *named],
                       f"--config whole.toml --resume latest --steps 4 {flags}")

    def test_other_flags(self):
        self.differs("--seed 2", "--seed is 2, the run had 1")
        self.differs("--seed 2 --seq-len 16", "--seq-len is 16, the run had 32", "--seed is 2, the run had 1")
        self.differs("--document-end 32 --most-documents 64", "--document-end is 32")
        self.differs("--validation-fraction 0.2", "--validation-fraction is 0.2, the run had 0.1")
        self.differs("--validation-data texts/a.txt", "--validation-data is texts/a.txt")
        edit("whole/config.toml", "^data = .*", 'data = ["short.txt"]')
        self.differs("--seed 2", "--data is text.txt, the run had short.txt", "--seed is 2")
        shutil.copy("whole.toml", "whole/config.toml")

    def test_a_changed_text(self):
        shutil.copy("text.txt", "before.txt")
        self.addCleanup(os.replace, "before.txt", "text.txt")
        with open("text.txt", "a") as file:
            file.write("more")
        self.differs("", "although its flags are the same")

    def test_fewer_documents(self):
        flags = SHORT + "--document-end 32 --checkpoint-every 2 --out documented "
        self.train(flags + "--steps 2 --most-documents 64")
        self.assertEqual(self.train(flags + "--steps 3 --most-documents 40 --resume latest").err, "")

    def test_validation_data(self):
        flags = FEW_STEPS + "--data shard_1.bin --checkpoint-every 1 --out judged "
        own = "--validation-data for_validation.bin "
        self.train(flags + own + "--steps 1")
        self.assertEqual(self.train(flags + own + "--steps 2 --resume latest").err, "")
        self.fails("--validation-data", flags + "--steps 3 --resume latest")
        # Nothing is a fraction of the training data.
        self.fails("--validation-fraction has no effect with --validation-data",
                   flags + own + "--steps 2 --validation-fraction 0.3 --resume latest")
        other = "--validation-data shard_2.bin --resume latest "
        self.fails("judged/checkpoints/step-00000002", flags + other + "--steps 3", code=0)
        later = os.path.getmtime("shard_1.bin") + 86400
        os.utime("shard_1.bin", (later, later))
        self.fails(["shard_1.bin", "judged/checkpoints/step-00000003"], flags + other + "--steps 4", code=0)


class TooManyDocuments(TrainerTest):
    """Tests batches with more documents than --most-documents."""

    flags = FEW_STEPS + "--data crowded.txt --document-end 10 --steps 23 --seed 2 "

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        random.seed(2)
        words = [bytes(random.choices(b"abcdefgh", k=11)) for _ in range(100)]
        text = b" ".join(random.choice(words) for _ in range(140))
        Path("crowded.txt").write_bytes(text[:805] + 9 * b"\n" + text[805:])

    def test_the_run_resumes_with_more(self):
        self.train(self.flags + "--most-documents 20 --out roomy")
        done = self.fails(["--most-documents is 4", "--config crowded/config.toml --resume crowded"],
                          self.flags + "--most-documents 4 --checkpoint-every 100 --out crowded "
                          "--save-hf crowded_weights --timeline crowded.json --timeline-steps 100", code=1)
        self.assertFalse(os.path.exists("crowded_weights"), "weights that the resumed run must write")
        lines = metrics("crowded")
        steps = [event for event in json.loads(Path("crowded.json").read_text())["traceEvents"]
                 if event["name"] == "step"]
        (told,) = of("timeline", lines)
        self.assertTrue(0 < told["steps"] == len(steps) == lines[-1]["steps"] - 1, (told, lines[-1]))
        again = self.train(re.search(r"resume with (.*) or more", done.err)[1])
        self.assertEqual(again.err, "")
        self.assertTrue(os.path.exists("crowded_weights/model.safetensors"))
        summaries = of("summary", metrics("crowded"))
        self.assertEqual([line["end"] for line in summaries], ["too many documents", "done"])
        self.assertTrue(0 < summaries[0]["steps"] < 23)
        self.assertEqual(losses_of("crowded"), losses_of("roomy"))

    def test_a_run_without_checkpoints(self):
        done = self.fails("--most-documents", self.flags + "--most-documents 4 --no-out --save-hf weights",
                          code=1)
        self.assertIn("--checkpoint-every", done.err)
        self.assertTrue(os.path.exists("weights/model.safetensors"))

    def test_weights_that_cannot_be_written(self):
        # No file may have more than 500 KiB.
        done = self.train(self.flags + "--most-documents 4 --no-out --save-hf too_large", code=1, program=[
            "bash", "-c", 'trap "" XFSZ && ulimit -f 500 && exec "$@"', "-", self.program])
        first, second = done.err.splitlines()
        self.assertIn("--most-documents", first)
        self.assertIn("too_large", second)
        self.assertFalse(os.path.exists("too_large"))


if __name__ == "__main__":
    main()

"""Tests which texts and token files a run reads, and which it refuses."""

import os
import shutil
from pathlib import Path

from trainer import (ONE_STEP, PROJECT, TINY, TrainerTest, another_user, contents, main, metrics, write_token_files)


class Texts(TrainerTest):
    """Tests folders and files of text."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.makedirs("texts/.hidden")
        os.makedirs("texts/build")
        shutil.copy("text.txt", "texts/a.txt")
        Path("texts/latin1.txt").write_bytes(b"gr\374\337e")
        Path("texts/data.bin").write_bytes(b"a\0b")
        Path("texts/nothing.txt").touch()
        os.symlink("a.txt", "texts/link.txt")

    def test_a_folder_with_more_than_text(self):
        size = os.path.getsize("text.txt")
        done = self.train(TINY.replace("text.txt", "text.txt texts") + "--no-out")
        self.assertPrints(done, *(f"text | {line}" for line in (
            f"read 2 files, {2 * size} bytes", f"  texts/a.txt | {size} bytes",
            f"SKIPPED 6 entries, {size + 8} bytes",
            "  texts/latin1.txt | 5 bytes | not UTF-8: invalid byte 2",
            "  texts/data.bin | 3 bytes | binary: contains NUL bytes",
            "  texts/nothing.txt | 0 bytes | empty",
            f"  texts/link.txt | {size} bytes | the same file as texts/a.txt",
            "  texts/.hidden | 0 bytes | hidden",
            "  texts/build | 0 bytes | a folder called build, out or runs")))

    def test_more_files_than_are_named(self):
        os.mkdir("many")
        for number in range(14):
            Path(f"many/{number:02}.txt").write_text("text\n")
        done = self.train(TINY + "--data many --data texts --out read")
        named = [line for line in done.lines if line.startswith(("text |   text.txt", "text |   many/"))]
        self.assertEqual(len(named), 12)
        self.assertPrints(done, "text |   and 4 more")
        head = metrics("read")[0]
        self.assertEqual((head["files"], head["skipped_files"]), (16, 6))

    def test_a_file_twice(self):
        os.link("text.txt", "hard.txt")
        os.symlink("text.txt", "soft.txt")
        os.symlink("texts", "alias")
        for twice in ("text.txt", "./text.txt", "texts/../text.txt"):
            self.refused(twice, f"--data text.txt --data {twice}")
        for twice in ("hard.txt", "soft.txt"):
            self.refused([twice, "text.txt"], f"--data text.txt --data {twice}")
        for data, culprits in (("texts --data ./texts/a.txt", ["texts/a.txt", "the folder texts"]),
                               ("texts/a.txt --data texts", ["texts: its texts/a.txt"]),
                               ("alias/a.txt --data texts", ["alias/a.txt"]),
                               ("texts --data alias", ["texts/a.txt"])):
            self.refused(culprits, "--data " + data)

    def test_files_without_text(self):
        os.makedirs("no_text")
        os.makedirs("empty_folder")
        Path("no_text/data.bin").write_bytes(b"\0\1\2\3binary\0")
        Path("empty.txt").touch()
        Path("short.txt").write_text("short\n")
        self.refused("--data", "")
        self.refused("--config", "--resume run-fp32")
        self.refused("name", "--data ''")
        for name in ("absent.txt", "empty.txt", "empty_folder", "no_text"):
            self.refused(name, "--data " + name)
        self.refused(["short.txt: 6 bytes", "--batch 8 --seq-len 128"], "--data short.txt")
        self.refused(["text.txt", "--batch 2000000000 --seq-len 32"],
                     "--data text.txt --batch 2000000000 --seq-len 32")

    def test_shapes_that_fit_a_short_text(self):
        Path("few.txt").write_bytes(Path("text.txt").read_bytes()[:600])
        for flags, shape in (("--batch 1 --micro-batches 64", "--batch 1 --seq-len 128 --micro-batches 1"),
                             ("", "--batch 8 --seq-len 32"),
                             ("--batch 30 --micro-batches 2 --seq-len 64", "--batch 1 --seq-len 64"),
                             # A window of validation is more than its share.
                             ("--batch 3", "")):
            self.refused(["few.txt: 600 bytes", shape], "--data few.txt " + flags)
        done = self.train("--data few.txt --batch 8 --seq-len 32 --steps 1 --sample 0 --no-out")
        self.assertRegex(done.out, r"(?m)^1 step in .* tok/s \| train loss")

    def test_a_text_beyond_the_memory(self):
        with open("large.txt", "wb") as file:
            file.truncate(8 << 30)
        self.fails("memory", "--data large.txt --threads 1 --out refused",
                   program=["bash", "-c", 'ulimit -v 6000000 && exec "$@"', "-", self.program])
        self.assertFalse(os.path.exists("refused"))

    def test_an_unreadable_text(self):
        program = another_user(self.program)
        if program is None:
            self.skipTest("root may read everything")
        shutil.copy("text.txt", "unreadable.txt")
        os.chmod("unreadable.txt", 0o600 if os.getuid() == 0 else 0)
        self.fails("unreadable.txt", "--data unreadable.txt", program=program)

    def test_text_for_weights_with_a_tokenizer(self):
        self.train(TINY + "--save-hf with_tokenizer --no-out")
        self.train(TINY + "--model hf:with_tokenizer --no-out")
        Path("with_tokenizer/tokenizer.json").touch()
        self.refused("--tokenizer with_tokenizer/tokenizer.json", TINY + "--model hf:with_tokenizer")
        write_token_files()
        done = self.train(ONE_STEP + "--data llm_c.bin --model hf:with_tokenizer --no-out")
        self.assertNotIn("bytes are the tokens", done.out)

    def test_the_learning_rate_of_trained_weights(self):
        self.train(TINY + "--save-hf trained --no-out")
        loaded = TINY + "--model hf:trained --no-out "
        warning = "warning: --learning-rate is 0.001 by default"
        self.assertIn(warning, self.train(loaded).err)
        Path("rate.toml").write_text("learning-rate = 1e-3\n")
        for chosen in (loaded + "--learning-rate 1e-3", loaded + "--config rate.toml", TINY + "--no-out"):
            self.assertNotIn(warning, self.train(chosen).err)

    def test_the_tokenizer_of_saved_weights(self):
        write_token_files()
        tokens = ONE_STEP + "--data llm_c.bin --no-out "
        file = PROJECT / "tests/golden/tokenizers/gpt2.json"
        self.train(tokens + f"--tokenizer {file} --save-hf with_own")
        self.assertEqual(Path("with_own/tokenizer.json").read_bytes(), file.read_bytes())
        self.train(tokens + "--tokenizer bytes --save-hf with_bytes")
        self.assertFalse(Path("with_bytes/tokenizer.json").exists())

    def test_the_tokenizer_of_questions(self):
        """That of the model's folder by default: its words are tokens outside this small vocabulary."""
        self.train(TINY + "--save-hf asked --no-out")
        shutil.copy(PROJECT / "tests/golden/tokenizers/gpt2.json", "asked/tokenizer.json")
        Path("questions.jsonl").write_text('{"ctx": "the", "endings": ["the and", "of the"], "label": 0}\n')
        write_token_files()
        flags = ONE_STEP + "--data llm_c.bin --model hf:asked --hellaswag questions.jsonl "
        self.refused("questions.jsonl", flags)
        self.train(flags + "--tokenizer bytes --out asked_in_bytes")
        self.assertIn("hellaswag", [line["event"] for line in metrics("asked_in_bytes")])

    def test_samples_of_token_files(self):
        """Only with a tokenizer, which may be that of bytes."""
        write_token_files()
        flags = ONE_STEP + "--data llm_c.bin --sample 8 --sample-each "
        done = self.train(flags + "--tokenizer bytes --out decoded")
        samples = [line["text"] for line in metrics("decoded") if line["event"] == "sample"]
        self.assertEqual([text != "" for text in samples], [True, True], samples)
        self.assertEqual(metrics("decoded")[-1]["sample"], samples[-1])
        self.assertNotIn("no samples", done.out)
        done = self.train(flags + "--out undecoded")
        self.assertNotIn("sample", [line["event"] for line in metrics("undecoded")])
        self.assertNotIn("sample at step", done.out)
        self.assertRegex(done.out, r"(?m)^text \| no samples: .*--tokenizer$")

    def test_the_tokenizer_of_written_weights(self):
        write_token_files()
        tokenizer = PROJECT / "tests/golden/chats/chatml.json"
        for name, flags, is_copied in (("bare", "", False), ("own", f"--tokenizer {tokenizer}", True)):
            saved = self.train(ONE_STEP + f"--data llm_c.bin --sample 0 --checkpoint-every 1 --out {name} "
                               f"--save-hf {name}-saved {flags}")
            exported = self.train(f"--resume {name} --export-hf {name}-exported")
            for folder, done in ((f"{name}-saved", saved), (f"{name}-exported", exported)):
                self.assertEqual(os.path.exists(f"{folder}/tokenizer.json"), is_copied)
                note = "weights | the folder contains neither tokenizer.json nor tokenizer.model: tokens are bytes"
                self.assertEqual(note in done.lines, not is_copied, done.out)
        self.assertEqual([*contents("own-saved").values()], [*contents("own-exported").values()])

    def test_a_tokenizer_that_did_not_write_the_tokens(self):
        """It would decode samples wrongly, or end the run after its last step."""
        tokenizers = PROJECT / "tests/golden/tokenizers"
        self.refused(["--tokenizer", "must be the tokenizer of token files, but --data is text"],
                     TINY + f"--tokenizer {tokenizers}/gpt2.json")
        write_token_files()
        self.refused(["unigram.json must be the one that wrote the token files", "outside the model's vocabulary of 256"],
                     ONE_STEP + f"--data llm_c.bin --tokenizer {tokenizers}/unigram.json")


class Tokens(TrainerTest):
    """Tests token files, mixtures and documents."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_token_files()

    def test_a_mixture(self):
        done = self.train(ONE_STEP, "--data", "llm_c.bin:0.75", "--data", "shard_*.bin:0.25",
                          "--validation-data", "for_validation.bin", "--out", "mixture")
        self.assertPrints(done, *(f"text | {line}" for line in (
            "read 4 files, 11824 bytes", "  shard_2.bin | 2000 bytes | nanoGPT (no header), 2 bytes per token",
            "  share of weight 0.25 | 2000 tokens of shard_*.bin",
            "5000 tokens to train on, 400 for validation")))
        self.train("--config mixture/config.toml --out mixture_again")
        for folder, files in (("mixture", 4), ("mixture_again", 4)):
            head, end = metrics(folder)[0], metrics(folder)[-1]
            self.assertEqual((head["training_tokens"], head["validation_tokens"], head["files"]),
                             (5000, 400, files))
            self.assertEqual(end["sample"], "", "tokens that are no bytes were written as text")

    def test_json_lines_with_documents(self):
        Path("lines.jsonl").write_text('{"text": "a line, as texts are"}\n' * 100)
        done = self.train(TINY.replace("text.txt", "lines.jsonl") +
                          "--document-end 0 --most-documents 4 --no-out")
        self.assertPrints(done, "text | 1890 tokens to train on, 209 for validation")

    def test_wrong_files(self):
        for culprits, flags in (
                ("absent_*.bin", "--data 'absent_*.bin'"),
                ("llm_c.bin", "--data llm_c.bin --validation-data llm_c.bin"),
                ("text and token files", "--data llm_c.bin text.txt"),
                ("weight", "--data llm_c.bin:0.5 shard_1.bin"),
                ("shard_1.bin has 900 tokens", "--batch 16 --micro-batches 8 --seq-len 32 "
                 "--data llm_c.bin:0.5 --data shard_1.bin:0.5"),
                ("few.bin", "--seq-len 32 --batch 1 --data llm_c.bin few.bin")):
            self.refused(culprits, flags)

    def test_tokens_outside_the_vocabulary(self):
        self.fails(["other.bin: the token at byte", "300"], ONE_STEP + "--data other.bin --no-out", code=1)
        self.refused("other_behind.bin: the token at byte 3610 is 300", ONE_STEP + "--data other_behind.bin")

    def test_what_a_start_without_steps_leaves(self):
        self.train(ONE_STEP + "--data other.bin --out no_step", code=1)
        again = ONE_STEP + "--data llm_c.bin --out no_step"
        self.fails(["no_step/metrics.jsonl", "no_step/config.toml"], again)
        os.remove("no_step/config.toml")
        self.assertNotIn("config.toml", self.fails("no_step/metrics.jsonl", again).err)
        os.remove("no_step/metrics.jsonl")
        self.train(again)

    def test_flags_of_documents(self):
        self.refused("--most-documents", "--data text.txt --document-end 10")
        for data in ("text.txt", "llm_c.bin"):
            self.refused(["--document-end", "256"], f"--data {data} --document-end 256 --most-documents 64 "
                         "--batch 2 --seq-len 32")
        for most in (1, 65):
            self.refused(["--most-documents must be from 2 to 64", f"is {most}"], "--data text.txt "
                         f"--document-end 32 --most-documents {most} --batch 2 --seq-len 32")

    def test_more_documents_than_are_declared(self):
        flags = "--data text.txt --document-end 32 --most-documents 2 "
        self.refused("--most-documents", ONE_STEP + flags)  # in an evaluation
        Path("rare.txt").write_text(Path("text.txt").read_text().replace(" ", "_"))
        self.fails("--most-documents", ONE_STEP + flags + "--validation-data rare.txt --no-out", code=1)


if __name__ == "__main__":
    main()

"""Tests runs whose files, messages or folders cannot be written."""

import os
import re
import resource
import shlex
import shutil
import subprocess
from pathlib import Path

from trainer import (BASE, FEW_STEPS, OPERANDS, SHORT, SMALL, Disk, TrainerTest, another_user, checkpoints, main,
                     metrics, of, step_names)


class Folders(TrainerTest):
    """Tests folders in which a run cannot write."""

    def test_a_folder_that_cannot_be_made(self):
        Path("file").touch()
        self.fails("file/run", SMALL + "--out file/run")

    def test_closed_folders(self):
        program = another_user(self.program)
        if program is None:
            self.skipTest("root may write everywhere")
        os.mkdir("closed")
        os.chmod("closed", 0o555)
        for folder in ("closed", "closed/run"):
            self.fails([folder, "Permission denied"], SMALL + f"--out {folder}", program=program)

    def test_a_lock_of_another_user(self):
        program = another_user(self.program)
        if program is None:
            self.skipTest("root may write everywhere")
        os.mkdir("foreign")
        os.chmod("foreign", 0o777)
        lock = Path("foreign/.lock")
        lock.touch()
        lock.chmod(0o444)
        self.fails("foreign: another run", SMALL + "--out foreign", program=["flock", str(lock), *program])
        lock.chmod(0)
        self.fails(["foreign/.lock", "Permission denied"], SMALL + "--out foreign", program=program)

    def test_links_to_nothing(self):
        for folder, shown in (("begun", "begun"), ("\033[31mbegun", r"\x1B[31mbegun")):
            os.mkdir(folder)
            os.symlink("absent/file", folder + "/metrics.jsonl")
            self.fails([shown + "/metrics.jsonl", "absent/file"], "--data text.txt --steps 1", "--out", folder,
                       code=1)


class Files(TrainerTest):
    """Tests files that cannot be written during a run."""

    def full_events(self, flags, **options):
        """A run whose TensorBoard file is a link to a full device, whenever it begins."""
        shutil.rmtree("full_events", ignore_errors=True)
        os.mkdir("full_events")
        links = """now=$(date +%s)
            for more in {0..60}; do
              ln -s /dev/full "full_events/events.out.tfevents.$((now + more)).$(uname -n).$$"
            done
            exec "$@" """
        return self.train(BASE + OPERANDS + "--batch 2 --steps 4 --sample 0 --out full_events " + flags,
                          program=["bash", "-c", links + options.pop("redirect", ""), "-", self.program])

    def test_events_that_cannot_be_written(self):
        self.tells(self.full_events("--warmup 1"), ["full_events/events.out.tfevents.", "No space left"])
        lines = metrics("full_events")
        self.assertEqual((len(of("step", lines)), lines[-1]["end"]), (4, "done"))

    def test_warnings_that_nobody_reads(self):
        self.full_events("--warmup 9", redirect="2>/dev/full")

    def test_a_full_disk(self):
        Disk(self, "32k")
        done = self.train(BASE + OPERANDS + "--batch 1 --sample 0 --steps 400 --out disk/run", code=1)
        self.assertRegex(done.err, r"disk/run/(metrics\.jsonl|events\.out).*No space left on device")
        lines = metrics("disk/run")
        self.assertEqual(lines[0]["event"], "run")
        self.assertGreaterEqual(len(lines), 2)
        shutil.rmtree("disk/run")
        os.makedirs("disk/run")
        os.mkdir("elsewhere")
        os.symlink("../../elsewhere", "disk/run/checkpoints")
        done = self.train(BASE + OPERANDS + "--batch 1 --sample 0 --steps 400 --checkpoint-every 1000 --out disk/run",
                          code=1)
        self.assertRegex(done.err, r"disk/run/metrics\.jsonl: .*No space left on device.*\. The run ends, and first saves")
        self.assertEqual(done.err.count("metrics.jsonl: "), 1, done.err)
        self.assertLess(len(done.steps), 400)
        self.assertEqual(checkpoints("disk/run"), step_names(len(done.steps)))

    def test_a_folder_that_is_removed(self):
        command = [self.program, *shlex.split(BASE + OPERANDS + "--batch 1 --sample 0 --steps 4000 --out removed")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            for line in run.stdout:
                if line.startswith("step 4 "):
                    shutil.rmtree("removed")
            err = run.stderr.read()
            self.assertEqual(run.wait(60), 1, err)
        self.assertRegex(err.splitlines()[-1], r"removed/(metrics\.jsonl|events\.out.*): was removed while")

    def test_weights_without_room(self):
        Disk(self, "1m")
        done = self.train(SHORT + "--steps 1 --out with_weights --save-hf disk/weights", code=2)
        self.tells(done, "--save-hf disk/weights: the weights need 1.6 MiB, but ")
        self.assertRegex(done.err, r"but [0-9.]+ [KM]iB are free")
        self.assertFalse(os.path.exists("with_weights"))

    def test_a_summary_that_cannot_be_written(self):
        flags = BASE + OPERANDS + "--batch 2 --precision bf16 --steps 20 --warmup 1 --sample 400 "
        self.train(flags + "--out summarised")
        lines = Path("summarised/metrics.jsonl").read_text().splitlines(keepends=True)
        most = sum(map(len, lines[:-1])) + len(lines[-1]) // 2  # steps have other digits
        done = self.train(flags + "--out no_summary", code=1, stdout=subprocess.DEVNULL,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
        self.assertIn("no_summary/metrics.jsonl", done.err.splitlines()[-1])
        self.assertIn("File too large", done.err.splitlines()[-1])
        self.assertNotRegex(done.err, "The run ends|stopping after")
        lines = metrics("no_summary")
        self.assertEqual((len(of("step", lines)), lines[-1]["event"]), (20, "evaluation"))


    def test_a_timeline_that_cannot_be_written(self):
        """It costs no step: the run goes on, and fails at its end."""
        os.mkfifo("pipe")  # without a reader
        done = self.train(SHORT + "--steps 6 --out untimed --timeline pipe --timeline-steps 2 --checkpoint-every 6", code=1)
        self.assertRegex(done.err, r"(?m)^train_llama: warning: pipe: .*\. The run continues without a timeline$")
        self.assertRegex(done.err.splitlines()[-1], "^train_llama: pipe: cannot be written")
        self.assertEqual([line["steps"] for line in of("summary", metrics("untimed"))], [6])
        self.assertEqual(checkpoints("untimed"), step_names(6))


class Streams(TrainerTest):
    """Tests standard streams that are full, closed, or no longer read."""

    def redirected(self, flags, redirection, code):
        return self.train(flags, code=code, program=["bash", "-c", f'exec "$@" {redirection}', "-",
                                                     self.program])

    def test_full_output(self):
        self.tells(self.redirected(SMALL + "--out full", ">/dev/full", 1), "No space left on device")

    def test_closed_output(self):
        self.tells(self.redirected(SMALL + "--out closed", ">&-", 1), "Bad file descriptor")
        self.assertEqual(Path("closed/metrics.jsonl").stat().st_size
                         if os.path.exists("closed/metrics.jsonl") else 0, 0)

    def test_closed_input_and_errors(self):
        self.redirected(SMALL + "--out silent", "<&- 2>&-", 0)
        lines = metrics("silent")
        self.assertEqual((len(of("step", lines)), lines[-1]["end"]), (4, "done"))

    def unread(self, error):
        """A run whose output nobody reads after step 3, as tee on Ctrl-C."""
        shutil.rmtree("unread", ignore_errors=True)
        command = [self.program, *SHORT.split(), *"--steps 100000 --checkpoint-every 100000 --log-every 1 "
                   "--out unread".split()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=error, text=True) as run:
            next(line for line in run.stdout if line.startswith("step 3 "))
            run.stdout.close()
            err = run.stderr.read() if run.stderr else ""
            self.assertEqual(run.wait(60), 1)
        (saved,) = checkpoints("unread")
        self.assertGreaterEqual(int(re.fullmatch(r"step-(\d+)", saved)[1]), 3)
        self.assertEqual(metrics("unread")[-1]["end"], "signal 15")
        return err

    def test_output_that_nobody_reads(self):
        err = self.unread(subprocess.PIPE)
        self.assertEqual([line.split(";")[0] for line in err.splitlines()],
                         ["train_llama: standard output: cannot be written: Broken pipe. The run ends, and first "
                          "saves a checkpoint", "train_llama: stopped and saved"])

    def test_output_of_which_only_the_begin_is_read(self):
        done = self.train("--data text.txt " + FEW_STEPS + "--steps 100000 --no-out", code=None, program=[
            "bash", "-c", '"$0" "$@" | head -n 1; exit ${PIPESTATUS[0]}', self.program])
        self.assertEqual(done.code, 1)
        self.tells(done, "train_llama: standard output: cannot be written: Broken pipe")

    def test_output_and_errors_that_nobody_reads(self):
        self.unread(subprocess.STDOUT)


if __name__ == "__main__":
    main()

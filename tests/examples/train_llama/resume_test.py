"""Tests that runs resume from their checkpoints to the bit, and which checkpoints are refused."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

from trainer import (SAVED, SHORT, Disk, TrainerTest, add_to_manifest, checkpoints, contents, copy, edit,
                     main, metrics, of, shown, step_names)

NEWEST = "checkpoints/step-00000030"


class Resumed(TrainerTest):
    """Tests runs that resume what a run of 30 steps saved."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.done = cls().train(SAVED + "--out whole")

    def stopped_by(self, number, flags, *words):
        """Sends a signal once step 4 is printed, and SIGKILL once a checkpoint is; returns the exit
        code and the messages."""
        command = [self.program, *shlex.split(flags), *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            for line in run.stdout:
                if line.startswith("checkpoint | " if number == signal.SIGKILL else "step 4 "):
                    run.send_signal(number)
            err = run.stderr.read()
            return run.wait(60), err

    def test_prints_checkpoints(self):
        self.assertRegex(self.done.out, r"(?m)^checkpoint \| step 3 \| [0-9.]+ MiB \| ")

    def test_resumes_as_advised(self):
        code, err = self.stopped_by(signal.SIGTERM, SAVED, "--out", "my run", "--save-hf", "my weights")
        self.assertEqual(code, 143)
        self.assertFalse(os.path.exists("my weights"), "weights that the resumed run must write")
        self.train(re.search(r"resume with (.*)", err)[1])
        self.assertTrue(os.path.exists("my weights/model.safetensors"))

    def resumes_to_the_bit(self, number):
        code, err = self.stopped_by(number, SAVED + "--out cut")
        self.assertEqual(code, -number if number == signal.SIGKILL else 128 + number)
        if number != signal.SIGKILL:
            self.assertIn("--config cut/config.toml --resume cut\n", err)
        done = self.train(SAVED + "--out cut --resume auto")
        self.assertRegex(done.out, r"(?m)^resumed \| after step [0-9]+, from cut/checkpoints/step-[0-9]{8}$")
        self.assertNotIn("may differ", done.out)
        names = ("loss", "gradient_norm", "learning_rate", "epoch", "skipped")

        def steps(lines):
            return {line["step"]: [line[name] for name in names] for line in of("step", lines)}
        cut, whole = metrics("cut"), metrics("whole")
        self.assertEqual(steps(cut), steps(whole))
        self.assertTrue(3 <= of("resumed", cut)[0]["step"] < 30)
        self.assertGreaterEqual([line["event"] for line in cut].index("resumed"), 4)
        for name in ("end", "steps", "train_loss", "validation_loss", "skipped"):
            self.assertEqual(cut[-1][name], whole[-1][name], name)
        self.assertEqual(shown("cut")[0]["train/loss"], shown("whole")[0]["train/loss"])

    def test_after_usr1(self):
        self.resumes_to_the_bit(signal.SIGUSR1)
        shutil.rmtree("cut")

    def test_after_term(self):
        self.resumes_to_the_bit(signal.SIGTERM)
        shutil.rmtree("cut")

    def test_after_hup(self):
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            self.skipTest("SIGHUP is ignored here")
        self.resumes_to_the_bit(signal.SIGHUP)
        shutil.rmtree("cut")

    def test_after_kill(self):
        self.resumes_to_the_bit(signal.SIGKILL)
        try:
            self.is_shown_by_tensorboard()
        finally:
            shutil.rmtree("cut")

    def is_shown_by_tensorboard(self):
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            return
        events = EventAccumulator("cut")
        events.Reload()
        steps = {line["step"]: line["loss"] for line in of("step", metrics("cut"))}
        scalars = events.Scalars("train/loss")
        self.assertEqual([event.step for event in scalars], sorted(steps))
        for event in scalars:
            self.assertAlmostEqual(event.value / steps[event.step], 1, delta=1e-6)
        self.assertLessEqual({"config", "run"}, set(events.Tags()["tensors"]))

    def test_a_damaged_checkpoint(self):
        def flip(path):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 4
            path.write_bytes(data)
        for name, damage in (("flipped", flip), ("truncated", lambda path: os.truncate(path, 99))):
            path = Path(copy("whole", name), NEWEST, "rank-00000.safetensors")
            damage(path)
            hurt = path.read_bytes()
            self.fails(str(path), SAVED + f"--resume {name}/{NEWEST}")
            self.assertEqual(checkpoints(name), checkpoints("whole"))
            done = self.train(SAVED + f"--out {name} --resume auto")
            self.assertEqual(done.steps, [28, 29, 30])
            self.assertRegex(done.err, rf"(?m)^train_llama: warning: {name}/{NEWEST} is not a complete "
                             rf"checkpoint, and is skipped: .*{path}.*; 3 steps are lost: the newest "
                             "complete one is of step 27$")
            self.assertEqual(checkpoints(name), ["damaged-step-00000030", *step_names(27, 30)])
            self.assertEqual(Path(name, "checkpoints/damaged-step-00000030", path.name).read_bytes(), hurt)
            self.assertEqual(Path(name, NEWEST, path.name).read_bytes(),
                             Path("whole", NEWEST, path.name).read_bytes())

    def test_no_undamaged_checkpoint(self):
        for path in Path(copy("whole", "all_damaged"), "checkpoints").glob("step-*/rank-*"):
            path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
        before = contents("all_damaged/checkpoints")
        for word in ("auto", "latest"):
            done = self.train(SAVED + f"--out all_damaged --resume {word}", code=2)
            self.assertIn("step-00000027/rank-00000.safetensors", done.err.splitlines()[-1])
            self.assertIn("there is no complete checkpoint before it", done.err.splitlines()[-1])
        self.assertEqual(contents("all_damaged/checkpoints"), before)

    def test_only_truncated_checkpoints(self):
        for path in Path(copy("whole", "truncated_all"), "checkpoints").glob("step-*/rank-*"):
            os.truncate(path, 99)
        before = contents("truncated_all/checkpoints")
        refusals = set()
        for where in ("--out truncated_all --resume auto", "--out truncated_all --resume latest",
                      "--resume truncated_all"):
            last = self.train(SAVED + where, code=2).err.splitlines()[-1]
            self.assertIn("step-00000030 is damaged, as are all other checkpoints: ", last)
            refusals.add(last.partition("step-00000030")[2])
        self.assertEqual(len(refusals), 1, refusals)  # none advises what another refuses
        self.assertEqual(contents("truncated_all/checkpoints"), before)

    def test_names_of_coming_checkpoints(self):
        def a_folder(path):
            path.mkdir()
            (path / "notes").touch()
        for name, make in (("folder", a_folder), ("file", Path.touch),
                           ("copy", lambda path: shutil.copytree(path.parent / "step-00000027", path))):
            taken = Path(copy("whole", f"with_a_{name}"), "checkpoints/step-00000033")
            make(taken)
            before = contents(taken.parent)
            done = self.train(SHORT + f"--steps 40 --checkpoint-every 3 --out with_a_{name} --resume auto",
                              code=2)
            self.assertIn(f"{taken}: the run would save step 33 under this name", done.err)
            self.assertEqual(contents(taken.parent), before)
            taken.rename(f"was_a_{name}")
            self.train(SHORT + f"--steps 33 --checkpoint-every 3 --out with_a_{name} --resume auto")
        os.makedirs("taken/checkpoints")
        a_folder(Path("taken/checkpoints/step-00000003"))
        self.fails("taken/checkpoints/step-00000003: the run would save step 3", SAVED + "--out taken")

    def test_a_link_to_a_checkpoint(self):
        newest = Path(copy("whole", "linked"), NEWEST)
        newest.rename("moved")
        newest.symlink_to(Path("moved").resolve())
        done = self.train(SHORT + "--steps 33 --checkpoint-every 3 --out linked --resume auto")
        self.assertEqual(done.steps, [31, 32, 33])
        self.assertEqual(checkpoints("linked"), step_names(30, 33))

    def test_a_copy_under_another_step(self):
        copy("whole/checkpoints/step-00000030", Path(copy("whole", "copied"), "checkpoints/step-00000028"))
        done = self.train(SHORT + "--steps 33 --checkpoint-every 1 --out copied --resume latest")
        self.tells(done, ["copied/checkpoints/step-00000028", "of step 30"])
        self.assertEqual(done.steps, [31, 32, 33])
        self.assertEqual(checkpoints("copied"), step_names(28, 32, 33))

    def test_damaged_gemm_plans(self):
        add_to_manifest(copy("whole", "planned"), '"gemm_plans":"# octavo gemm plans 2\\nsome"')
        self.fails(f"planned/{NEWEST}/manifest.json:2", SAVED + "--out planned --resume latest")

    def test_other_libraries(self):
        add_to_manifest(copy("whole", "of_gpu"), '"libraries":"a GPU, cuDNN 9.19.0"')
        done = self.train(SAVED + "--out of_gpu --resume latest")
        self.assertRegex(done.out, r"(?m)^resumed \| .*cuDNN 9\.19\.0.* may differ")
        done = self.train(SHORT + "--steps 31 --precision bf16 --convert "
                          f"--resume of_gpu/{NEWEST} --out of_gpu_converted")
        self.assertRegex(done.out, "(?m)^CONVERTED [|] to bf16")
        self.assertNotIn("may differ", done.out)

    def test_another_version(self):
        path = Path(copy("whole", "of_before"), NEWEST, "manifest.json")
        edit(path, '"octavo":"[^"]*"', '"octavo":"0.0.9"')
        edit(path, '"run_length":32,', "")
        add_to_manifest("of_before", '"written":"before"')
        done = self.train(SAVED + "--out of_before --resume latest")
        self.assertRegex(done.out, r"(?m)^resumed \| .*0\.0\.9.* padded length .* may differ")

    def test_steps_that_are_not_recorded(self):
        edit(Path(copy("whole", "unrecorded"), "metrics.jsonl"),
             r'^\{"event":"step","step":(29|30),.*\n', "")
        self.fails(["unrecorded/metrics.jsonl", "29 to 30"],
                   SHORT + "--steps 31 --checkpoint-every 3 --out unrecorded --resume latest", code=0)

    def test_places_without_a_checkpoint(self):
        os.makedirs("empty/checkpoints")
        for flags in (SAVED, "--export-hf hf/absent "):
            for place, culprit in (("absent", "absent"), (os.getcwd() + "/absent/run", "absent/run"),
                                   ("lastest", "'latest'"), ("whole/checkpoints/step-00000020", "step-00000030"),
                                   ("text.txt", "text.txt"), ("empty", "empty/checkpoints"),
                                   ("empty/checkpoints", "empty/checkpoints")):
                with self.subTest(flags=flags, place=place):
                    self.fails([f"--resume {place}: ", culprit], flags, "--resume", place)
                    self.assertFalse(os.path.exists("absent"))
        for word in ("latest", "auto"):
            self.fails(f"--resume {word}: there is no folder absent",
                       f"--resume {word} --out absent --export-hf hf/absent")
        self.fails("absent", SAVED + "--out absent --resume latest")
        self.assertFalse(os.path.exists("absent"))
        self.fails("--out", SAVED + "--resume latest")

    def test_lists_checkpoints(self):
        self.fails("absent", "--list-checkpoints --out absent")
        os.makedirs("bare_empty/checkpoints")
        self.assertIn("bare_empty/checkpoints", self.train("--list-checkpoints --out bare_empty").out)
        self.assertIn("step-00000030\n", self.train("--list-checkpoints --out whole/checkpoints").out)
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = self.train("--list-checkpoints --out whole", stdout=full, code=1)
        self.tells(done, "standard output: cannot be written: No space left on device")

    def test_exports_from_a_folder_of_checkpoints(self):
        done = self.train("--resume whole/checkpoints --export-hf hf/of-checkpoints")
        self.assertIn("step 30", done.out)

    def test_a_folder_of_checkpoints(self):
        copy("whole", "named")
        self.train(SHORT + "--steps 31 --resume named/checkpoints/")
        step = 31
        for out in ("named/checkpoints", "./named/checkpoints/"):
            lines = metrics("named")
            self.assertEqual(of("resumed", lines)[-1]["step"], step - 1)
            self.assertEqual(of("step", lines)[-1]["step"], step)
            step += 1
            done = self.train(SHORT + f"--steps {step} --out {out} --resume latest")
            self.assertPrints(done, "run | saved as in its config.toml: --checkpoint-every 3")
            self.assertFalse([name for name in contents("named/checkpoints")
                              if name.endswith(("config.toml", "metrics.jsonl"))])
        before = contents("named")
        self.fails("named/metrics.jsonl exists already", SHORT + "--steps 1 --out named/checkpoints")
        self.fails("step-00000033 is a checkpoint", SHORT + "--steps 50 --resume latest "
                   "--out named/checkpoints/step-00000033")
        copy("named/checkpoints/step-00000033", "best")
        self.fails("best is a checkpoint", SHORT + "--steps 50 --out best --resume latest")
        self.assertEqual(contents("named"), before)

    def test_a_folder_of_checkpoints_without_a_run(self):
        os.mkdir("bare")
        copy("whole/checkpoints", "bare/checkpoints")
        self.train(SHORT + "--steps 31 --out bare/checkpoints --resume auto")
        self.assertTrue(os.path.exists("bare/metrics.jsonl"))

    def test_a_run_that_is_called_checkpoints(self):
        for step in (1, 2):
            self.train(SHORT + f"--steps {step} --checkpoint-every 1 --out called/checkpoints --resume auto")
        self.assertEqual(checkpoints("called/checkpoints"), step_names(1, 2))

    def test_tokens_of_steps_of_another_size(self):
        self.assertIn("run | steps 1 to 30 of 64 tokens, 1.92 k tokens in all\n", self.done.out)
        self.assertEqual(metrics("whole")[-1]["tokens"], 1920)
        done = self.train(f"{SHORT} --batch 4 --micro-batches 3 --steps 32 --resume whole/{NEWEST} --out larger"
                          .replace("--batch 2", ""))
        self.assertIn("run | steps 31 to 32 of 384 tokens, 2.69 k tokens in all\n", done.out)
        self.assertEqual(metrics("larger")[-1]["tokens"], 1920 + 2 * 384)

    def test_a_run_that_is_done(self):
        self.assertEqual(self.train(SAVED + "--out whole --resume auto").steps, [])

    def test_a_named_checkpoint(self):
        self.train(SHORT + "--steps 28 --out branch --resume whole/checkpoints/step-00000027")
        self.assertEqual([step["step"] for step in of("step", metrics("branch"))], [28])
        self.fails("step-00000030", SAVED + "--resume whole/checkpoints/step-00000027")

    def test_flags_that_are_left_out(self):
        copy("whole", "left")
        edit("left/config.toml", "^learning-rate = .*", "learning-rate = 0.5")
        done = self.train(SHORT + "--checkpoint-every 3 --steps 31 --out left --resume auto")
        self.tells(done, ["--learning-rate is ", ", the run had 0.5", "--config left/config.toml"])
        self.assertNotIn("--steps", done.err)

    def test_another_recipe(self):
        self.fails("--precision fp8-delayed", SAVED + "--out whole --resume latest --precision bf16")
        self.fails("--optimizer adamw --master-weights fp32 --moments fp32",
                   SAVED + "--out whole --resume latest --moments 8bit")
        self.fails("--resume", SAVED + "--out few --convert")
        done = self.train(SHORT + "--steps 32 --checkpoint-every 3 --precision bf16 --moments 8bit "
                          f"--resume whole/{NEWEST} --out converted --convert")
        self.assertRegex(done.out, "(?m)^CONVERTED [|] to bf16, .*8-bit moments$")
        lines = metrics("converted")
        told = of("resumed", lines)[0]["converted"]
        self.assertEqual((told["step"], told["recipe"]), (30, "fp8-delayed"))
        self.assertTrue(any("first moments" in change and "8-bit" in change for change in told["changes"]))
        self.assertEqual([step["step"] for step in of("step", lines)], [31, 32])
        self.assertLess(of("step", lines)[0]["loss"], 1.5 * metrics("whole")[-1]["train_loss"])
        manifest = json.loads(Path("converted/checkpoints/step-00000032/manifest.json").read_text())
        self.assertEqual((manifest["recipe"], manifest["conversions"]), ("bf16", [told]))

    def test_flags_of_checkpoints(self):
        self.fails("--checkpoint-every", "--data text.txt --checkpoint-every 3 --no-out")
        self.fails("--keep-last", SAVED + "--out few --keep-last 1")

    def test_a_disk_without_room(self):
        Disk(self, "2m")
        done = self.train(SAVED + "--out disk/run", code=4)
        self.assertIn("NOT SAVED at step 3: ", done.err)
        self.assertRegex(done.err, r"[0-9.]+ MiB, but [0-9.]+ [KM]iB are free")
        # --keep-last 2 needs room for three; told before the first step.
        self.assertRegex(done.err.splitlines()[0], r"disk/run/checkpoints: the next 3 checkpoints need [0-9.]+ MiB, but ")
        self.assertEqual(len(done.steps), 30)
        shutil.rmtree("disk/run")
        code, err = self.stopped_by(signal.SIGTERM, SAVED + "--out disk/run --save-hf of_no_checkpoint")
        self.assertEqual(code, 4)
        self.assertTrue(os.path.exists("of_no_checkpoint/model.safetensors"))
        self.assertNotIn("resume with", err)


class Begun(TrainerTest):
    """Tests --resume auto in folders of runs that ended before their first checkpoint."""

    def test_nothing_to_resume(self):
        self.train(SHORT + "--steps 1 --out fresh --resume auto")

    def test_before_the_first_checkpoint(self):
        os.makedirs("early/checkpoints")
        Path("early/metrics.jsonl").write_text("{}\n")
        Path("early/config.toml").touch()
        done = self.train(SHORT + "--steps 1 --out early --resume auto")
        self.assertIn("early/metrics-", done.out)
        self.assertEqual(metrics("early")[0]["event"], "run")
        (old,) = Path("early").glob("metrics-*.jsonl")
        self.assertEqual(old.read_text(), "{}\n")

    def test_events_of_a_run_that_begins_again(self):
        for _ in range(2):
            self.train(SHORT + "--steps 1 --out again --resume auto")
            os.makedirs("again/checkpoints", exist_ok=True)
        texts = shown("again")[1]
        self.assertEqual([len(texts["config"]), len(texts["run"])], [1, 1])

    def test_in_the_first_save(self):
        os.makedirs("saving/checkpoints/.step-00000003.tmp-1")
        Path("saving/metrics.jsonl").write_text("{}\n")
        self.train(SHORT + "--steps 3 --checkpoint-every 3 --out saving --resume auto")
        (old,) = Path("saving").glob("metrics-*.jsonl")
        self.assertEqual(old.read_text(), "{}\n")
        self.assertEqual(sorted(os.listdir("saving/checkpoints")), [".lock", "step-00000003"])
        for damage in ("truncate -s 99 rank-00000.safetensors", "rm manifest.json"):
            copy("saving", "hurt")
            subprocess.run(damage, shell=True, check=True, cwd="hurt/checkpoints/step-00000003")
            before = contents("hurt")
            done = self.train(SAVED + "--out hurt --resume auto", code=2)
            self.assertIn("hurt/checkpoints/step-00000003 is damaged", done.err)
            self.assertEqual(contents("hurt"), before)

    def test_before_its_metrics(self):
        os.makedirs("begun/checkpoints")
        Path("begun/config.toml").write_text("# mine\n")
        self.train(SHORT + "--steps 1 --out begun --resume auto")
        (old,) = Path("begun").glob("config-*.toml")
        self.assertEqual(old.read_text(), "# mine\n")


if __name__ == "__main__":
    main()

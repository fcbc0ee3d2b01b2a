"""Tests ranks with other flags or data, ranks that are killed or stopped, and signals."""

import os
import shlex
import signal
import time
from pathlib import Path

from ranks import ENVIRONMENT, MPIRUN, RANKS, Background, RanksTest
from trainer import checkpoints, main, metrics, of, step_names

LONG = RANKS + "--precision fp8-delayed --steps 100000 "


class Flags(RanksTest):
    """Tests flags that fit no run of these ranks, and ranks that differ."""

    def test_wrong_flags(self):
        for ranks, flags, culprit in (
                (4, "--micro-batches 200", "on 4 ranks"), (3, "--tensor-parallel 2", "--tensor-parallel 2"),
                (4, "--tensor-parallel 4", "llama_tiny:fp8-delayed:4"), (2, "--zero 4", "--zero")):
            with self.subTest(flags=flags):
                self.assertIn(culprit, self.on_ranks(ranks, RANKS + f"--steps 1 --no-out {flags}", code=2).err)

    def test_replicas_that_do_not_exist(self):
        done = self.on_ranks(2, RANKS + "--precision fp8-delayed --sample 0 --zero 3 --steps 6 "
                             "--check-replicas 2 --no-out", code=2)
        self.assertIn("--check-replicas", done.err)

    def test_replicas_take_memory(self):
        peaks = []
        for every in (0, 1):
            self.on_ranks(2, RANKS + "--precision fp32 --sample 0 --steps 1 "
                          f"--check-replicas {every} --out replicas-{every}")
            peaks.append(metrics(f"replicas-{every}")[-1]["peak_bytes"])
        self.assertLess(*peaks)

    def differ(self, what, first, second, folder="."):
        """Two ranks refuse to train with different flags, or in different folders."""
        with self.subTest(what=what):
            flags = RANKS + "--no-out "
            done = self.train("", *shlex.split(flags + first), ":", "-n", "1", "-wdir", os.path.abspath(folder),
                              self.program, *shlex.split(flags + second), code=None,
                              program=[MPIRUN, "-n", "1", self.program], env=ENVIRONMENT)
            self.assertNotEqual(done.code, 0)
            self.assertRegex(done.err, rf"the ranks differ in (.* in )?{what}: rank [01] has")

    def test_ranks_that_differ(self):
        self.differ("--steps", "--steps 2", "--steps 3")
        self.differ("model", "--precision fp32", "--precision fp8-delayed")
        self.differ("optimizer", "--moments fp32", "--moments bf16")
        os.mkdir("elsewhere")
        Path("elsewhere/text.txt").write_text(Path("text.txt").read_text().replace("a", "b"))
        self.differ("data", "", "", "elsewhere")
        for seed in (1, 2):
            flags = RANKS + f"--precision fp32 --steps 1 --sample 0 --no-out --seed {seed} "
            self.train(flags + f"--save-hf weights-{seed}")
            self.train(flags + f"--lora 2 --save-adapters adapters-{seed}")
        self.differ("weights", *(f"--precision fp32 --model hf:weights-{seed}" for seed in (1, 2)))
        self.differ("adapters", *(f"--precision fp32 --lora 2 --load-adapters adapters-{seed}"
                                  for seed in (1, 2)))

    def test_torchrun(self):
        environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
        done = self.train(RANKS + "--steps 1 --no-out", code=2, env=environment)
        self.assertIn("torchrun", done.err)


class Faults(RanksTest):
    """Tests ranks that end or stop during a run."""

    def lose_rank_1(self, number):
        """All processes end soon after rank 1 has received a signal."""
        ranks = Background(self, 2, LONG + "--no-out --comm-timeout 3")
        processes = ranks.processes()
        self.assertEqual(len(processes), 2)
        os.kill(processes[1], number)
        begin = time.monotonic()
        self.assertNotEqual(ranks.run.wait(60), 0)
        self.assertLess(time.monotonic() - begin, 31)
        self.assertRegex(ranks.err, "rank 1|for rank 1")
        # mpirun does not wait for the processes that it kills.
        for process in processes:
            for _ in range(100):
                if not os.path.exists(f"/proc/{process}"):
                    break
                time.sleep(0.1)
            else:
                os.kill(process, signal.SIGKILL)
                self.fail(f"process {process} is left")

    def test_a_stopped_rank(self):
        self.lose_rank_1(signal.SIGSTOP)

    def test_a_killed_rank(self):
        self.lose_rank_1(signal.SIGKILL)

    def test_a_signal_to_mpirun(self):
        ranks = Background(self, 2, LONG + "--no-out --comm-timeout 3")
        ranks.run.terminate()
        self.assertNotEqual(ranks.run.wait(60), 0)
        self.assertTrue("\nevaluation" in ranks.out or "stopping after this step" in ranks.err)

    def test_a_signal_to_one_rank(self):
        ranks = Background(self, 2, LONG + "--sample 0 --out stopped --checkpoint-every 100000 "
                           "--comm-timeout 20")
        os.kill(ranks.processes()[1], signal.SIGTERM)
        self.assertEqual(ranks.run.wait(60), 143)
        self.assertEqual(ranks.err.count("stopped and saved; resume with "), 1)
        lines = metrics("stopped")
        (end,) = of("summary", lines)
        self.assertEqual((end["end"], end["steps"]), ("signal 15", of("step", lines)[-1]["step"]))
        self.assertEqual(checkpoints("stopped"), step_names(end["steps"]))
        done = self.on_ranks(2, RANKS + "--precision fp8-delayed --sample 0 --out resumed --resume stopped "
                             f"--steps {end['steps'] + 2}")
        self.assertIn(f"\nresumed | after step {end['steps']}, ", done.out)


if __name__ == "__main__":
    main()

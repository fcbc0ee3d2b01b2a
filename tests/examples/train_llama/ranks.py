"""Support for the tests of train_llama on several ranks, which mpirun starts."""

import os
import re
import shutil
import subprocess
import time

from trainer import TrainerTest, write_text

MPIRUN = os.environ.get("OCTAVO_TEST_MPIRUN") or shutil.which("mpirun")
# The user may be root, and have fewer processors than ranks.
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
               "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_base_warn_component_unused": "0",
               "OMP_NUM_THREADS": "1"}
WITHOUT_DATA = ("--seq-len 32 --batch 2 --validation-batches 5 --evaluate-every 20 --learning-rate 5e-4 "
                "--threads 1 ")
RANKS = "--data text.txt " + WITHOUT_DATA


class RanksTest(TrainerTest):
    """Tests of several ranks."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_text("text.txt", 8000)

    def on_ranks(self, ranks, flags, *words, code=0):
        return self.train(flags, *words, code=code, program=[MPIRUN, "-n", str(ranks), self.program],
                          env=ENVIRONMENT, limit=120)


class Background:
    """Ranks that run while a test looks at them."""

    def __init__(self, test, ranks, flags):
        # A file, because mpirun may leave ranks that hold a pipe open.
        with open("out", "wb") as out, open("err", "wb") as err:
            self.run = subprocess.Popen([MPIRUN, "-n", str(ranks), test.program, *flags.split()],
                                        stdout=out, stderr=err, env=ENVIRONMENT)
        test.addCleanup(self.run.kill)
        for _ in range(300):
            if re.search("(?m)^step 2 ", self.out):
                return
            time.sleep(0.1)
        test.fail(f"no step in 30 s\n{self.out}{self.err}")

    @property
    def out(self):
        with open("out", encoding="utf-8") as file:
            return file.read()

    @property
    def err(self):
        with open("err", encoding="utf-8") as file:
            return file.read()

    def processes(self):
        """The processes of the ranks, in the order of the ranks."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/status", encoding="utf-8") as file:
                    parent = int(re.search(r"PPid:\s*(\d+)", file.read())[1])
                if parent != self.run.pid:
                    continue
                with open(f"/proc/{name}/environ", "rb") as file:
                    rank = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)", file.read())
            except OSError:
                continue  # it ended meanwhile
            if rank:
                found[int(rank[1])] = int(name)
        return [found[rank] for rank in sorted(found)]

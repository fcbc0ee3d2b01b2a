"""Checks that the GPU supports a precision before a program is built for it."""
import os
import re
import subprocess
import tempfile

from octavo_command import cache
from octavo_command.errors import CommandError


def require(root, precision, environment):
    """Compiles and runs gpu_runs.cpp, which asks the library whether the GPU supports a precision. Takes 2 s.

    @param precision  a C++ type
    @throws CommandError  with the library's error message
    """
    architecture = cache.architecture(environment)
    if architecture is None:
        return
    capability = re.match(r"\d+", architecture)[0]
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "gpu_runs")
        compiled = subprocess.run(
            [cache.tools(environment, "cpu")["CXX"], "-std=c++20", "-O0", "-pthread",
             "-I" + os.path.join(root, "include"), f"-DPRECISION={precision}", f"-DCAPABILITY={capability}",
             os.path.join(root, "examples/octavo_command/gpu_runs.cpp"), "-o", program],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, check=False)
        if compiled.returncode:  # the build reports why the type does not compile
            return
        refusal = subprocess.run([program], capture_output=True, text=True, check=False).stdout.strip()
    if refusal:
        raise CommandError(f"--precision: {refusal}")

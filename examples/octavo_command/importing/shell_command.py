"""Commands of shell scripts, and scripts in an argument, such as `srun --nodes 2 bash -c SCRIPT`."""
import os
import re

SHELLS = ("bash", "sh", "dash", "zsh")
LAUNCHERS = ("srun", "mpirun", "mpiexec", "nohup", "time", "timeout", "numactl", "env", "exec")


class Command:
    def __init__(self, words, line, environment):
        self.words, self.line, self.environment = words, line, environment


def divide(words):
    """Returns the words of the launcher, and the script of `bash -c`; ([], None) if there is no such script."""
    for i, word in enumerate(words[:-2]):
        follows_launcher = i == 0 or os.path.basename(words[0]) in LAUNCHERS
        if os.path.basename(word) in SHELLS and re.fullmatch(r"-[a-z]*c", words[i + 1]) and follows_launcher:
            return words[:i], words[i + 2]
    return [], None

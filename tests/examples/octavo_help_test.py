"""Tests that octavo's help, which comes from the documentation, has the flags and defaults of the programs.

    octavo_help_test.py PROGRAM...
"""
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "examples"))

from octavo_command import pages  # noqa: E402

PROGRAMS = []


def number(text):
    try:
        return float(text)
    except ValueError:
        return text.strip("[]").replace(",", " ")


class Help(unittest.TestCase):
    def test_flags_and_defaults_are_those_of_the_program(self):
        for path in PROGRAMS:
            with self.subTest(path):
                self.compare(path)

    def compare(self, path):
        text = subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout
        own = dict(re.findall(r"(?m)^  (?:-\w,)?--([a-z0-9-]+)(?: [A-Z:]+(?:=(\S+))?)?", text))
        del own["help"], own["version"]
        documented = {}
        for _, names, default, _ in pages.rows(str(ROOT), pathlib.Path(path).name):
            # One default for each flag or for all of them; otherwise only the program's help has them.
            defaults = default.split(", ")
            defaults = defaults * len(names) if len(defaults) == 1 else defaults
            documented |= dict(zip(names, defaults if len(defaults) == len(names) else [""] * len(names)))
        self.assertEqual(set(own), set(documented))
        for name, default in own.items():
            if default and documented[name]:
                self.assertEqual(number(documented[name]), number(default), name)


if __name__ == "__main__":
    PROGRAMS = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])

"""What all checks of this folder share: how they count cases, and how they call programs."""
import collections
import json
import subprocess
import sys
from pathlib import Path


class SkipCheck(Exception):
    """Why a check cannot run."""


class Report:
    def __init__(self):
        self.rows = []

    def add(self, subject, cases, differences, expected=None):
        """Adds a row: expected is a dict with the number of cases that differ for a given reason."""
        self.rows.append({"subject": subject, "cases": int(cases),
                          "differences": [str(each) for each in differences],
                          "expected": dict(expected or collections.Counter())})
        print(f"{subject}: {cases:,} cases, {len(differences)} differences", flush=True)
        for each in differences[:5]:
            print(f"  {each}", flush=True)


def call(*command, **options):
    """Runs a program, and returns its standard output as bytes."""
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE,
                          **options).stdout


def main(check):
    """Calls check(report, programs, work) and writes its rows: CHECK.py PROGRAMS WORK RESULT."""
    programs, work, result = (Path(word) for word in sys.argv[1:])
    work.mkdir(parents=True, exist_ok=True)
    report = Report()
    skipped = ""
    try:
        check(report, programs, work)
    except SkipCheck as error:
        skipped = str(error)
    result.write_text(json.dumps({"rows": report.rows, "skipped": skipped}))

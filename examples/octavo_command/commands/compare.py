"""`octavo compare`: compare_runs."""
from octavo_command import program
from octavo_command.combination import Program

SUMMARY = "compare runs"
PROGRAM = Program("compare_runs")


def run(words):
    return program.run(PROGRAM, words)

"""`octavo compare`: compare_runs."""
from octavo_command import arguments, program
from octavo_command.combination import Program

SUMMARY = "compare runs"
PROGRAM = Program("compare_runs", "compare")


def run(words):
    return program.run(PROGRAM, words, check=arguments.require_runs)

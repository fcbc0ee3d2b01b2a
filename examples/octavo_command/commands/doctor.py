"""`octavo doctor`: doctor."""
from octavo_command import program
from octavo_command.combination import Program

SUMMARY = "check that this machine computes correctly"
PROGRAM = Program("doctor")


def run(words):
    return program.run(PROGRAM, words, program.has_gpu)

"""`octavo doctor`: doctor."""
from octavo_command import arguments, program
from octavo_command.combination import Program

SUMMARY = "check that this machine computes correctly"
PROGRAM = Program("doctor", "doctor", flag_of_word="table")


def run(words):
    return program.run(PROGRAM, words, program.has_gpu,
                       lambda flags, root: arguments.require_card(flags, "table", root))

"""`octavo prepare`: prepare_data."""
from octavo_command import program
from octavo_command.combination import Program

SUMMARY = "convert text to token files"
PROGRAM = Program("prepare_data", has_tokenizers=True)


def run(words):
    return program.run(PROGRAM, words)

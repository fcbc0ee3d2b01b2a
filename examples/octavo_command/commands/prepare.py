"""`octavo prepare`: prepare_data."""
from octavo_command import arguments, program
from octavo_command.combination import Program

SUMMARY = "convert text to token files"
PROGRAM = Program("prepare_data", "prepare", has_tokenizers=True)


def run(words):
    return program.run(PROGRAM, words, check=arguments.require_texts)

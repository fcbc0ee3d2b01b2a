"""`octavo train`: train_llama."""
from octavo_command import program
from octavo_command.combination import Program

SUMMARY = "train on text or token files"
PROGRAM = Program("train_llama", "train", has_model=True, default_precision="fp8-delayed", trains=True,
                  required="data", has_ranks=True, flag_of_word="data", multiplies=True)


def run(words):
    return program.run(PROGRAM, words)

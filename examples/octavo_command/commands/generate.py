"""`octavo generate`: generate."""
from octavo_command import arguments, program
from octavo_command.combination import Program

SUMMARY = "generate text or chat answers"
PROGRAM = Program("generate", "generate", has_model=True, default_precision="bf16", has_tokenizers=True,
                  flag_of_word="prompt")


def run(words):
    return program.run(PROGRAM, words, check=arguments.require_generation)

"""`octavo evaluate`: evaluate."""
from octavo_command import arguments, program
from octavo_command.combination import Program

SUMMARY = "measure perplexity, chats and HellaSwag"
PROGRAM = Program("evaluate", "evaluate", has_model=True, default_precision="bf16", has_ranks=True,
                  has_tokenizers=True, flag_of_word="data", multiplies=True)


def run(words):
    return program.run(PROGRAM, words, check=arguments.require_evaluation)

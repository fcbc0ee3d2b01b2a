"""`octavo finetune`: finetune_llama."""
from octavo_command import arguments, program
from octavo_command.combination import Program

SUMMARY = "fine-tune a Hugging Face model on chats"
PROGRAM = Program("finetune_llama", "finetune", has_model=True, default_precision="fp8-delayed", trains=True,
                  required="chats", has_ranks=True, has_tokenizers=True, flag_of_word="chats", multiplies=True)


def run(words):
    return program.run(PROGRAM, words, check=arguments.require_finetuning)

"""`octavo plan`: plan_memory."""
from octavo_command import arguments, model, program
from octavo_command.combination import Program

SUMMARY = "compute the memory that training needs"
PROGRAM = Program("plan_memory", "plan", default_precision="fp8-delayed", flag_of_word="model")


def check(flags, root):
    arguments.require_card(flags, "card", root)
    model.take_for_plan(flags, root)


def run(words):
    return program.run(PROGRAM, words, check=check)

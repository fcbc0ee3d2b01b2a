"""`octavo plan`: plan_memory."""
from octavo_command import program
from octavo_command.combination import Program

SUMMARY = "compute which GPUs fit a training"
PROGRAM = Program("plan_memory", default_precision="fp8-delayed")


def run(words):
    return program.run(PROGRAM, words)

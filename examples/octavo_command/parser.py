"""The parser of subcommands that run no program."""
import argparse

from octavo_command.errors import CommandError


class Parser(argparse.ArgumentParser):
    """Reports a mistake on one line, as the programs do."""

    def error(self, message):
        raise CommandError(f"{message}; see {self.prog} --help")

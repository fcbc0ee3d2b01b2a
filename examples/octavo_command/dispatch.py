"""Runs the subcommand that a command line names.

A subcommand `NAME` is the module commands/NAME.py, with

    SUMMARY = "one line for octavo --help"
    def run(words: list[str]) -> int    # the arguments after the subcommand; returns the exit code

If NAME is a keyword of Python, the module's name ends in an underscore, such as commands/import_.py. `run`
raises CommandError for a message on one line; the exit code is 2 by default, as for wrong flags.
"""
import importlib
import pkgutil
import sys

from octavo_command import commands, pages
from octavo_command.errors import CommandError, nearest
from octavo_command.program import ROOT


def names():
    """Returns the name of every subcommand and of its module."""
    modules = sorted(module.name for module in pkgutil.iter_modules(commands.__path__))
    return {name.rstrip("_").replace("_", "-"): name for name in modules}


def load(module):
    return importlib.import_module(f"octavo_command.commands.{module}")


def help_text():
    lines = ["usage: octavo COMMAND ...", "", "commands:"]
    lines += [f"  {name:<10}{load(module).SUMMARY}" for name, module in names().items()]
    return "\n".join(lines + ["", "octavo COMMAND --help lists the flags of a command; octavo --version prints the version"])


def main(words):
    """Runs the command line after `octavo`, and returns the exit code."""
    known = names()
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] == "--version":
        print(f"octavo {pages.version(ROOT)}")
        return 0
    try:
        if words[0] not in known:
            raise CommandError(f"the command must be one of {', '.join(known)}, but is '{words[0]}'"
                               + nearest(words[0], known))
        return load(known[words[0]]).run(words[1:])
    except CommandError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130

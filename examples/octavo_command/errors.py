"""The error that a subcommand reports to its user."""
import difflib


class CommandError(Exception):
    """A message on one line: the requirement, the actual value, and the remedy; and the exit code."""

    def __init__(self, message, exit_code=2):
        super().__init__(message)
        self.exit_code = exit_code


def nearest(word, known):
    """Returns the end of a message about a word that is not known: the one that it resembles, or ""."""
    found = difflib.get_close_matches(word, known, 1)
    return f"; did you mean '{found[0]}'?" if found else ""

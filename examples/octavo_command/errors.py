"""The error that a subcommand reports to its user."""
import difflib


class CommandError(Exception):
    """A message on one line: the requirement, the actual value, and the remedy; and the exit code."""

    def __init__(self, message, exit_code=2):
        super().__init__(message)
        self.exit_code = exit_code


def nearest(word, known):
    """Returns the end of a message about an unknown word: a suggestion of the most similar known word, or ""."""
    word = word.lower()
    lower = {name.lower(): name for name in known}
    # The beginning of a name, such as fp8, is nearer to that name than to mxfp8.
    found = [name for spelled, name in lower.items() if len(word) > 2 and spelled.startswith(word)]
    found += [lower[spelled] for spelled in difflib.get_close_matches(word, lower, 1)]
    return f"; did you mean '{found[0]}'?" if found else ""

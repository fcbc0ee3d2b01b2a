"""The error that a subcommand reports to its user."""


class CommandError(Exception):
    """A message on one line: what must hold, what was given, what to do; and the exit code."""

    def __init__(self, message, exit_code=2):
        super().__init__(message)
        self.exit_code = exit_code

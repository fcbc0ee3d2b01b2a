"""The error that a subcommand reports to its user."""


class CommandError(Exception):
    """A message on one line: the requirement, the actual value, and the remedy; and the exit code."""

    def __init__(self, message, exit_code=2):
        super().__init__(message)
        self.exit_code = exit_code

"""The flags of a command line and of the TOML file that its --config names."""
import os

from octavo_command.errors import CommandError


def spaced(words):
    """Returns the words with each `--flag=value` as two words, as far as a `--` that ends the flags."""
    result = []
    for i, word in enumerate(words):
        if word == "--":
            return result + words[i:]
        flag, sign, value = word.partition("=")
        result += [flag, value] if word.startswith("--") and sign else [word]
    return result


def read_toml(path):
    """Returns the table of a TOML file. An unreadable file has no values here: the program reports it."""
    import tomllib  # takes 10 ms, and few command lines need it

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError):
        return {}


class Flags:
    """The words for a program. Values on the command line override those of --config."""

    def __init__(self, words):
        self.words = spaced(words)
        config = self._on_command_line("--config")
        self._table = read_toml(config) if config else {}

    def _on_command_line(self, flag):
        for i in range(len(self.words) - 2, -1, -1):
            if self.words[i] == flag:
                return self.words[i + 1]
        return None

    def get(self, name, otherwise=None):
        """Returns the text of the flag --NAME, or `otherwise` if neither source sets it."""
        value = self._on_command_line("--" + name)
        if value is None:
            value = self._table.get(name)
        return otherwise if value is None else str(value)

    def whole(self, name, otherwise=0):
        """Returns a whole number. The program itself rejects other values, with their place."""
        try:
            return int(self.get(name, otherwise))
        except ValueError:
            return otherwise

    def has(self, *names):
        return any("--" + name in self.words for name in names)

    def set(self, name, value):
        """Replaces the flag --NAME, or appends it."""
        self.take(name)
        self.words += ["--" + name, value]

    def take(self, name):
        """Removes the flag --NAME from the command line, and returns its value, or None."""
        flag, found, i = "--" + name, None, 0
        while i < len(self.words):
            if self.words[i] != flag:
                i += 1
                continue
            if i + 1 == len(self.words):
                raise CommandError(f"{flag} must have a value, but is the last word; add one")
            found = self.words[i + 1]
            del self.words[i : i + 2]
        return found

    def take_whole(self, name, least):
        """Removes the flag --NAME, and returns its whole number, or None."""
        text = self.take(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise CommandError(f"--{name} must be a whole number of at least {least}, but is '{text}'")
        return int(text)


def config_of_run(checkpoint):
    """Returns the config.toml of the run that a run's folder or one of its checkpoints belongs to."""
    folder = os.path.abspath(checkpoint)
    for place in (folder, os.path.dirname(os.path.dirname(folder))):
        path = os.path.join(place, "config.toml")
        if os.path.exists(path):
            return path
    return None

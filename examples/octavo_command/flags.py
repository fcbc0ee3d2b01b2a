"""The flags of a command line and of the TOML file that its --config names."""
import os
import sys

from octavo_command import files
from octavo_command.errors import CommandError


def read_toml(path, must_read=False):
    """Returns the table of a TOML file.

    @param must_read  an unreadable file is an error; otherwise it has no values here, and the program reports it
    """
    try:
        import tomllib  # takes 10 ms, and few command lines need it
    except ImportError:
        raise CommandError(f"{path} is TOML, which needs Python 3.11, but this is Python "
                           f"{sys.version_info.major}.{sys.version_info.minor}; install Python 3.11, and "
                           "run octavo with it") from None
    try:
        return tomllib.loads(files.read(path).decode())
    except (OSError, ValueError) as error:
        if must_read:
            raise CommandError(f"--config {path}: {getattr(error, 'strerror', None) or error}; correct it, or pass "
                               "another file") from error
        return {}
    except RecursionError:
        raise CommandError(f"{path} has too many nested arrays or tables; correct it") from None


class Flags:
    """The arguments of a program. Values on the command line override those of --config."""

    def __init__(self, words):
        self.words = list(words)
        config = self._on_command_line("--config")
        self._table = read_toml(config) if config else {}

    def _places(self, flag):
        """Returns where the flag is, as slices of the words: `--flag value` or `--flag=value`."""
        end = self.words.index("--") if "--" in self.words else len(self.words)
        places, i = [], 0
        while i < end:
            length = 2 if self.words[i] == flag else int(self.words[i].startswith(flag + "="))
            if length:
                places.append(slice(i, i + length))
            i += length or 1
        return places

    def _value_at(self, place):
        words = self.words[place]
        if len(words) == 2:
            return words[1]
        name, sign, value = words[0].partition("=")
        if not sign:
            raise CommandError(f"{name} must have a value, but is the last argument; add one")
        return value

    def _on_command_line(self, flag):
        places = self._places(flag)
        return self._value_at(places[-1]) if places else None

    def get(self, name, otherwise=None):
        """Returns the text of the flag --NAME, or `otherwise` if neither source sets it."""
        value = self._on_command_line("--" + name)
        if value is None:
            value = self._table.get(name)
        return otherwise if value is None else str(value)

    def values(self, name):
        """Returns the texts of all flags --NAME, or the list that the file has for it."""
        given = [self._value_at(place) for place in self._places("--" + name)]
        if given:
            return given
        value = self._table.get(name, [])
        return [str(text) for text in value] if isinstance(value, list) else [str(value)]

    def whole(self, name, otherwise=0):
        """Returns a whole number. The program itself rejects other values, with their place."""
        try:
            return int(self.get(name, otherwise))
        except ValueError:
            return otherwise

    def has(self, *names):
        return any(self._places("--" + name) for name in names)

    def set(self, name, value):
        """Replaces the flag --NAME, or adds it in front."""
        self.take(name)
        self.words[:0] = ["--" + name, value]

    def take(self, name):
        """Removes the flag --NAME from the command line, and returns its value, or None."""
        places = self._places("--" + name)
        value = self._value_at(places[-1]) if places else None
        for place in reversed(places):
            del self.words[place]
        return value

    def take_whole(self, name, least):
        """Removes the flag --NAME, and returns its whole number, or None."""
        text = self.take(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise CommandError(f"--{name} must be a whole number of at least {least}, but is '{text}'")
        return int(text)


def config_of_run(checkpoint):
    """Returns the config.toml of a run, given the run's folder, its folder `checkpoints`, or one checkpoint."""
    folder = os.path.abspath(checkpoint)
    for place in (folder, os.path.dirname(folder), os.path.dirname(os.path.dirname(folder))):
        path = os.path.join(place, "config.toml")
        if os.path.exists(path):
            return path
    return None

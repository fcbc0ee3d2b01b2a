"""The rows of the tables: the result for each key of another trainer."""
import math
import re

from octavo_command.importing.run import MAPPED, NO_EFFECT, REFUSED, shown

OFF = ("false", "no", "none", "null", "off", "", "0", "0.0", "[]", "{}")


def is_off(value):
    return value is None or shown(value).lower() in OFF


def is_on(value):
    return not is_off(value)


def number(value):
    """Converts 1000, "1000", 1e3 and "1_000"."""
    converted = float(str(value).replace("_", ""))
    if not math.isfinite(converted):
        raise ValueError("not finite")
    return converted


def whole(value):
    converted = number(value)
    if converted != int(converted) or abs(converted) >= 2**53:
        raise ValueError("not a whole number")
    return int(converted)


def text(value):
    return shown(value)


def words(value):
    if isinstance(value, (list, tuple)):
        return [str(one) for one in value]
    return [one for one in re.split(r"[,\s]+", str(value)) if one]


class Row:
    """Maps a setting, or stores it as a fact that derive.py or the trainer's `derive` maps."""

    def take(self, setting, run):
        raise NotImplementedError


class to(Row):
    """The key is one of Octavo's flags."""

    def __init__(self, flag, convert=text, why=""):
        self.flag, self.convert, self.why = flag, convert, why

    def take(self, setting, run):
        run.put_flag(self.flag, self.convert(setting.value), setting, self.why)


class fact(Row):
    """The key's value is needed to derive flags."""

    def __init__(self, name, convert=text):
        self.name, self.convert = name, convert

    def take(self, setting, run):
        run.put_fact(self.name, self.convert(setting.value), setting)


class nothing(Row):
    """The key has no effect in Octavo."""

    def __init__(self, why):
        self.why = why

    def take(self, setting, run):
        run.say(setting, NO_EFFECT, self.why)


class never(Row):
    """Octavo does not support the key, unless its value disables the feature."""

    def __init__(self, why):
        self.why = why

    def take(self, setting, run):
        if is_off(setting.value):
            run.say(setting, NO_EFFECT, "off")
        else:
            run.say(setting, REFUSED, self.why)


class only(Row):
    """Octavo supports some values of the key, and refuses all others."""

    def __init__(self, values, why, otherwise):
        self.values, self.why, self.otherwise = values.lower().split(), why, otherwise

    def take(self, setting, run):
        fits = shown(setting.value).lower() in self.values or is_off(setting.value) and "off" in self.values
        run.say(setting, *((NO_EFFECT, self.why) if fits else (REFUSED, self.otherwise)))


class without(Row):
    """Octavo supports the key, unless its value contains a given word."""

    def __init__(self, word, why, otherwise):
        self.word, self.why, self.otherwise = word, why, otherwise

    def take(self, setting, run):
        fits = self.word not in shown(setting.value).lower()
        run.say(setting, *((NO_EFFECT, self.why) if fits else (REFUSED, self.otherwise)))


class choice(Row):
    """Each value of the key is a value of one of Octavo's flags; all others are refused."""

    def __init__(self, flag, values, otherwise):
        self.flag, self.values, self.otherwise = flag, values, otherwise

    def take(self, setting, run):
        value = self.values.get(shown(setting.value).lower())
        if value is None and is_off(setting.value):
            run.say(setting, NO_EFFECT, "off")
        elif value is None:
            run.say(setting, REFUSED, self.otherwise)
        else:
            run.put_flag(self.flag, value, setting)


class exported(Row):
    """An environment variable that Octavo's libraries also read."""

    def take(self, setting, run):
        run.say(setting, MAPPED, f"export it for Octavo as well: {setting.key}={shown(setting.value)}")


def table(*groups):
    """Builds a table from pairs of keys, separated by spaces, and their row. A key that ends in * is a prefix."""
    rows = {}
    for keys, row in groups:
        for key in keys.split():
            assert key not in rows and "*" not in key[:-1], key
            rows[key] = row
    return rows


def find(rows, key):
    """Returns the row of a key, or of the longest prefix that matches, or None."""
    if key in rows:
        return rows[key]
    prefixes = [name for name in rows if name.endswith("*") and key.startswith(name[:-1])]
    return rows[max(prefixes, key=len)] if prefixes else None

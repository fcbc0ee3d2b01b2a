"""The rows of the tables: the result for each key of another trainer."""
import math
import re

from octavo_command.importing.run import MAPPED, NO_EFFECT, REFUSED, shown

OFF = ("false", "no", "none", "null", "off", "", "0", "0.0", "[]", "{}")


def is_off(value):
    return value is None or shown(value).lower() in OFF


class Malformed(Exception):
    """A value does not have the form that its row expects. The message completes "must be"."""


def number(value):
    """Converts 1000, "1000", 1e3 and "1_000"."""
    try:
        converted = float(str(value).replace("_", ""))
    except (ValueError, OverflowError):
        converted = math.nan
    if not math.isfinite(converted):
        raise Malformed("a number")
    return converted


def fraction(value):
    converted = number(value)
    if not 0 <= converted <= 1:
        raise Malformed("a number from 0 to 1")
    return converted


def whole(value):
    converted = number(value)
    if converted != int(converted) or abs(converted) >= 2**53:
        raise Malformed("a whole number")
    return int(converted)


def positive(value):
    if whole(value) < 1:
        raise Malformed("a whole number of at least 1")
    return whole(value)


def between(least, most):
    """Returns the conversion of a whole number in a range."""
    def convert(value):
        if not least <= whole(value) <= most:
            raise Malformed(f"a whole number from {least} to {most}")
        return whole(value)
    return convert


def switch(value):
    word = text(value).lower()
    if word in ("true", "yes", "on", "1", "y", "t"):
        return True
    if is_off(value) or word in ("n", "f"):
        return False
    raise Malformed("true or false")


def one_of(values):
    """Returns the conversion of a word, in any case, that must be one of the given ones."""
    def convert(value):
        if text(value).lower() not in values.split():
            raise Malformed(" or ".join(values.split()))
        return text(value).lower()
    return convert


def text(value):
    if isinstance(value, (list, tuple, dict)):
        raise Malformed("one value")
    return shown(value)


def name(value):
    """Converts the name of a file, a folder or a model."""
    if isinstance(value, bool) or not text(value).strip() or "\0" in text(value):
        raise Malformed("a name")
    return text(value)


def words(value):
    if isinstance(value, (list, tuple)):
        return [text(one) for one in value]
    return [one for one in re.split(r"[,\s]+", text(value)) if one]


def names(value):
    """Converts one or several names."""
    converted = [] if isinstance(value, bool) else words(value)
    if not converted:
        raise Malformed("at least one name")
    return [name(one) for one in converted]


class Row:
    """Maps a setting, or stores it as a fact that derive.py or the trainer's `derive` maps."""

    def take(self, setting, run):
        raise NotImplementedError


class to(Row):
    """The key is one of Octavo's flags."""

    def __init__(self, flag, convert=name, why=""):
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

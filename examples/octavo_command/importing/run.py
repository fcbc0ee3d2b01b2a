"""The settings of an imported run, and the result for each."""
import json
from dataclasses import dataclass, field

MAPPED, NO_EFFECT, REFUSED, UNKNOWN = "mapped", "no effect", "refused", "unknown"


@dataclass(eq=False)
class Setting:
    """A key of a source with its value. `place` is FILE:LINE, FILE, or "default"; `trainer` names its table."""
    key: str
    value: object
    place: str = ""
    trainer: str = ""
    answer: str = ""
    text: str = ""
    is_usable: bool = True  # otherwise the trainer's default replaces the value

    @property
    def is_default(self):
        return self.place == "default"


@dataclass
class Run:
    """What is known about a run while it is imported.

    A fact is a value that one or several flags are derived from, such as the global batch size. A flag is one of
    Octavo's, without its dashes.
    """
    program: str = "train_llama"
    files: list = field(default_factory=list)
    settings: list = field(default_factory=list)
    facts: dict = field(default_factory=dict)  # name: (value, setting)
    flags: dict = field(default_factory=dict)  # name: (value, setting or None)
    warnings: list = field(default_factory=list)
    environment: dict = field(default_factory=dict)  # variables that a script exports, with their values
    has_script: bool = False  # whether the environment is known
    commands: set = field(default_factory=set)  # places of command lines
    trainers: list = field(default_factory=list)  # whose sources were read

    def say(self, setting, answer, text):
        setting.answer, setting.text = answer, text

    def _put(self, known, name, value, setting):
        """Stores a value unless another setting has stored another one. An explicit setting overrides a default."""
        old, by = known.get(name, (None, None))
        if by is None or by is setting or by.is_default and not setting.is_default:
            if by is not None and by is not setting:
                self.say(by, NO_EFFECT, f"overridden by {setting.key}")
            known[name] = (value, setting)
            return True
        if setting.is_default or old == value:
            self.say(setting, NO_EFFECT, f"{'same as' if old == value else 'overridden by'} {by.key} ({by.place})")
            return False
        self.say(setting, REFUSED, f"contradicts {by.key} = {shown(by.value)} ({by.place}); leave one of them out")
        return False

    def put_fact(self, name, value, setting):
        return self._put(self.facts, name, value, setting)

    def put_flag(self, name, value, setting, why=""):
        """Sets one of Octavo's flags, and maps the setting that it comes from. Returns whether it is set."""
        is_put = self._put(self.flags, name, value, setting)
        if is_put:
            self.say(setting, MAPPED, f"{name} = {toml(value)}" + (f"; {why}" if why else ""))
        return is_put

    def fact(self, name, default=None):
        return self.facts[name][0] if name in self.facts else default

    def flag(self, name, default=None):
        return self.flags[name][0] if name in self.flags else default

    def answer(self, name, answer, text):
        """Maps the setting behind a fact, if there is one."""
        if name in self.facts:
            self.say(self.facts[name][1], answer, text)

    def map(self, name, flag, value, why=""):
        """Sets a flag from the setting behind a fact, or from a default without a setting."""
        if name in self.facts:
            self.put_flag(flag, value, self.facts[name][1], why)
        else:
            self.flags.setdefault(flag, (value, None))

    def warn(self, text):
        if text not in self.warnings:
            self.warnings.append(text)


def toml(value):
    """Returns a value in TOML's form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return text if any(letter in text for letter in ".e") else text + ".0"
    if isinstance(value, list):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    if isinstance(value, int):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def shown(value):
    """Returns a value on one line, as a reader of the source expects it."""
    if value is True or value is None:
        return {True: "true", None: "null"}[value]
    if value is False:
        return "false"
    if isinstance(value, (list, tuple)):
        return " ".join(shown(one) for one in value)
    return str(value)

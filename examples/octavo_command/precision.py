"""Precisions: names, C++ types, and the words of other trainers that select a type."""
import os
import re

from octavo_command.errors import CommandError, nearest

HEADER = "include/octavo/precision/named_precisions.hpp"


class Type:
    """A C++ type or value: a name, and in <> or {} its arguments."""

    def __init__(self, name, arguments=None, brackets="<>"):
        self.name, self.arguments, self.brackets = name, arguments, brackets

    def __str__(self):
        if self.arguments is None:
            return self.name
        return self.name + self.brackets[0] + ", ".join(map(str, self.arguments)) + self.brackets[1]


def parse(text):
    """Parses a type such as Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>>."""
    tokens = re.findall(r"[A-Za-z0-9_:.+-]+|[<>{},]|\S", text)

    def fail(found):
        raise CommandError(
            f"--precision must be a name or a C++ type, but '{text}' has {found}; write a type such as "
            "'Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>>'")

    def parse_one():
        if not tokens or not re.match(r"[A-Za-z0-9_:.+-]", tokens[0]):
            fail(f"'{tokens[0]}' where a type is expected" if tokens else "no end")
        name = tokens.pop(0)
        if not tokens or tokens[0] not in ("<", "{"):
            return Type(name)
        opening = tokens.pop(0)
        closing = ">" if opening == "<" else "}"
        arguments = []
        if tokens and tokens[0] == closing:
            tokens.pop(0)
            return Type(name, arguments, opening + closing)
        while True:
            arguments.append(parse_one())
            if not tokens:
                fail(f"a '{opening}' without '{closing}'")
            separator = tokens.pop(0)
            if separator == closing:
                return Type(name, arguments, opening + closing)
            if separator != ",":
                fail(f"'{separator}' where ',' or '{closing}' is expected")

    result = parse_one()
    if tokens:
        fail(f"'{tokens[0]}' after the type")
    return result


def named(root):
    """Returns the named precisions as a dict from name to type, in the header's order."""
    with open(os.path.join(root, HEADER), encoding="utf-8") as file:
        found = re.findall(r'^ *NamedPrecision<(.*?)>\{\s*"([a-z0-9-]+)"\}', file.read(), re.M | re.S)
    return {name: str(parse(text)) for text, name in found}


def is_name(text):
    return re.fullmatch(r"[a-z0-9-]+", text) is not None


def _is_misspelled(text, names):
    """Returns whether a text without template arguments resembles a name, and is not a type that has one."""
    return (re.fullmatch(r"[A-Za-z0-9_-]+", text) is not None and text not in names.values()
            and (text == text.lower() or nearest(text, names) != ""))


def resolve(text, names):
    """Returns a precision in the one form that builds and programs compare: a name, or the type's text.

    A type that has a name becomes the name.
    """
    if is_name(text) or _is_misspelled(text, names):  # such as FP8-Delayed, FP8 or fp8_delayed
        if text not in names:
            raise CommandError(f"--precision must be one of {', '.join(names)}, or a C++ type, "
                               f"but is '{text}'{nearest(text, names)}")
        return text
    whole = str(parse(text))
    return next((name for name, type_of in names.items() if type_of == whole), whole)


FORMATS = {"hybrid": "Hybrid", "e4m3": "E4M3Only"}
REDUCTIONS = {"max": "AmaxReduction::max", "most_recent": "AmaxReduction::most_recent"}
HELP = """flags of octavo that select a type for --precision:
  --fp8-format hybrid|e4m3                  formats of FP8: E4M3 and E5M2 gradients, or only E4M3
  --fp8-amax-history-len N                  delayed scaling: steps in the amax history
  --fp8-amax-compute-algo max|most_recent   delayed scaling: the amax that determines the scale
  --fp8-margin N                            delayed scaling: divides the largest value by 2^N
  --bf16-first N, --bf16-last N             the first and the last N blocks run in BF16"""


def _chosen(flags, name, choices):
    word = flags.take(name)
    if word is not None and word not in choices:
        raise CommandError(f"--{name} must be {' or '.join(choices)}, but is '{word}'")
    return word


def _refuse(flag, text, needs):
    raise CommandError(f"--{flag} needs {needs}, but --precision is {text}; leave --{flag} out, or choose "
                       "another --precision")


def _is_recipe(part):
    return part.name == "Fp8Recipe" and part.arguments


def _set_delayed(recipe, text, flag, history, reduction, margin):
    """Sets the parameters of delayed scaling in a recipe. A parameter that is None does not change."""
    scaling = recipe.arguments[0]
    if scaling.name not in ("Delayed", "DelayedScaling"):
        _refuse(flag, text, "delayed scaling")
    values = ["1024", REDUCTIONS["max"], "Margin{0}"]
    given = [str(argument) for argument in scaling.arguments or []]
    values = given[:3] + values[len(given):]
    behind = given[3:]
    for i, value in enumerate((history, reduction and REDUCTIONS[reduction],
                               None if margin is None else f"Margin{{{margin}}}")):
        if value is not None:
            values[i] = str(value)
    is_default = values == ["1024", REDUCTIONS["max"], "Margin{0}"] and not behind
    recipe.arguments[0] = parse(
        "Delayed" if is_default else f"DelayedScaling<{', '.join(values + behind)}>")


def take_words(flags, otherwise, names):
    """Removes HELP's flags from the command line.

    Returns the precision that they and --precision select, or None if there are no such flags.
    """
    fp8_format = _chosen(flags, "fp8-format", FORMATS)
    history = flags.take_whole("fp8-amax-history-len", 1)
    reduction = _chosen(flags, "fp8-amax-compute-algo", REDUCTIONS)
    margin = flags.take_whole("fp8-margin", 0)
    edges = {"First": flags.take_whole("bf16-first", 0), "Last": flags.take_whole("bf16-last", 0)}
    words = {"fp8-format": fp8_format, "fp8-amax-history-len": history,
             "fp8-amax-compute-algo": reduction, "fp8-margin": margin,
             "bf16-first": edges["First"], "bf16-last": edges["Last"]}
    given = [flag for flag, value in words.items() if value is not None]
    if not given:
        return None
    text = resolve(flags.get("precision", otherwise), names)
    whole = parse(names.get(text, text))
    parts = whole.arguments if whole.name == "Layerwise" and whole.arguments else [whole]
    recipe = next((part for part in parts if part.name in ("Fp8Recipe", "Mxfp8", "Nvfp4")), None)
    if recipe is None:
        _refuse(given[0], text, "an FP8 precision")
    if not _is_recipe(recipe) and given[0].startswith("fp8-"):
        _refuse(given[0], text, "an Fp8Recipe")
    for_delayed = [flag for flag in given if "amax" in flag or "margin" in flag]
    if for_delayed:
        _set_delayed(recipe, text, for_delayed[0], history, reduction, margin)
    if fp8_format is not None:
        recipe.arguments[1:2] = [Type(FORMATS[fp8_format])]
        if len(recipe.arguments) == 2 and recipe.arguments[0].name in ("Delayed", "DelayedScaling", "Tensorwise", "TensorwiseScaling",
                                        "Rowwise", "RowwiseScaling") and fp8_format == "hybrid":
            del recipe.arguments[1]  # the default
    for name, count in edges.items():
        if count is not None:
            parts = [part for part in parts if part.name != name]
        if count:
            parts.insert(0 if name == "First" else len(parts), parse(f"{name}<{count}, Bf16>"))
    return resolve(str(parts[0] if len(parts) == 1 else Type("Layerwise", parts)), names)

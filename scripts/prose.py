"""Finds turns of phrase that make people read a sentence twice: scripts/check prose.

scripts/prose.txt lists them, one a line: a regular expression, a tab, the suggestion. They are applied
to the text of Markdown pages, without code, and to the comments and strings of C++ sources.
"""

import re
from pathlib import Path

RULES = Path(__file__).with_name("prose.txt")

# Code of a page, which contains no sentences.
PAGE_CODE = re.compile(
    r"^ *(?P<fence>```+|~~~+).*?^ *(?P=fence)[`~]*$"
    r"|(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n\s*\n).)*?(?<!`)(?P=ticks)(?!`)"
    r"|\]\([^()\s]+\)|<!--.*?-->|^\|[ :|-]+\|$", re.DOTALL | re.MULTILINE)
# Comments and strings of a source; character literals match too, so that a quote in one does not open a string.
SOURCE_TEXT = re.compile(
    r"(?P<comment>//[^\n]*(?:\n[ \t]*//[^\n]*)*)"
    r"|(?P<raw>R\"(?P<tag>\w*)\(.*?\)(?P=tag)\")"
    r"|(?P<string>\"(?:[^\"\\\n]|\\.)*\"(?:\s*\"(?:[^\"\\\n]|\\.)*\")*)"
    r"|'(?:[^'\\\n]|\\.)+'", re.DOTALL)


def rules(text):
    """The regular expressions of a list, compiled, each with its suggestion."""
    found = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pattern, _, suggestion = line.partition("\t")
            words = pattern.replace(" ", r"\s+")  # a phrase may span two lines
            found.append((re.compile(words, re.IGNORECASE), suggestion.strip()))
    return found


def blank(text):
    """Empty lines, as many as the match has."""
    return "\x00" + "\n" * text.count("\n")


def page_text(text):
    return PAGE_CODE.sub(lambda part: blank(part.group()), text)


def source_text(text):
    """The comments and strings of a source, each on its line."""
    result, end = [], 0
    for part in SOURCE_TEXT.finditer(text):
        result.append(blank(text[end:part.start()]))
        words = part.group()
        if part["comment"]:
            words = re.sub(r"^[ \t]*//[/!<]*", "", words, flags=re.MULTILINE)
            words = re.sub(r"`[^`\n]*`", "\x00", words)
        elif not (part["string"] or part["raw"]):
            words = blank(words)
        elif part["string"]:
            words = re.sub(r'"(\s*)"', r"\1", words)
        result.append(words)
        end = part.end()
    return "".join(result)


def phrases(name, text, listed):
    """Each listed phrase in a text: its line, the phrase and the suggestion."""
    words = page_text(text) if name.endswith(".md") else source_text(text)
    return sorted((words.count("\n", 0, match.start()) + 1, " ".join(match.group().split()),
                   suggestion)
                  for pattern, suggestion in listed for match in pattern.finditer(words))

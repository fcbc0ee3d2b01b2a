"""Splits shell scripts into words, arrays and separators."""
import re

SEPARATORS = ("\n", ";", ";;", "&&", "||", "|", "&")
HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
REDIRECTION = re.compile(r"(\d*|&)(>>|>|<)(&\d|&-|[ \t]*[^\s;|&]+)")
OPERATOR = re.compile(r"&&|\|\||;;|[;|&()<>]")


def tokens(script):
    """Splits a script into (kind, text, line): words with their quotes, arrays in parentheses, and separators."""
    at, line, found = 0, 1, []
    while at < len(script):
        letter = script[at]
        if script.startswith("\\\n", at):
            at, line = at + 2, line + 1
        elif letter == "\n":
            found.append(("op", "\n", line))
            at, line = at + 1, line + 1
        elif letter in " \t\r":
            at += 1
        elif letter == "#":
            at = script.find("\n", at) if script.find("\n", at) >= 0 else len(script)
        elif here := HERE.match(script, at):
            end = re.compile(rf"^\s*{here.group(2)}\s*$", re.M).search(script, at)
            stop = end.end() if end else len(script)
            line += script.count("\n", at, stop)
            at = stop
        elif redirection := REDIRECTION.match(script, at):
            at = redirection.end()
        elif operator := OPERATOR.match(script, at):
            found.append(("op", operator.group(), line))
            at = operator.end()
        else:
            end = word_end(script, at)
            word = script[at:end]
            if re.fullmatch(r"[A-Za-z_]\w*\+?=", word) and script.startswith("(", end):
                stop = group_end(script, end, "(", ")")
                found.append(("array", word + script[end:stop], line))
                end = stop
            else:
                found.append(("word", word, line))
            line += script.count("\n", at, end)
            at = end
    return found


def group_end(script, at, opening, closing):
    """Returns the position behind the bracket that closes the one at `at`."""
    depth = 0
    while at < len(script):
        letter = script[at]
        if letter == "\\":
            at += 1
        elif letter == "#" and opening == "(" and script[at - 1] in " \t\n(":
            at = script.find("\n", at)
            if at < 0:
                break
        elif letter in "'\"":
            at = quote_end(script, at) - 1
        elif letter == opening:
            depth += 1
        elif letter == closing:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return len(script)


def quote_end(script, at):
    """Returns the position behind the quoted text that begins at `at`."""
    quote = script[at]
    at += 1
    while at < len(script) and script[at] != quote:
        if quote == '"' and script[at] == "\\":
            at += 1
        elif quote == '"' and script.startswith("$(", at):
            at = group_end(script, at + 1, "(", ")") - 1
        at += 1
    return at + 1


def word_end(script, at):
    while at < len(script) and script[at] not in " \t\r\n;|&()<>":
        if script[at] == "\\":
            at += 2
        elif script[at] in "'\"":
            at = quote_end(script, at)
        elif script.startswith("$(", at):
            at = group_end(script, at + 1, "(", ")")
        elif script.startswith("${", at):
            at = group_end(script, at + 1, "{", "}")
        elif script[at] == "`":
            at = script.find("`", at + 1) + 1 or len(script)
        else:
            at += 1
    return at

"""Variables of shell scripts, and words that contain their values: quotes, defaults, arrays and arithmetic."""
import ast
import re

from octavo_command.importing.shell_words import group_end, quote_end, tokens
from octavo_command.importing.unresolved import MARK, mark, unresolved

LONGEST = 1 << 16  # of a value, in characters or elements


def bounded(value):
    """Returns a value, or a mark in place of one that grows without bound."""
    size = sum(len(str(one)) + 1 for one in value) if isinstance(value, list) else len(value)
    return value if size <= LONGEST else mark(f"a text of more than {LONGEST} characters")


def quotient(a, b):
    """Returns a / b, rounded towards 0 as in C, whereas Python rounds down."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a, b):
    return a - b * quotient(a, b)


OPERATORS = {ast.Add: int.__add__, ast.Sub: int.__sub__, ast.Mult: int.__mul__, ast.Pow: int.__pow__, ast.Div: quotient,
             ast.Mod: remainder, ast.UAdd: int.__pos__, ast.USub: int.__neg__}


def evaluated(node):
    """Returns the value of an expression of whole numbers. Raises KeyError for other operators."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](evaluated(node.operand))
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](evaluated(node.left), evaluated(node.right))
    raise KeyError(type(node))


class Variables:
    """The variables of a script. Those that are given keep their values."""

    def __init__(self, given):
        self.values = {"?": "0", **given}
        self.given = set(given)
        self.used = set()

    def value(self, name):
        self.used.add(name)
        return self.values.get(name)

    def text(self, raw):
        return " ".join(self.fields(raw, split=False))

    def fields(self, raw, split=True):
        """Expands a word with quotes into fields."""
        fields, current, quoted, at = [], None, False, 0

        def add(piece):
            nonlocal current
            current = (current or "") + piece

        while at < len(raw):
            letter = raw[at]
            if letter == "\\" and not quoted:
                if not raw.startswith("\\\n", at):
                    add(raw[at + 1:at + 2])
                at += 2
            elif letter == "\\" and raw[at + 1:at + 2] in ('"', "\\", "$", "`"):
                add(raw[at + 1])
                at += 2
            elif letter == "\\" and raw[at + 1:at + 2] == "\n":
                at += 2
            elif letter == "'" and not quoted:
                end = quote_end(raw, at)
                add(raw[at + 1:end - 1])
                at = end
            elif letter == '"':
                quoted = not quoted
                add("")
                at += 1
            elif letter in "$`":
                value, at = self._expansion(raw, at)
                if isinstance(value, list):
                    parts = value if quoted or not split else [part for one in value for part in one.split()]
                elif quoted or not split:
                    parts = [value]
                else:
                    parts = value.split()
                    if value[:1].isspace() and current is not None:
                        fields.append(current)
                        current = None
                for number, part in enumerate(parts):
                    if number > 0:
                        fields.append(current)
                        current = None
                    add(part)
            else:
                add(letter)
                at += 1
        if current is not None:
            fields.append(current)
        return fields

    def _expansion(self, raw, at):
        """Returns the value of the expansion that begins with $ or ` at `at`, and the position behind it."""
        if raw[at] == "`":
            end = raw.find("`", at + 1) + 1 or len(raw)
            return mark(raw[at:end]), end
        if raw.startswith("$((", at):
            end = group_end(raw, at + 1, "(", ")")
            return self._arithmetic(raw[at + 3:end - 2]), end
        if raw.startswith("$(", at):
            end = group_end(raw, at + 1, "(", ")")
            return mark(raw[at:end]), end
        if raw.startswith("${", at):
            end = group_end(raw, at + 1, "{", "}")
            return self._braces(raw[at + 2:end - 1]), end
        name = re.match(r"\$([A-Za-z_]\w*|\d|[@*#?$!])", raw[at:])
        if name is None:
            return "$", at + 1
        value = self.value(name.group(1))
        if value is None:
            value = "" if name.group(1) in "@*" else mark("$" + name.group(1))
        if isinstance(value, list):
            value = value[0] if value else ""
        return value, at + name.end()

    def _braces(self, inner):
        array = re.fullmatch(r"([A-Za-z_]\w*)\[[@*]\]", inner)
        if array:
            value = self.value(array.group(1))
            if value is None:
                return [mark("$" + array.group(1))]
            return value if isinstance(value, list) else [value]
        parts = re.fullmatch(r"([A-Za-z_]\w*|\d)(?:(:?[-=])(.*))?", inner, re.S)
        if parts is None:
            return mark("${" + inner + "}")
        name, operator, default = parts.groups()
        value = self.value(name)
        if operator and (value is None or operator.startswith(":") and value == ""):
            value = self.text(default)
            if operator.endswith("="):
                self.values[name] = value
        if value is None:
            return mark("$" + name)
        return (value[0] if value else "") if isinstance(value, list) else value

    def _arithmetic(self, inner):
        text = self.text(inner)
        for name in re.findall(r"[A-Za-z_]\w*", re.sub(f"{MARK}[^{MARK}]*{MARK}", "", text)):
            value = self.value(name)
            replacement = str(value) if value is not None else mark("$" + name)
            text = re.sub(rf"\b{name}\b", lambda _, text=replacement: text, text)
        if unresolved(text):
            return mark(unresolved(text))
        has_powers = "**" in text and not re.fullmatch(r"\s*\d{1,9}\s*\*\*\s*\d{1,2}\s*", text)
        if has_powers or not re.fullmatch(r"[\d\s+\-*/%()]+", text):
            return mark(f"$(({inner}))")
        try:
            return str(evaluated(ast.parse(text.strip(), mode="eval").body))
        except (SyntaxError, ZeroDivisionError, ValueError, KeyError, RecursionError, MemoryError):
            return mark(f"$(({inner}))")

    def assign(self, kind, raw):
        """Runs an assignment, of an array or a text. Returns the variable's name."""
        name, operator, value = re.match(r"([A-Za-z_]\w*)(\+?=)(.*)", raw, re.S).groups()
        if name in self.given and operator == "=":
            return name
        if kind == "array":
            value = [part for one in tokens(value[1:-1]) if one[0] == "word" for part in self.fields(one[1])]
        else:
            value = self.text(value)
        if operator == "+=":
            old = self.values.get(name, [] if kind == "array" else "")
            if isinstance(old, str) and isinstance(value, list):
                old = [old] if old else []
            value = old + ([value] if isinstance(old, list) and isinstance(value, str) else value)
        self.values[name] = bounded(value)
        return name

"""Reads shell scripts without running them.

Variables, arrays, arithmetic, conditions on strings and numbers, and `eval` are evaluated. Everything else that decides
a value (commands, files, loops) leaves a mark in it: the value is unresolved, see `unresolved`.
"""
import ast
import os
import re

from octavo_command.importing.shell_command import Command, divide

MARK = "\0"
BLANK = "\1"  # in marks, which are not split into words


def mark(name):
    return MARK + re.sub(r"\s+", BLANK, name) + MARK


def unresolved(value):
    """Returns the source of a value that the script does not determine, or None if the value is known."""
    found = re.search(f"{MARK}([^{MARK}]*){MARK}", str(value))
    return found.group(1).replace(BLANK, " ") if found else None


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


def endless_body(stream, at):
    """Returns where the body of a loop `while true` begins, or None if it is another loop."""
    if [text for _, text, _ in stream[at:at + 2]] not in (["while", "true"], ["while", ":"]):
        return None
    at += 2
    while at < len(stream) and stream[at][0] == "op":
        at += 1
    return at + 1 if at < len(stream) and stream[at][1] == "do" else None


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


class Shell:
    """Evaluates a script. `commands` are those that it would run, `exported` its environment variables."""

    def __init__(self, script, given, folder=""):
        self.variables = {"?": "0", **given}
        self.folder = folder
        self.depth = 0  # of files that files read with `source`
        self.given = set(given)
        self.exported = {}  # name: line
        self.used = set()
        self.commands = []
        self._run(tokens(script))

    # --- expansion ---------------------------------------------------------------------------

    def value(self, name):
        self.used.add(name)
        return self.variables.get(name)

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
                self.variables[name] = value
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

    # --- statements --------------------------------------------------------------------------

    def _run(self, stream):
        at = 0
        while at < len(stream):
            at = self._statement(stream, at)

    def _simple(self, stream, at):
        """Returns the tokens of a simple command and the position behind them."""
        depth, begin = 0, at
        while at < len(stream):
            kind, text, _ = stream[at]
            if kind == "word" and text == "[[":
                depth += 1
            elif kind == "word" and text == "]]":
                depth -= 1
            elif kind == "op" and text in SEPARATORS and depth == 0:
                break
            at += 1
        return stream[begin:at], at

    def _statement(self, stream, at):
        kind, text, line = stream[at]
        if kind == "op":
            return at + 1
        if kind == "word" and text == "if":
            return self._if(stream, at)
        if kind == "word" and text in ("for", "while", "until", "case"):
            end = self._block_end(stream, at)
            body = endless_body(stream, at)
            if body is not None:  # starts a run again that stopped
                self._run(stream[body:end - 1])
                return end
            self._forget(stream[at:end], f"a {text} in line {line}")
            return end
        if re.fullmatch(r"\w+", text) and [one[1] for one in stream[at + 1:at + 3]] == ["(", ")"]:
            while at < len(stream) and stream[at][1] != "}":
                at += 1
            return at + 1
        command, at = self._simple(stream, at)
        result = self._command(command)
        while at < len(stream) and stream[at][1] in ("&&", "||"):
            operator = stream[at][1]
            at += 1
            while at < len(stream) and stream[at][1] == "\n":
                at += 1
            command, at = self._simple(stream, at)
            if result is None or isinstance(result, str):
                if result is None:
                    if operator == "&&":
                        result = self._command(command)
                    continue
                self._forget(command, result)
            elif result == (operator == "&&"):
                result = self._command(command)
        return at

    def _block_end(self, stream, at):
        """Returns the position behind the fi, done or esac that ends the block at `at`."""
        depth = 0
        while at < len(stream):
            kind, text, _ = stream[at]
            first = at == 0 or stream[at - 1][0] == "op" or stream[at - 1][1] in ("then", "else", "do")
            if kind == "word" and first:
                depth += text in ("if", "for", "while", "until", "case")
                depth -= text in ("fi", "done", "esac")
            at += 1
            if depth == 0:
                return at
        return at

    def _if(self, stream, at):
        end = self._block_end(stream, at)
        branches, condition, body, depth, inside = [], [], [], 0, "condition"
        for position in range(at, end):
            kind, text, line = stream[position]
            first = position == at or stream[position - 1][0] == "op" or \
                stream[position - 1][1] in ("then", "else", "do", "if", "elif")
            if kind == "word" and first:
                if text in ("if", "for", "while", "until", "case"):
                    depth += 1
                    if depth == 1:
                        continue
                elif text in ("fi", "done", "esac"):
                    depth -= 1
                elif depth == 1 and text == "then":
                    inside = "body"
                    continue
                elif depth == 1 and text in ("elif", "else"):
                    branches.append((condition, body))
                    condition, body = [], []
                    inside = "condition" if text == "elif" else "body"
                    if text == "else":
                        condition = None
                    continue
            if inside == "condition":
                condition.append(stream[position])
            elif depth > 0:
                body.append(stream[position])
        branches.append((condition, body))
        for number, (condition, body) in enumerate(branches):
            result = True if condition is None else self._condition(condition)
            if result is True:
                self._run(body)
                break
            if result is not False:
                for _, other in branches[number:]:
                    self._forget(other, result)
                break
        return end

    def _condition(self, stream):
        stream = [one for one in stream if one[1] != "\n"]
        while stream and stream[-1][1] == ";":
            stream.pop()
        result, at = "a condition without a command", 0
        if stream:
            result = None
        while at < len(stream):
            operator = stream[at][1] if stream[at][1] in ("&&", "||") else ""
            command, at = self._simple(stream, at + bool(operator))
            one = self._command(command)
            if one is None:
                one = f"the condition in line {stream[0][2]}"
            if isinstance(one, str) or isinstance(result, str):
                return one if isinstance(one, str) else result
            result = one if not operator else (result and one if operator == "&&" else result or one)
            if at < len(stream) and stream[at][1] not in ("&&", "||"):
                at += 1
        return result

    def _forget(self, stream, why):
        """Marks everything that skipped statements assign, and the trainers that they start, as unresolved."""
        for kind, text, line in stream:
            name = re.match(r"([A-Za-z_]\w*)\+?=", text)
            if name and name.group(1) not in self.given:
                self.variables[name.group(1)] = mark(why)
            elif kind == "word" and re.search(r"(torchrun|accelerate|deepspeed|llamafactory-cli|train_gpt2cu)$|\.py$", text):
                self.commands.append(Command([mark(why)], line, {}))
                return

    def _assign(self, kind, raw):
        name, operator, value = re.match(r"([A-Za-z_]\w*)(\+?=)(.*)", raw, re.S).groups()
        if name in self.given and operator == "=":
            return name
        if kind == "array":
            value = [part for one in tokens(value[1:-1]) if one[0] == "word" for part in self.fields(one[1])]
        else:
            value = self.text(value)
        if operator == "+=":
            old = self.variables.get(name, [] if kind == "array" else "")
            if isinstance(old, str) and isinstance(value, list):
                old = [old] if old else []
            value = old + ([value] if isinstance(old, list) and isinstance(value, str) else value)
        self.variables[name] = bounded(value)
        return name

    def _command(self, stream):
        """Runs a simple command. Returns the result of a test, a reason if it is unknown, or None for no test."""
        stream = [one for one in stream if one[0] != "op"]
        assigned = []
        while stream and (stream[0][0] == "array" or re.match(r"[A-Za-z_]\w*\+?=", stream[0][1])):
            before = dict(self.variables)
            name = self._assign(stream[0][0], stream[0][1])
            assigned.append((name, before.get(name)))
            stream = stream[1:]
        if not stream:
            return True if assigned else None
        line = stream[0][2]
        if stream[0][1] in ("export", "declare", "local", "readonly"):
            for kind, text, _ in stream[1:]:
                is_assignment = re.match(r"[A-Za-z_]\w*\+?=", text)
                name = self._assign(kind, text) if is_assignment else self.text(text)
                if stream[0][1] == "export" and re.fullmatch(r"[A-Za-z_]\w*", name):
                    self.exported[name] = line
            return True
        if stream[0][1] in ("[", "[[", "test"):
            return self._test([self.text(text) for _, text, _ in stream[1:] if text not in ("]", "]]")], line)
        negated = stream[0][1] == "!"
        words = [field for _, text, _ in stream[negated:] for field in self.fields(text)]
        if words and words[0] == "eval":
            self._run(tokens(" ".join(words[1:])))
            return None
        if len(words) > 1 and words[0] in ("source", "."):
            self._source(words[1])
            return None
        environment = {name: self.variables[name] for name, _ in assigned}
        launcher, script = divide(words)
        begin = len(self.commands)
        if script is None:
            self.commands.append(Command(words, line, environment))
        else:
            self._run(tokens(script))
        for command in self.commands[begin:]:
            command.words, command.line = launcher + command.words, line
        for name, old in assigned:
            self.variables[name] = old
            if old is None:
                del self.variables[name]
        return None

    def _source(self, name):
        """Evaluates another script, if it exists here."""
        path = os.path.join(self.folder, name)
        if unresolved(name) or not os.path.isfile(path) or self.depth >= 10:
            return
        try:
            with open(path, encoding="utf-8") as file:
                script = file.read()
        except (OSError, UnicodeDecodeError):
            return
        self.depth += 1
        self._run(tokens(script))
        self.depth -= 1

    def _test(self, words, line):
        why = f"the condition in line {line}"
        negated = words[:1] == ["!"]
        words = words[negated:]
        if any(unresolved(word) for word in words):
            name = next(unresolved(word) for word in words if unresolved(word))
            if words[0] not in ("-z", "-n"):
                return name
            result = words[0] == "-z" if name.startswith("$") and len(words) == 2 else name
        elif len(words) == 2 and words[0] in ("-z", "-n"):
            result = (words[1] == "") == (words[0] == "-z")
        elif len(words) == 3 and words[1] in ("=", "==", "!="):
            result = (words[0] == words[2]) == (words[1] != "!=")
        elif len(words) == 3 and words[1] in ("-eq", "-ne", "-gt", "-lt", "-ge", "-le"):
            try:
                a, b = int(words[0]), int(words[2])
            except ValueError:
                return why
            result = {"-eq": a == b, "-ne": a != b, "-gt": a > b, "-lt": a < b, "-ge": a >= b, "-le": a <= b}[words[1]]
        else:
            return why
        if isinstance(result, str):
            return result
        return result != negated

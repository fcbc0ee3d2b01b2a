"""Reads shell scripts without running them.

Variables, arrays, arithmetic, conditions on strings and numbers, and `eval` are evaluated. Everything else that decides
a value (commands, files, loops) leaves a mark in it: the value is unresolved, see unresolved.py.
"""
import os
import re

from octavo_command.importing.shell_command import Command, divide
from octavo_command.importing.shell_variables import Variables
from octavo_command.importing.shell_words import SEPARATORS, tokens
from octavo_command.importing.unresolved import mark, unresolved


def endless_body(stream, at):
    """Returns where the body of a loop `while true` begins, or None if it is another loop."""
    if [text for _, text, _ in stream[at:at + 2]] not in (["while", "true"], ["while", ":"]):
        return None
    at += 2
    while at < len(stream) and stream[at][0] == "op":
        at += 1
    return at + 1 if at < len(stream) and stream[at][1] == "do" else None


class Shell:
    """Evaluates a script. `commands` are those that it would run, `exported` its environment variables."""

    def __init__(self, script, given, folder=""):
        self.variables = Variables(given)
        self.folder = folder
        self.depth = 0  # of files that files read with `source`
        self.exported = {}  # name: line
        self.commands = []
        self._run(tokens(script))

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
            if name and name.group(1) not in self.variables.given:
                self.variables.values[name.group(1)] = mark(why)
            elif kind == "word" and re.search(r"(torchrun|accelerate|deepspeed|llamafactory-cli|train_gpt2cu)$|\.py$", text):
                self.commands.append(Command([mark(why)], line, {}))
                return

    def _command(self, stream):
        """Runs a simple command. Returns the result of a test, a reason if it is unknown, or None for no test."""
        stream = [one for one in stream if one[0] != "op"]
        assigned = []
        while stream and (stream[0][0] == "array" or re.match(r"[A-Za-z_]\w*\+?=", stream[0][1])):
            before = dict(self.variables.values)
            name = self.variables.assign(stream[0][0], stream[0][1])
            assigned.append((name, before.get(name)))
            stream = stream[1:]
        if not stream:
            return True if assigned else None
        line = stream[0][2]
        if stream[0][1] in ("export", "declare", "local", "readonly"):
            for kind, text, _ in stream[1:]:
                is_assignment = re.match(r"[A-Za-z_]\w*\+?=", text)
                name = self.variables.assign(kind, text) if is_assignment else self.variables.text(text)
                if stream[0][1] == "export" and re.fullmatch(r"[A-Za-z_]\w*", name):
                    self.exported[name] = line
            return True
        if stream[0][1] in ("[", "[[", "test"):
            return self._test([self.variables.text(text) for _, text, _ in stream[1:] if text not in ("]", "]]")], line)
        negated = stream[0][1] == "!"
        words = [field for _, text, _ in stream[negated:] for field in self.variables.fields(text)]
        if words and words[0] == "eval":
            self._run(tokens(" ".join(words[1:])))
            return None
        if len(words) > 1 and words[0] in ("source", "."):
            self._source(words[1])
            return None
        environment = {name: self.variables.values[name] for name, _ in assigned}
        launcher, script = divide(words)
        begin = len(self.commands)
        if script is None:
            self.commands.append(Command(words, line, environment))
        else:
            self._run(tokens(script))
        for command in self.commands[begin:]:
            command.words, command.line = launcher + command.words, line
        for name, old in assigned:
            self.variables.values[name] = old
            if old is None:
                del self.variables.values[name]
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

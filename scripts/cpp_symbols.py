"""Finds functions, classes and variables in C++ sources by their names, and patterns of tokens in them.

A pattern is compared with the source token by token, so spaces, line breaks and comments do not
matter. `$1` to `$9` in a pattern match the shortest run of tokens with balanced brackets.
"""

import bisect
import collections
import dataclasses
import re

TOKEN = re.compile(r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<line>(?<![^\n])[ \t]*\#(?:[^\n\\]|\\.)*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<text>(?:u8?|U|L)?(?:R"(?P<end>[^(\s]*)\(.*?\)(?P=end)"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
  | (?P<gap>\$[1-9])
  | (?P<number>\.?\d(?:[eEpP][-+]|'?[\w.])*)
  | (?P<sign>\.\.\.|<=>|<<=|->\*|::|->|\+\+|--|&&|\|\||[-+*/%&|^=!<>]=|<<|.)
    """, re.VERBOSE | re.DOTALL)
CLOSING = {"(": ")", "[": "]", "{": "}"}
CLASSES = {"class", "struct", "union", "enum"}
NOT_NAMES = {"alignas", "decltype", "explicit", "noexcept", "requires", "template",
             "__launch_bounds__"}


@dataclasses.dataclass(frozen=True)
class Token:
    text: str
    begin: int
    end: int


def tokens(source, offset=0):
    """The tokens of a text."""
    found = []
    for match in TOKEN.finditer(source):
        begin = offset + match.start()
        if match.lastgroup == "line":  # of the preprocessor
            sign = match[0].index("#")
            found.append(Token("#", begin + sign, begin + sign + 1))
            found += tokens(match[0][sign + 1:], begin + sign + 1)
        elif match.lastgroup != "space":
            found.append(Token(match[0], begin, offset + match.end()))
    return found


class Source:
    """A file's tokens, and the names that it defines: name -> [(qualified name, begin, end)], in
    tokens."""

    def __init__(self, text):
        self.text = text
        self.tokens = tokens(text)
        self.words = [token.text for token in self.tokens]
        self.pairs = self.find_pairs()
        self.definitions = collections.defaultdict(list)
        self.scan(0, len(self.words), ())

    def find_pairs(self):
        """The position of the closing bracket of each opening one."""
        pairs, open_ones = {}, []
        for i, word in enumerate(self.words):
            if word in CLOSING:
                open_ones.append(i)
            elif word in CLOSING.values() and open_ones:
                pairs[open_ones.pop()] = i
        return pairs

    def end_of_line(self, i):
        """The first token behind the directive at i."""
        end = re.compile(r"(?:[^\n\\]|\\.)*", re.DOTALL).match(self.text, self.tokens[i].begin).end()
        return bisect.bisect_left(self.tokens, end, key=lambda token: token.begin)

    def scan(self, begin, end, outer):
        """Defines the names of a namespace's or a class's declarations."""
        start = i = begin
        while i < end:
            word = self.words[i]
            if word == "#":
                i = self.end_of_line(i) - 1
                start = i + 1
            elif word == ":" and self.words[i - 1] in ("public", "private", "protected"):
                start = i + 1
            elif word == ";":
                self.define(start, i, i + 1, outer)
                start = i + 1
            elif word == "{":
                close = self.pairs.get(i, end)
                head = self.words[start:i]
                if "namespace" in head or head[:1] == ["extern"]:
                    self.scan(i + 1, close, outer)
                    start = close + 1
                elif name := self.class_name(start, i):
                    self.add(name, outer, start, close + 1)
                    self.scan(i + 1, close, (*outer, *name))
                    start = close + 1
                elif self.is_body(start, i):
                    self.define(start, i, close + 1, outer)
                    start = close + 1
                i = close
            elif word in CLOSING:
                i = self.pairs.get(i, end)
            i += 1

    def top_level(self, start, end):
        """The positions of tokens outside of brackets, template parameters and arguments."""
        i, angles = start, 0
        while i < end:
            word = self.words[i]
            if word in CLOSING:
                if angles == 0:
                    yield i
                i = self.pairs.get(i, end)
            elif word == "<" and (self.words[i - 1][0].isalpha() or self.words[i - 1][0] == "_"):
                angles += 1
            elif word == ">" and angles > 0:
                angles -= 1
            elif angles == 0:
                yield i
            i += 1

    def class_name(self, start, end):
        """The name of a class whose body begins at `end`, or None."""
        found = [i for i in self.top_level(start, end)]
        words = [self.words[i] for i in found]
        kinds = [i for i, word in enumerate(words) if word in CLASSES]
        if not kinds or "(" in [word for word in words[kinds[-1]:]] or "=" in words:
            return None
        name = []
        for word in words[kinds[-1] + 1:]:
            if word in (":", "final", "{"):
                break
            if re.match(r"[A-Za-z_]", word):
                name.append(word)
        return tuple(name[-1:]) if "::" not in words else tuple(name) or None

    def is_body(self, start, brace):
        """Whether a brace begins the body of a function rather than an initialiser."""
        words = [self.words[i] for i in self.top_level(start, brace)]
        if "(" not in words or ("=" in words and "operator" not in words):
            return False
        before = self.words[brace - 1]
        if ":" in words[words.index("("):]:  # a constructor: a_{a} and Base<A>{a} are initialisers
            return before in (")", "}", "try")
        return True

    def define(self, start, head_end, end, outer):
        """Defines a function or a variable, whose declaration is from `start` to `end`."""
        name = []
        for i in self.top_level(start, head_end):
            word = self.words[i]
            if word in ("using", "friend", "static_assert", "typedef"):
                return
            if word in ("=", ":") or word in ("(", "[") and name and self.words[i - 1] == name[-1]:
                break
            if word == "operator":
                sign = self.words[i + 1]
                name = [*self.qualifiers(i), f"operator{sign}{')' if sign == '(' else ''}"]
                break
            if re.match(r"[A-Za-z_]", word):
                is_macro = word.isupper() or word in NOT_NAMES
                name = [] if is_macro else [*self.qualifiers(i), word]
        if name:
            self.add(tuple(name), outer, start, end)

    def qualifiers(self, i):
        """The names before `::` that qualify the name at i, without template arguments."""
        found = []
        while i >= 2 and self.words[i - 1] == "::":
            i -= 2
            if self.words[i] == ">":
                depth = 0
                while i >= 0:
                    depth += {">": 1, "<": -1}.get(self.words[i], 0)
                    i -= 1
                    if depth == 0:
                        break
            if not re.match(r"[A-Za-z_]", self.words[i]):
                break
            found.insert(0, self.words[i])
        return found

    def add(self, name, outer, start, end):
        self.definitions[name[-1]].append(((*outer, *name), start, end))

    def extents(self, symbol):
        """Where a symbol, such as `step` or `SessionCore::step`, is defined; "": the whole file."""
        if not symbol:
            return [(0, len(self.words))]
        path = tuple(symbol.split("::"))
        return [(start, end) for name, start, end in self.definitions.get(path[-1], ())
                if name[-len(path):] == path]

    def matches(self, pattern, extents):
        """A pattern's occurrences in extents: (begin, end, {gap: text}), in characters."""
        found = {}
        for begin, end in extents:
            for i in range(begin, end):
                if match := self.match_at(pattern, 0, i, end):
                    stop, gaps = match
                    found[i] = (self.tokens[i].begin, self.tokens[stop - 1].end,
                                {name: self.text_of(*gap) for name, gap in gaps.items()})
        return list(found.values())

    def text_of(self, begin, end):
        return self.text[self.tokens[begin].begin:self.tokens[end - 1].end] if begin < end else ""

    def match_at(self, pattern, first, i, end):
        """The end of a match at token i, and the (begin, end) of its gaps; None if there is none."""
        for position in range(first, len(pattern)):
            if not pattern[position].startswith("$"):
                if i >= end or self.words[i] != pattern[position]:
                    return None
                i += 1
                continue
            start = i
            while True:
                if rest := self.match_at(pattern, position + 1, i, end):
                    return rest[0], {pattern[position]: (start, i), **rest[1]}
                if i >= end or self.words[i] in CLOSING.values():
                    return None
                i = self.pairs.get(i, end) + 1 if self.words[i] in CLOSING else i + 1
        return i, {}

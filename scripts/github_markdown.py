"""Finds headings and links in Markdown, and the anchors that GitHub gives headings."""

import re

# The first matching alternative counts. Code is matched to skip the headings and links in it.
PARTS = re.compile(
    r"^ *(?P<fence>```+|~~~+)(?:.*?^ *(?P=fence)[`~]*$|.*)"
    r"|(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n\s*\n).)*?(?<!`)(?P=ticks)(?!`)"
    r"|^#{1,6} +(?P<heading>[^\n]+)"
    r"|\]\((?P<target>[^()\s]+)\)", re.DOTALL | re.MULTILINE)


def slug(heading):
    """The anchor of the first heading with this text in a file."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.strip())
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def parts(text):
    """Yields each heading and link in order: its match in PARTS, and its anchor or None."""
    seen = {}
    for part in PARTS.finditer(text):
        if part["heading"]:
            anchor = slug(part["heading"])
            seen[anchor] = seen.get(anchor, -1) + 1
            yield part, f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor
        elif part["target"]:
            yield part, None


def links(text):
    """Returns the line and the target of each link."""
    return [(text.count("\n", 0, part.start()) + 1, part["target"])
            for part, _ in parts(text) if part["target"]]


def anchors(text):
    return {anchor for _, anchor in parts(text) if anchor is not None}

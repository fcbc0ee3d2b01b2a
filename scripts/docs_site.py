#!/usr/bin/env python3
"""Builds the site from Doxygen's output: scripts/docs_site.py, which scripts/check docs runs.

Doxygen (docs/Doxyfile) writes build/docs/html and build/docs/xml. This script puts each page into
docs/site/page.html, with the tree of docs/mainpage.md at the side and the page's headings; adds a page
for each room of the library; and writes the index that the search reads.
"""

import html
import json
import re
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "docs" / "site"
BUILT = ROOT / "build" / "docs"
BEGIN = "<!-- scripts/docs_site.py replaces this line and all before it -->"
END = "<!-- scripts/docs_site.py replaces this line and all behind it -->"
# Files that only Doxygen's default theme needs.
UNUSED = ["jquery.js", "dynsections.js", "doxygen.css", "doxygen.svg", "tabs.css", "nav_?.png", "tab_?.png",
          "sync_*.png", "splitbar.png", "bc_s.png", "bdwn.png", "closed.png", "open.png", "doc.png",
          "folder*.png"]
KINDS = {"class": "Classes", "struct": "Classes", "union": "Classes", "concept": "Concepts",
         "function": "Functions", "enum": "Enumerations", "typedef": "Types", "variable": "Values",
         "define": "Macros"}


def text_of(markup):
    """The text of HTML, without markup."""
    words = re.sub(r"<[^>]+>", "", markup)
    return re.sub(r"\s+", " ", html.unescape(words)).replace("\u25c6", "").strip()


def version():
    header = ROOT / "include/octavo/core/version.hpp"
    found = re.search(r'version_string = "(.+)"', header.read_text()) if header.is_file() else None
    return found[1] if found else ""


# The library, from Doxygen's XML.

def words_of(element):
    return re.sub(r"\s+", " ", "".join(element.itertext())).strip() if element is not None else ""


def entry(kind, name, address, element):
    place = element.find("location")
    return {"kind": KINDS[kind], "name": name, "address": address,
            "brief": words_of(element.find("briefdescription")),
            "header": place.get("file", "") if place is not None else ""}


def address_of(member):
    page, _, anchor = member.rpartition("_1")
    return f"{page}.html#{anchor}"


def symbols(xml):
    """The documented names of the library outside octavo::detail, each once."""
    found = {}
    for compound in ElementTree.parse(xml / "index.xml").getroot():
        kind, refid = compound.get("kind"), compound.get("refid")
        if kind not in (*KINDS, "namespace", "file") or "::detail" in compound.findtext("name"):
            continue
        definition = ElementTree.parse(xml / f"{refid}.xml").getroot().find("compounddef")
        name = compound.findtext("name")
        described = words_of(definition.find("briefdescription"))
        public = definition.get("prot") != "private"
        if kind in KINDS and public and name.startswith("octavo::") and (described or name.count("::") == 1):
            found.setdefault((kind, name), entry(kind, name, f"{refid}.html", definition))
        for member in definition.iter("memberdef") if kind in ("namespace", "file") else ():
            of_library = (name + "::").startswith("octavo::") if kind == "namespace" \
                else member.get("kind") == "define" and member.findtext("name").startswith("OCTAVO_")
            if of_library and member.get("kind") in KINDS and words_of(member.find("briefdescription")):
                full = member.findtext("name") if kind == "file" else f"{name}::{member.findtext('name')}"
                found.setdefault((KINDS[member.get("kind")], full),
                                 entry(member.get("kind"), full, address_of(member.get("id")), member))
    return sorted(found.values(), key=lambda each: each["name"].lower())


def room_of(symbol):
    parts = symbol["header"].split("/")
    return parts[1] if parts[0] == "octavo" and len(parts) > 2 else ""


def purposes():
    """The purpose of each room: the table of CONTRIBUTING.md, in its order."""
    page = ROOT / "CONTRIBUTING.md"
    rows = re.findall(r"^\| `(\w+)/` \| (.+?) \|", page.read_text(), re.MULTILINE) if page.is_file() else []
    return {room: re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
            for room, text in rows}


def listing(head, rows):
    lines = [f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows]
    titles = "".join(f"<th>{title}</th>" for title in head)
    return '<div class="scroll"><table class="listing"><tr>' + titles + "</tr>\n" + "\n".join(lines) + "</table></div>"


def link(address, text):
    return f'<a href="{html.escape(address)}">{html.escape(text)}</a>'


def room_pages(found, purpose):
    """The page of each room, and the page that lists rooms: name, title and body."""
    rooms = {room: [symbol for symbol in found if room_of(symbol) == room] for room in purpose}
    rows = [[link(f"room_{room}.html", f"{room}/"), purpose[room]] for room in purpose if rooms[room]]
    intro = ("<p>The library is <code>include/octavo/</code>, one folder a room. A room includes only itself "
             "and the rooms above it in this table. " + link("classes.html", "All classes") + " are also listed "
             "alphabetically.</p>")
    yield "rooms.html", "Reference", intro + listing(["room", "contains"], rows)
    for room, all_of in rooms.items():
        if not all_of:
            continue
        body = f"<p>Contains {purpose[room]}.</p><p>Include <code>&lt;octavo/{room}/{room}.hpp&gt;</code>, or a header below.</p>"
        for kind in dict.fromkeys(KINDS.values()):
            of_kind = [symbol for symbol in all_of if symbol["kind"] == kind]
            if of_kind:
                body += f'<h1><a class="anchor" id="{kind.lower()}"></a>\n{kind}</h1>' + listing(
                    ["name", "", "header"],
                    [["<code>" + link(symbol["address"], symbol["name"].removeprefix("octavo::")) + "</code>",
                      html.escape(symbol["brief"]),
                      f"<code>{html.escape(symbol['header'].removeprefix('octavo/' + room + '/'))}</code>"]
                     for symbol in of_kind])
        yield f"room_{room}.html", f"Room {room}/", body


# The tree at the side.

def groups(page):
    """The groups of the front page, each with its links: title and page."""
    found, current = {}, None
    for line in page.splitlines():
        if match := re.match(r"## (.+)", line):
            current = found.setdefault(match[1], [])
        elif (match := re.match(r"- \[([^]]+)\]\((\w+)\.md\)", line)) and current is not None:
            current.append((match[1], f"{match[2]}.html"))
    return {group: links for group, links in found.items() if links}


def tree(grouped, rooms, current):
    def item(text, address):
        here = ' aria-current="page"' if address == current else ""
        return f'<li><a href="{address}"{here}>{html.escape(text)}</a></li>'

    parts = []
    for group, links in grouped.items():
        parts.append(f"<h2>{html.escape(group)}</h2>\n<ul>")
        parts += [item(text, address) for text, address in links]
        if group == "Library" and rooms:
            is_open = " open" if current.startswith(("room", "class", "struct", "concept")) else ""
            parts.append(item("Reference", "rooms.html") + f"\n<li><details{is_open}><summary>Rooms</summary><ul>"
                         + "".join(item(f"{room}/", f"room_{room}.html") for room in rooms) + "</ul></details></li>")
        parts.append("</ul>")
    return "\n".join(parts)


# A page.

HEADING = re.compile(
    r'<h(?P<level>[12])><a class="anchor" id="(?P<id>[^"]+)"></a>\s*(?P<text>.*?)</h[12]>'
    r'|<h2 class="groupheader">(?:<a id="(?P<group>[^"]+)"[^>]*></a>)?\s*(?P<title>.*?)</h2>'
    r'|<h2 class="memtitle"><span class="permalink"><a href="#(?P<member>[^"]+)">.*?</a></span>(?P<name>.*?)</h2>',
    re.DOTALL)


def headings(body):
    """The headings of a page: whether each is a subheading, its address and its text."""
    found = []
    for match in HEADING.finditer(body):
        anchor = match["id"] or match["group"] or match["member"]
        if anchor:
            below = match["level"] == "2" or bool(match["member"])
            found.append((below, anchor, text_of(match["text"] or match["title"] or match["name"])))
    return found


def on_this_page(found):
    if len(found) < 2:
        return ""
    items = "".join(f'<li{" class=sub" if below else ""}><a href="#{anchor}">{html.escape(text)}</a></li>'
                    for below, anchor, text in found)
    return f'<details class="on-this-page"><summary>On this page</summary>\n<ul>{items}</ul></details>'


def shell_line(line):
    """A line of commands with coloured comments, strings and flags."""
    return re.sub(r"(?P<comment>(?:^|(?<=\s))#.*$)|(?P<string>&#39;.*?&#39;|'[^']*'|\"[^\"]*\")"
                  r"|(?P<flag>(?<![\w-])--?[A-Za-z][\w-]*)",
                  lambda part: f'<span class="{ {"comment": "comment", "string": "stringliteral", "flag": "flagword"}[part.lastgroup] }">'
                               f"{part.group()}</span>", line)


def fragment(match):
    code = match.group()
    if re.search(r'<span class="(keyword|preprocessor|comment|stringliteral|lineno)', code):
        return code
    return re.sub(r'(<div class="line">)(.*?)(</div>)',
                  lambda line: line[1] + (line[2] if "<" in line[2] else shell_line(line[2])) + line[3], code)


def improved(body):
    """Doxygen's markup, adapted to the stylesheet."""
    body = re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL)
    body = re.sub(r"(<a [^>]*>)([^<]*`[^<]*)(</a>)",
                  lambda part: part[1] + re.sub(r"`([^`]+)`", r"<code>\1</code>", part[2]) + part[3], body)
    body = re.sub(r'<object type="image/svg\+xml" data="([^"]+)"[^>]*>(.*?)</object>',
                  lambda part: f'<img src="{part[1]}" alt="{html.escape(text_of(part[2]))}">', body)
    body = re.sub(r"&lt;(/?)tt&gt;", r"<\1code>", body)  # code in headings, which Doxygen 1.9.4 escapes
    body = re.sub(r"<code>(--[\w-]+)", r'<code class="flag">\1', body)
    body = re.sub(r'<table class="(markdownTable|doxtable|fieldtable|memberdecls)">.*?</table>',
                  lambda table: f'<div class="scroll">{table.group()}</div>', body, flags=re.DOTALL)
    body = re.sub(r'<div class="fragment">.*?</div><!-- fragment -->', fragment, body, flags=re.DOTALL)
    return re.sub(r"(<p) >", r"\1>", body)


def sections(title, address, body):
    """The entries of a page in the search's index: one for each heading."""
    marks = [match for match in HEADING.finditer(body) if match["id"]]
    ends = [match.start() for match in marks] + [len(body)]
    contents = body.partition('<div class="contents">')[2] or body
    yield [title, "", address, text_of(contents[:max(ends[0] - (len(body) - len(contents)), 0)])]
    for match, end in zip(marks, ends[1:]):
        yield [title, text_of(match["text"]), f"{address}#{match['id']}", text_of(body[match.end():end])]


def main():
    pages = BUILT / "html"
    template = (SITE / "page.html").read_text()
    grouped = groups((ROOT / "docs" / "mainpage.md").read_text())
    found, purpose = symbols(BUILT / "xml"), purposes()
    rooms = [room for room in purpose if any(room_of(symbol) == room for symbol in found)]
    written = {address for links in grouped.values() for _, address in links} | {"index.html"}
    index = []

    def write(name, title, body):
        parts = {"title": html.escape(title), "version": version(), "tree": tree(grouped, rooms, name),
                 "contents": on_this_page(headings(body)), "body": body}
        (pages / name).write_text(re.sub(r"\{(\w+)\}", lambda part: parts[part[1]], template))

    for path in pages.glob("*.html"):
        text = path.read_text()
        if BEGIN not in text or END not in text:
            return f"{path.name}: Doxygen did not use docs/site/header.html and footer.html"
        body = improved(text.partition(BEGIN)[2].rpartition(END)[0])
        body = body.replace("</div><!-- top -->", "", 1)
        title = text_of(re.search(r"<title>(.*?)</title>", text, re.DOTALL)[1])
        if path.name in written:
            index += sections(title, path.name, body)
        write(path.name, "Octavo" if path.name == "index.html" else f"{title} – Octavo", body)
    if purpose:
        for name, title, body in room_pages(found, purpose):
            head = f'<div class="header"><div class="title">{html.escape(title)}</div></div>\n<div class="contents">'
            write(name, f"{title} – Octavo", f"{head}{body}</div>")
    index += [[symbol["name"], symbol["kind"], symbol["address"], f"{symbol['brief']} {symbol['header']}"]
              for symbol in found]
    (pages / "search-index.js").write_text(
        "window.octavoSearch = " + json.dumps(index, ensure_ascii=False, separators=(",", ":")) + ";\n")
    for pattern in UNUSED:
        for path in pages.glob(pattern):
            path.unlink()
    for name in ("site.css", "site.js"):
        shutil.copy(SITE / name, pages / name)
    return None


if __name__ == "__main__":
    if len(sys.argv) != 1:
        print(__doc__.strip())
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    if fault := main():
        sys.exit(f"docs_site: {fault}")

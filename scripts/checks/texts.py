"""Checks of pages, comments and messages."""

import re

import prose as phrasing
from checks.common import INCLUDE, ROOT, check, name_of, run, sources


@check
def changelog():
    """CHANGELOG.md has the form of Keep a Changelog, and a section for the library's version."""
    version = re.search(r'version_string = "(.+)"',
                        (INCLUDE / "octavo/core/version.hpp").read_text()).group(1)
    return [f"CHANGELOG.md: {fault}"
            for fault in changelog_faults((ROOT / "CHANGELOG.md").read_text(), version)]


def changelog_faults(text, version):
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    faults = [f"'## {title}' must be '## [X.Y.Z] - YYYY-MM-DD'" for title in titles[1:]
              if not re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", title)]
    if titles[:1] != ["[Unreleased]"]:
        faults.append("the first section must be '## [Unreleased]'")
    if not any(title.startswith(f"[{version}] - ") for title in titles):
        faults.append(f"version.hpp has version {version}: add its section, '## [{version}] - DATE'")
    faults += [f"'### {kind}' is not one of {', '.join(kinds)}"
               for kind in re.findall(r"^### (.+)$", text, re.MULTILINE) if kind not in kinds]
    dates = re.findall(r"^## \[[\d.]+\] - (\S+)$", text, re.MULTILINE)
    return faults + (["newer versions must come first"] if dates != sorted(dates)[::-1] else [])


@check
def prose():
    """Pages, comments and messages contain no phrase of scripts/prose.txt."""
    listed = phrasing.rules(phrasing.RULES.read_text())
    texts = [*sorted(ROOT.glob("*.md")), *sources(["docs"], {".md"}),
             *sources(["include", "examples"], {".hpp", ".cuh", ".cpp", ".cu"})]
    return [f"{name_of(path)}:{line}: '{phrase}': write {suggestion}" for path in texts
            for line, phrase, suggestion in phrasing.phrases(path.name, path.read_text(), listed)]


@check
def spelling():
    """codespell finds no misspelt word, except those of scripts/spelling.txt."""
    files = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard",
                 ":!tests/golden"])[1].split("\0")
    names = [name for name in files if name and (ROOT / name).is_file()]
    if not names:
        return ["git lists no files"]
    status, output = run(["codespell", "--ignore-words", "scripts/spelling.txt", *names])
    return [output] if status else []


"""The help of a program, from the tables of flags in the documentation, so that it needs no build.

tests/examples/octavo_help_test.py compares it with the programs' own --help.
"""
import os
import re
import textwrap

from octavo_command.errors import CommandError

WIDTH = 110
COLUMN = 26  # where descriptions begin
# The sections that describe the flags of each program. The first description of a flag is used.
SECTIONS = {
    "train_llama": [("trainer", "Flags")],
    "finetune_llama": [("finetuning", "Fine-tuning on chats"), ("trainer", "Flags")],
    "evaluate": [("evaluation", "Evaluation")],
    "generate": [("generation", "The program")],
    "prepare_data": [("tokenizers", "prepare_data")],
    "plan_memory": [("programs", "plan_memory")],
    "doctor": [("programs", "doctor")],
    "compare_runs": [("trainer", "Comparing runs")],
}
# Arguments of a program without a flag.
WORDS = {"prepare_data": " TEXT...", "compare_runs": " RUN_FOLDER..."}


def _read(root, *path):
    try:
        with open(os.path.join(root, *path), encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise CommandError(f"cannot read {error.filename}, which lists the flags: {error.strerror}; use a complete "
                           "checkout or installation", 1) from error


def _plain(cell):
    """Returns the text of a table's cell without Markdown, and without links in parentheses."""
    cell = re.sub(r" \(\[[^\]]*\]\([^)]*\)\)", "", cell)
    cell = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell)
    return cell.replace("`", "").replace("\\|", "|").strip()


def _section(text, heading):
    """Returns the lines of a page from a heading to the next one."""
    lines, is_inside, is_code = [], False, False
    for line in text.splitlines():
        is_code ^= line.startswith("```")
        if line.startswith("#") and not is_code:
            is_inside = re.fullmatch(rf"#+ {re.escape(heading)}", line) is not None
        elif is_inside:
            lines.append(line)
    return lines


def rows(root, target):
    """Yields the flags of a program: table title, names without dashes, defaults and description."""
    shown = set()
    if target == "finetune_llama":  # flags of train_llama alone
        own = re.search(r'"train_llama", \{(.*?)\}', _read(root, "examples/common/flags.hpp"), re.S)
        shown.update(re.findall(r'"([a-z-]+)"', own[1]))
    for page, heading in SECTIONS[target]:
        title = ""
        for line in _section(_read(root, f"docs/{page}.md"), heading):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            if len(cells) == 3 and "default" in cells[1]:
                title = _plain(cells[0])
            names = re.findall(r"`--([a-z0-9-]+)`", cells[0]) if len(cells) == 3 else []
            if names and not shown.issuperset(names):
                shown.update(names)
                default = "" if cells[1].strip() in ("none", "off") else _plain(cells[1])
                yield title, names, default, _plain(cells[2])


def flags(root, target):
    """Returns the flags of a program, without dashes."""
    return {name for _title, names, _default, _description in rows(root, target) for name in names}


def defaults(root, target):
    """Returns the default of each flag of a program; "" if it has none, or if the page has no default for each flag."""
    found = {}
    for _title, names, default, _description in rows(root, target):
        each = default.split(", ")
        found |= dict(zip(names, each if len(each) == len(names) else [""] * len(names)))
    return found


def help_text(root, target, command):
    """Returns the help of a program.

    @param command  what the user wrote, such as "octavo train"
    """
    lines = [f"usage: {command} [flags]{WORDS.get(target, '')}"]
    last = None
    for title, names, default, description in rows(root, target):
        if title != last:
            lines += ["", "flags:" if title == "flag" else f"{title}:"]
            last = title
        name = "  " + ", ".join("--" + one for one in names)
        if default:
            description += f" [{default}]"
        first = name.ljust(COLUMN) if len(name) < COLUMN - 1 else ""
        if not first:
            lines.append(name)
        lines += textwrap.wrap(description, WIDTH, initial_indent=first or " " * COLUMN,
                               subsequent_indent=" " * COLUMN, break_long_words=False, break_on_hyphens=False)
    pages = ", ".join(dict.fromkeys(f"docs/{page}.md" for page, _ in SECTIONS[target]))
    return "\n".join([*lines, "", f"Defaults are in brackets. See {pages} for details."])


def version(root):
    header = _read(root, "include/octavo/core/version.hpp")
    return re.search(r'version_string = "([^"]+)"', header)[1]

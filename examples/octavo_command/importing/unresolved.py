"""Values that a script does not determine: texts with a mark that names what would."""
import re

MARK = "\0"
BLANK = "\1"  # in marks, which are not split into words


def mark(name):
    return MARK + re.sub(r"\s+", BLANK, name) + MARK


def unresolved(value):
    """Returns the source of a value that the script does not determine, or None if the value is known."""
    found = re.search(f"{MARK}([^{MARK}]*){MARK}", str(value))
    return found.group(1).replace(BLANK, " ") if found else None

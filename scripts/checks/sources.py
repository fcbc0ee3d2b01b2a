"""Checks of the library's sources that compile nothing."""

import re
import shutil

from checks.common import INCLUDE, ROOT, check, code_of, headers, name_of, run, say, sources

# A room may include itself and the rooms before it.
ROOMS = ["core", "formats", "precision", "memory", "tensor", "kernels", "gemm", "attention",
         "comm", "layers", "models", "optim", "parallel", "session", "data", "io", "checkpoint", "run",
         "inference"]

# Which other headers than the C++ standard library's a folder may include; the longest match counts.
CUDA_RUNTIME = r"cuda_runtime(_api)?\.h"
CUDA_DEVICE = CUDA_RUNTIME + r"|cuda(_\w+)?\.h|cooperative_groups(/.*)?(\.h)?|cu(b|da|te)/.*|thrust/.*"
POSIX = r"(fcntl|signal|time|unistd|sys/\w+)\.h"
OUTSIDE = {
    "core": CUDA_RUNTIME + r"|pthread\.h|sched\.h|nvtx3/nvToolsExt\.h",
    "memory": CUDA_RUNTIME,
    "kernels/cuda": CUDA_DEVICE,
    "gemm": r"cublas\w*\.h|" + CUDA_DEVICE,
    "attention": r"cudnn\w*\.h|" + CUDA_DEVICE,
    "comm": r"mpi\.h|nccl\.h|netdb\.h|netinet/\w+\.h|poll\.h|" + CUDA_RUNTIME + "|" + POSIX,
    "comm/cuda": r"nccl\.h|" + CUDA_DEVICE + "|" + POSIX,
    "data": POSIX + r"|glob\.h|pcre2\.h|utf8proc\.h|zlib\.h|zstd\.h",
    "io": POSIX,
    "checkpoint": POSIX,
    "run": POSIX + r"|dlfcn\.h",
}


@check
def format():
    """clang-format 19 changes nothing."""
    files = sources(["include", "examples", "tests", "benchmarks"], {".hpp", ".cpp", ".cuh", ".cu"})
    status, output = run(["clang-format-19", "--dry-run", "--Werror", *files])
    if status == 0:
        return []
    changed = sorted(set(re.findall(rf"^{ROOT}/(.+?):\d+:\d+: error", output, re.MULTILINE)))
    return [f"fix with: clang-format-19 -i {' '.join(changed)}" if changed else output]


@check
def includes():
    """Rooms include only earlier rooms, and only the libraries that OUTSIDE lists."""
    others = [f"{name_of(path)}: include/ contains only headers, .hpp and .cuh"
              for path in INCLUDE.rglob("*") if path.is_file() and path.suffix not in (".hpp", ".cuh")]
    return others + [fault for path in headers(".hpp", ".cuh") for fault in include_faults(path)]


def include_faults(path):
    folder = path.relative_to(INCLUDE / "octavo").parent.as_posix()
    room = folder.split("/")[0]
    if room != "." and room not in ROOMS:
        return [f"{name_of(path)}: '{room}' is not a room; the rooms are {', '.join(ROOMS)}"]
    if room == "." and path.stem not in ("octavo", "cuda"):
        return [f"{name_of(path)}: only octavo.hpp and cuda.cuh may be outside of the rooms"]
    faults = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if match and (fault := include_fault(folder, room, *match.groups())):
            faults.append(f"{name_of(path)}:{number}: {fault}")
    return faults


def include_fault(folder, room, bracket, target):
    if target.startswith("octavo/"):
        if not (INCLUDE / target).is_file():
            return f"{target} does not exist"
        known = target.split("/")[1]
        if room == ".":
            return None
        if known not in ROOMS or ROOMS.index(known) > ROOMS.index(room):
            return f"{room} must not include {target}: {known} comes after it"
        return None
    if bracket == '"':
        return f'write <octavo/ROOM/FILE> instead of "{target}"'
    if re.fullmatch(r"[a-z_0-9]+", target):  # the C++ standard library
        return None
    allowed = max((name for name in OUTSIDE if (folder + "/").startswith(name + "/")),
                  key=len, default=None)
    if allowed is None or not re.fullmatch(OUTSIDE[allowed], target):
        return f"{folder} must not include {target}"
    return None


@check
def namespaces():
    """The whole library is in the inline namespace of its version (core/version.hpp)."""
    opens = re.compile(r"^\s*(?:inline\s+)?namespace\s+octavo\b(?! OCTAVO_ABI\b)")
    return [f"{name_of(path)}:{number}: write namespace octavo OCTAVO_ABI in place of "
            f"'{line.strip()}'"
            for path in sources(["include"], {".hpp", ".cuh", ".cpp", ".cu"})
            for number, line in enumerate(path.read_text().splitlines(), 1) if opens.match(line)]


@check
def lengths():
    """No file of the library or of the programs has more than 500 lines."""
    most = 500
    counts = {path: len(path.read_text().splitlines())
              for path in sources(["include", "examples"], {".hpp", ".cuh", ".cpp", ".cu"})}
    return [f"{name_of(path)}: must have at most {most} lines, but has {count}; move a part to "
            "another file" for path, count in counts.items() if count > most]


@check
def once():
    """Every header begins with #pragma once, so that it can be included twice."""
    return [f"{name_of(path)}: begin with '#pragma once', below the file's comment"
            for path in headers(".hpp", ".cuh") if code_of(path)[:1] != ["#pragma once"]]


@check
def kernels():
    """Every kernel is a template, because another would be defined wherever its header is included."""
    declared = re.compile(r"^(template\b[^;{}]*?)?^(?:inline |static )?OCTAVO_KERNEL void\s+"
                          r"(?:__launch_bounds__\([^;{]*?\)\s+)?(\w+)\(", re.MULTILINE)
    return [f"{name_of(path)}: make the kernel {match[2]} a template, such as template <Device D>"
            for path in headers(".cuh") for match in declared.finditer(path.read_text())
            if not match[1]]


@check
def tags():
    """Universal Ctags finds the library's names, as editors do."""
    least = 7500
    tool = shutil.which("ctags-universal") or "ctags"  # Debian's name of it
    version = run([tool, "--version"])[1]
    if "Universal Ctags" not in version:
        return [f"ctags must be Universal Ctags, but is: {version.splitlines()[0]}"]
    status, output = run([tool, "--recurse", "-f", "-", "include"])
    if status:
        return [output]
    found = len(output.splitlines())
    if found < least:
        return [f"Universal Ctags finds {found} names in include/, fewer than {least}: a namespace or "
                "a macro hides the others"]
    say(f"tags: {found} names")
    return []


"""The cache of built programs, and the keys under which it keeps them.

    programs/KEY/PROGRAM     finished programs; KEY covers everything that a program depends on
    builds/KEY, .lock        CMake build folders, one per checkout, compiler and device; the programs of
                             one folder share most objects
    models/NAME/config.json  shapes of Hugging Face folders
"""
import hashlib
import json
import os
import re
import shutil
import subprocess

from octavo_command.errors import CommandError

MOST_PROGRAMS = 32  # per cache; those that were not used for longest are removed
SOURCES = ("CMakeLists.txt", "CMakePresets.json", "cmake", "examples", "include")
NOT_SOURCES = {"octavo_command", "experiments", "learn", "__pycache__"}
VARIABLES = ("CXXFLAGS", "CUDAFLAGS", "LDFLAGS", "CMAKE_PREFIX_PATH", "CMAKE_GENERATOR")


def folder(environment):
    """Returns the cache's folder: OCTAVO_CACHE, or octavo in the user's cache folder."""
    named = environment.get("OCTAVO_CACHE")
    if named:
        return os.path.abspath(named)
    home = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "octavo")


def make_folder(path):
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot create the folder {path} for built programs: {error.strerror}; set "
                           "OCTAVO_CACHE to a writable folder", 1) from error


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:20]


def content_of(root):
    """Returns a digest of the sources, which does not depend on where they are."""
    total = hashlib.sha256()

    def add(path):
        total.update(os.path.relpath(path, root).encode() + b"\0")
        with open(path, "rb") as file:
            data = file.read()
        total.update(len(data).to_bytes(8, "little") + data)

    for name in SOURCES:
        path = os.path.join(root, name)
        if os.path.isfile(path):
            add(path)
        for inside, folders, files in os.walk(path, followlinks=True):
            folders[:] = sorted(set(folders) - NOT_SOURCES)
            for file in sorted(files):
                add(os.path.join(inside, file))
    return total.hexdigest()


def _file_identity(path):
    real = os.path.realpath(path)
    status = os.stat(real)
    return [real, status.st_size, status.st_mtime_ns]


def _default_compiler():
    # The default g++ of Ubuntu 22.04 is older than 12, so scripts/install-dependencies installs g++-12.
    try:
        with open("/etc/os-release", encoding="utf-8") as file:
            return "g++-12" if "VERSION_CODENAME=jammy\n" in file.read() else "c++"
    except OSError:
        return "c++"


def tools(environment, device):
    """Returns the compilers as a dict from CMake's variable to path."""
    wanted = {"CXX": environment.get("CXX") or _default_compiler()}
    if device == "cuda":
        wanted["CUDACXX"] = environment.get("CUDACXX") or "nvcc"
    found = {}
    for variable, name in wanted.items():
        found[variable] = shutil.which(name, path=environment.get("PATH"))
        if found[variable] is None:
            raise CommandError(
                f"building needs the compiler {name}, which is not on PATH; "
                + ("run scripts/install-dependencies run" if variable == "CXX"
                   else "install the CUDA Toolkit, or pass --device cpu"), 1)
    return found


def architecture(environment):
    """Returns GPU 0's architecture for CMAKE_CUDA_ARCHITECTURES, such as "90a"; None without a GPU."""
    tool = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if tool is None:
        return None
    answer = subprocess.run([tool, "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True,
                            text=True, check=False)
    capability = re.match(r"(\d+)\.(\d)\b", answer.stdout)
    if answer.returncode != 0 or capability is None:
        return None
    number = capability[1] + capability[2]
    return "90a" if number == "90" else number


def _processor():
    """Returns the processor's instructions, because programs are compiled for this processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("flags"):
                    return sorted(line.split())
    except OSError:
        pass
    return []


def basis(environment, device):
    """Returns everything except sources and options that a program depends on."""
    return {
        "device": device,
        "processor": _processor(),
        "architecture": architecture(environment) if device == "cuda" else None,
        "tools": {name: _file_identity(path) for name, path in tools(environment, device).items()},
        "variables": {name: environment.get(name, "") for name in VARIABLES},
    }


def program_key(content, basis_, combination):
    """Returns the key of a program. Programs with equal keys are equal."""
    return digest([content, basis_, combination.target, combination.options])


def build_key(root, basis_):
    return digest([root, basis_])


def remove_old(programs, most=MOST_PROGRAMS):
    """Removes the least recently used programs, except `most`."""
    folders = [entry.path for entry in os.scandir(programs) if not entry.name.endswith(".new")]
    for path in sorted(folders, key=os.path.getmtime, reverse=True)[most:]:
        shutil.rmtree(path, ignore_errors=True)

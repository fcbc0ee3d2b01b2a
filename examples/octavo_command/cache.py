"""The cache of built programs, and the keys under which it keeps them.

    programs/KEY/PROGRAM     finished programs; KEY covers everything that a program depends on
    programs/KEY/PROGRAM.size  the size of PROGRAM in bytes, which shows whether the file is complete
    programs/*.new           programs that are being copied
    builds/KEY, .lock        CMake build folders, one per checkout, compiler and device; the programs of
                             one folder share most objects
    models/NAME/config.json  shapes of Hugging Face folders
"""
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time

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
    """Returns a digest of the sources, which does not depend on where they are.

    Skips everything except regular files, such as pipes and the dangling links of editors.
    """
    total = hashlib.sha256()

    def add(path):
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                return
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise CommandError(f"cannot read the source {path}: {error.strerror}", 1) from error
        total.update(os.fsencode(os.path.relpath(path, root)) + b"\0")
        total.update(len(data).to_bytes(8, "little") + data)

    for name in SOURCES:
        path = os.path.join(root, name)
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
    """Returns everything that a program depends on in addition to sources and options."""
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


def find(kept, name):
    """Returns the path of the program `name` in its folder, or None if it is missing or damaged."""
    path = os.path.join(kept, name)
    try:
        with open(path + ".size", encoding="ascii") as file:
            size = int(file.read(32))
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    is_whole = stat.S_ISREG(status.st_mode) and status.st_size == size and os.access(path, os.X_OK)
    return path if is_whole else None


def remove(path):
    """Removes a file, a link or a folder with its contents, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)


def keep(built, kept):
    """Copies a built program to its folder, unless another process has done so. Replaces anything else
    that is there."""
    name = os.path.basename(built)
    with tempfile.TemporaryDirectory(suffix=".new", dir=os.path.dirname(kept)) as temporary:
        new = os.path.join(temporary, "program")
        os.mkdir(new)
        path = os.path.join(new, name)
        shutil.copy2(built, path)
        with open(path + ".size", "w", encoding="ascii") as file:
            file.write(str(os.path.getsize(path)))
        for written in (path, path + ".size"):
            descriptor = os.open(written, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        if find(kept, name) is None:
            remove(kept)
        try:
            os.rename(new, kept)
        except OSError:
            if find(kept, name) is None:
                raise


def remove_old(programs, most=MOST_PROGRAMS):
    """Removes the least recently used programs, except `most`, and copies that were interrupted."""
    times = {}
    for entry in os.scandir(programs):
        try:
            times[entry.path] = entry.stat(follow_symlinks=False).st_mtime
        except FileNotFoundError:  # another process removed it
            pass
    old = [path for path in times if path.endswith(".new") and times[path] < time.time() - 24 * 3600]
    finished = [path for path in times if not path.endswith(".new")]
    for path in old + sorted(finished, key=times.get, reverse=True)[most:]:
        remove(path)

"""Builds a program in a build folder of the cache, once for all processes that need it."""
import fcntl
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from octavo_command import cache, files, gpu_runs
from octavo_command.errors import CommandError

# What compilers print for a static_assert: g++, clang and nvcc.
SENTENCES = (
    re.compile(r'static assertion failed with "(.+)"'),
    re.compile(r"static assertion failed(?: due to requirement '.*?')?: \"?(.+?)\"?$"),
    re.compile(r"static_assert failed(?: due to requirement '.*?')? \"(.+)\""),
)
UNDECLARED = re.compile(r"was not declared|undeclared identifier|is undefined|is not a member of")
ERROR = re.compile(r"\b(?:fatal )?error: (.+)$")
STEP = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]")


def reason_of(output):
    """Returns why a build failed: the library's error message, or else the compiler's first error, or None.

    An undeclared name is the reason for all errors after it.
    """
    errors = [line for line in output if ERROR.search(line)]
    if errors and not UNDECLARED.search(errors[0]):
        for line in errors:
            found = next(filter(None, (pattern.search(line) for pattern in SENTENCES)), None)
            if found:
                return found[1]
    return ERROR.search(errors[0])[1] if errors else None


def cmake_reason(output):
    """Returns the message of CMake's first error, on one line."""
    lines = iter(output)
    for line in lines:
        if not line.startswith("CMake Error"):
            continue
        text = [line.split(":", 1)[1].strip()] if line.startswith("CMake Error:") else []
        for line in lines:
            if line.strip() and not line.startswith(" "):
                break
            if not line.strip() and text:
                break
            text.append(line.strip())
        return " ".join(filter(None, text))
    return " ".join(output[-1:])


class Progress:
    """A line on standard error. On a terminal, each update overwrites the previous one."""

    def __init__(self, what):
        self._what, self._begin = what, time.monotonic()
        self._in_place = sys.stderr.isatty()
        self._print(f"octavo: building {what}" + ("" if self._in_place else " (once; later runs start at "
                                                                           "once)\n"))

    def _print(self, text):
        print(("\r\x1b[K" if self._in_place else "") + text, end="", file=sys.stderr, flush=True)

    def seconds(self):
        return int(time.monotonic() - self._begin)

    def show(self, step):
        if self._in_place:
            self._print(f"octavo: building {self._what}: {step}, {self.seconds()} s")

    def end(self, done):
        if done:
            self._print(f"octavo: built {self._what} in {self.seconds()} s\n")
        elif self._in_place:
            self._print("")


def _read(stream, lines):
    try:
        for line in stream:
            lines.put(line.rstrip("\n"))
    except ValueError:  # closed after a failure
        pass
    lines.put(None)


def _run(command, log, progress, environment, folder, lock):
    """Runs a command, with its output in `log`. Stops it soon after its first error.

    The command inherits `lock`, so that the build folder stays locked while a compiler runs, even if
    this process is killed. Returns the exit code and the lines of output.
    """
    output, step, failed = [], "", False
    # A session of its own, so that a signal ends the compilers as well.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", stdin=subprocess.DEVNULL, env=environment, cwd=folder,
                          start_new_session=True, pass_fds=(lock.fileno(),)) as child:
        lines = queue.Queue()
        threading.Thread(target=_read, args=(child.stdout, lines), daemon=True).start()
        try:
            while True:
                try:
                    line = lines.get(timeout=1)
                except queue.Empty:
                    if failed:  # other compilers would run for a minute
                        break
                    progress.show(step)
                    continue
                if line is None:
                    break
                print(line, file=log)
                output.append(line)
                failed = failed or line.startswith("FAILED: ") or "*** [" in line
                found = STEP.match(line)
                if found:
                    step = f"{found[1]} of {found[2]}" if found[2] else f"{found[1]} %"
                    progress.show(step)
        finally:
            if failed or sys.exc_info()[0] is not None:
                try:
                    os.killpg(child.pid, signal.SIGTERM)
                except ProcessLookupError:
                    pass
        return child.wait() or int(failed), output


def _environment(environment, tools):
    """Returns the environment in which CMake and compilers run. The launcher's variables are removed, because
    CMake's search for MPI runs programs that would use them."""
    kept = {name: value for name, value in environment.items()
            if not name.startswith(("OMPI_", "PMIX_", "PMI_", "PRTE_"))}
    # With huge pages, compilers spend half as much time in the kernel.
    kept.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    if shutil.which("ninja"):
        kept.setdefault("CMAKE_GENERATOR", "Ninja")
    return kept | tools


def _keep_shape(model, models):
    """Copies the config.json of a folder to the cache, where its path has only plain characters."""
    path = os.path.join(models, model.name, "config.json")
    data = files.read_shape(model.config)
    if os.path.isfile(path) and files.read(path) == data:
        return path
    cache.make_folder(os.path.dirname(path))
    new = f"{path}.{os.getpid()}.new"
    try:
        with open(new, "wb") as file:
            file.write(data)
        os.replace(new, path)
    finally:
        cache.remove(new)
    return path


def _build(root, combination, folder, models, environment, progress, lock):
    """Configures and builds the target, and returns the path of the program in the build folder.

    @throws CommandError  with the library's error message if a type does not compile
    """
    if shutil.which("cmake") is None:
        raise CommandError("building needs cmake, which is not on PATH; run scripts/install-dependencies "
                           "run", 1)
    environment = _environment(environment, cache.tools(environment, combination.device))
    preset = "quickstart-cuda" if combination.device == "cuda" else "quickstart"
    shape = None
    if combination.model is not None and combination.model.config is not None:
        shape = _keep_shape(combination.model, models)
    with open(folder + ".log", "w", encoding="utf-8") as log:
        gpu = cache.architecture(environment) if combination.device == "cuda" else None
        code, output = _run(
            ["cmake", "--preset", preset, "-S", root, "-B", folder]
            + ([f"-DCMAKE_CUDA_ARCHITECTURES={gpu}"] if gpu else [])
            + [f"-D{name}={value}" for name, value in combination.options.items()],
            log, progress, environment, root, lock)
        if code:
            text = cmake_reason(output)
            if shape is not None:
                text = text.replace(shape, combination.model.config)
                if text.startswith("octavo_add_model") and shape != combination.model.config:
                    cache.remove(os.path.dirname(shape))
            raise CommandError(text or f"cmake failed; {log.name} contains its output",
                               2 if text.startswith("octavo_add_model") else 1)
        code, output = _run(
            ["cmake", "--build", folder, "--target", combination.target,
             "--parallel", environment.get("CMAKE_BUILD_PARALLEL_LEVEL") or
             str(len(os.sched_getaffinity(0)))], log, progress, environment, root, lock)
        if code:
            reason = reason_of(output)
            raise CommandError(reason or f"the build failed; {log.name} contains its output",
                               2 if reason else 1)
    return os.path.join(folder, "bin", combination.target)


def _is_quiet(environment):
    """Returns whether another rank of this launch reports the progress."""
    return any(environment.get(name, "0") != "0"
               for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"))


def program(root, combination, environment):
    """Returns the path of the program, and builds it if the cache does not contain it."""
    place = cache.folder(environment)
    basis = cache.basis(environment, combination.device)
    content = cache.content_of(root)
    key = cache.program_key(content, basis, combination)
    kept = os.path.join(place, "programs", key)
    path = cache.find(kept, combination.target)
    if path is not None:
        try:
            os.utime(kept)
        except OSError:  # another user's cache
            pass
        return path
    if combination.multiplied:
        gpu_runs.require(root, combination.multiplied, environment)
    for name in ("programs", "builds"):
        cache.make_folder(os.path.join(place, name))
    folder = os.path.join(place, "builds", cache.build_key(root, basis))
    try:
        return _locked_program(root, combination, environment, folder, kept, content)
    except OSError as error:
        raise CommandError(f"cannot build in the cache {place}: {error.filename or 'writing'}: {error.strerror}; "
                           "free space there, or set OCTAVO_CACHE to a writable folder", 1) from error


def _locked_program(root, combination, environment, folder, kept, content):
    """Builds the program in `folder`, which no other process uses meanwhile, and returns its path in `kept`."""
    with open(folder + ".lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not _is_quiet(environment):
                print("octavo: waiting for another build", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        path = cache.find(kept, combination.target)
        if path is not None:  # built by the process that held the lock
            return path
        if os.path.lexists(kept):
            print(f"octavo: {kept} does not contain a complete program; building it again", file=sys.stderr,
                  flush=True)
        progress = Progress(f"{combination.target} ({combination.text})")
        done = False
        try:
            models = os.path.join(os.path.dirname(os.path.dirname(kept)), "models")
            built = _build(root, combination, folder, models, environment, progress, lock)
            if cache.content_of(root) != content:
                raise CommandError(f"the sources in {root} changed during the build; run the command again", 1)
            cache.keep(built, kept)
            cache.remove_old(os.path.dirname(kept))
            done = True
        finally:
            progress.end(done)
    return os.path.join(kept, combination.target)

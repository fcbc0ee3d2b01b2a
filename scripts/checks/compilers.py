"""Checks that compile or analyse the project's code."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from checks.common import (INCLUDE, ROOT, WORK, build, check, code_of, each, fault_of, headers,
                           include_of, name_of, nightly, one_processor, run, say, sources)

PRECOMPILED = WORK / "precompiled"
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
GCC = [os.environ.get("CXX", "g++"), "-std=c++20", "-fsyntax-only", *WARNINGS,
       f"-I{INCLUDE}"]
MPI = subprocess.run(["mpicxx", "--showme:incdirs"], stdout=subprocess.PIPE, text=True,
                     check=True).stdout.split() if shutil.which("mpicxx") else []
GCC += [f"-isystem{folder}" for folder in MPI]
SM_90A = "-gencode=arch=compute_90a,code=sm_90a"
PTX_90A = "-gencode=arch=compute_90a,code=compute_90a"
MAX_LOCAL_BYTES = 64  # of a thread; the kernels of attention use up to 40
# A kernel of attention in 8 bits, which runs only with sm_90a's instructions: a session on another GPU is refused.
NEEDS_SM_90A = "attention_cast_kernel"
HOST_CODE_OF = {"test_parallel_cuda", "test_session_cuda"}  # CUDA programs with whole models
NVCC = ["nvcc", "-std=c++20", "-Werror=all-warnings", f"-I{INCLUDE}"]

# Targets whose .cpp files contain code for the Cuda device. Of programs that share such a header, one
# is listed.
ASK_FOR_CUDA = {"octavo_trainer", "doctor"}


@nightly
def headers_gcc():
    """Every .hpp compiles alone with g++."""
    return each(lambda path: fault_of(name_of(path), [*GCC, "-xc++", "-"], include_of(path)),
                skip_covered_headers(headers(".hpp")))


@nightly
def headers_nvcc():
    """Every .cuh compiles alone with nvcc, if installed; cuda-build compiles the one of cuDNN."""
    if not shutil.which("nvcc"):
        say("headers-nvcc: nvcc is not installed: nothing compiled")
        return []
    own = [path for path in headers(".cuh") if "#include <cudnn_frontend.h>" not in code_of(path)]
    return each(compile_with_nvcc, skip_covered_headers(own))


def skip_covered_headers(paths):
    """Omits headers that are the first include of another: compiling that one tests them alone."""
    begun_with = {line for path in paths for line in code_of(path)[1:2]}
    return [path for path in paths if include_of(path) not in begun_with]


def compile_with_nvcc(path):
    stub = WORK / "nvcc" / (name_of(path).replace("/", ".") + ".cu")
    stub.parent.mkdir(parents=True, exist_ok=True)
    stub.write_text(include_of(path))
    return fault_of(name_of(path),
                    [*NVCC, SM_90A, "-ptx", "-Xcicc=-O0", stub, "-o", stub.with_suffix(".ptx")])


@check
def compile_fail():
    """Programs in tests/compile_fail fail with the expected texts; each compilation ends at its first error."""
    return compile_fail_faults(case_fault)


@nightly
def compile_fail_long():
    """They fail with one error each, and their controls compile."""
    return compile_fail_faults(whole_case_fault, controls=True)


def compile_fail_faults(fault_of_case, controls=False):
    """Calls a function on each path, case and list of expected texts; CONTROL is a case without texts."""
    programs = sources(["tests/compile_fail"], {".cpp", ".cu"})
    if not shutil.which("nvcc"):
        say("compile-fail: nvcc is not installed: only the .cpp were compiled")
        programs = [path for path in programs if path.suffix == ".cpp"]
    cases = []
    for path in programs:
        expected = {}  # by case; "" is the file as it is
        for case, text in re.findall(r"^// expect(?: (\w+))?: (.+?)\s*$", path.read_text(), re.MULTILINE):
            expected.setdefault(case, []).append(text)
        if fault := expectation_fault(path.read_text(), expected):
            return [f"{name_of(path)}: {fault}"]
        cases += [(path, case, texts) for case, texts in expected.items()]
        if controls:
            cases.append((path, "CONTROL", []))
    header = "octavo/octavo.hpp"
    if any(f"#include <{header}>" in path.read_text() for path in programs):
        if fault := precompile(header):
            return [fault]
    # nvcc takes longest.
    return each(lambda case: fault_of_case(*case), sorted(cases, key=lambda case: case[0].suffix != ".cu"))


def precompile(header):
    """Precompiles a header into PRECOMPILED, for all files that include it first."""
    result = PRECOMPILED / f"{header}.gch"
    result.parent.mkdir(parents=True, exist_ok=True)
    source = WORK / "precompiled.hpp"  # g++ warns of #pragma once in the main file
    source.write_text(f"#include <{header}>\n")
    return fault_of(f"{header} as precompiled header",
                    [part for part in GCC if part != "-fsyntax-only"]
                    + ["-xc++-header", source, "-o", result])


def case_fault(path, case, texts):
    """Why a program does not fail with the expected texts. Later lines are compiled for only if the first
    error lacks a text, which may be in a note that follows it."""
    if path.suffix == ".cpp" and not failure_fault(path, case, texts, ["-Wfatal-errors"])[0]:
        return None
    return failure_fault(path, case, texts)[0]


def whole_case_fault(path, case, texts):
    """The same, and why it has more than one error; why a control does not compile."""
    if case == "CONTROL":
        return fault_of(f"{name_of(path)}: the control must compile", compile_fail_command(path, case))
    fault, output = failure_fault(path, case, texts)
    wanted = re.search(r"^// errors: (\d+)", path.read_text(), re.MULTILINE)
    wanted = int(wanted.group(1)) if wanted else 1
    if not fault and path.suffix == ".cpp" and (errors := output.count(" error: ")) != wanted:
        fault = f"{name_of(path)} {case}: {errors} errors instead of {wanted}\n{output}"
    return fault


def failure_fault(path, case, texts, flags=()):
    """Why a program does not fail with these texts, and the compiler's output."""
    name = f"{name_of(path)} {case}".rstrip()
    compiler, *arguments = compile_fail_command(path, case)
    status, output = run([compiler, *flags, *arguments])
    if status == 0:
        return f"{name}: compiles, but must not", output
    if absent := [text for text in texts if text not in output]:
        return f"{name}: the error lacks {absent}\n{output}", output
    return None, output


def expectation_fault(source, expected):
    """Why an expectation is missing or would be ignored, for example because two lines were joined."""
    if not expected:
        return "no line '// expect: TEXT'"
    for number, line in enumerate(source.splitlines(), 1):
        for found in re.finditer(r"\bexpect(?: \w+)?:", line):
            if line[:found.start()] != "// ":
                return f"line {number}: '{found.group()}' must begin its line"
    cases = set(re.findall(r"\bOCTAVO_COMPILE_FAIL_(\w+)", source)) - {"CONTROL"}
    if silent := sorted(cases - set(expected)):
        return f"OCTAVO_COMPILE_FAIL_{silent[0]} has no line '// expect {silent[0]}: TEXT'"
    if unknown := sorted(set(expected) - cases - {""}):
        return f"'expect {unknown[0]}' has no OCTAVO_COMPILE_FAIL_{unknown[0]}"
    return None


def compile_fail_command(path, case):
    """The command that compiles a program with the mistake of this name; CONTROL: none; "": no macro."""
    define = [f"-DOCTAVO_COMPILE_FAIL_{case}"] if case else []
    if path.suffix == ".cpp":
        return [*GCC[:1], f"-I{PRECOMPILED}", "-Winvalid-pch", *GCC[1:], *define, path]
    result = WORK / "compile_fail" / f"{path.stem}.{case}.o"
    result.parent.mkdir(parents=True, exist_ok=True)
    flags = re.search(r"^// nvcc: (.+)$", path.read_text(), re.MULTILINE)
    gpu = flags.group(1).split() if flags and case != "CONTROL" else [SM_90A]
    return [*NVCC, *gpu, *define, "-ptx", "-Xcicc=-O0", path, "-o", result]


@one_processor
def tidy():
    """clang 16 and clang-tidy 16 report nothing about headers."""
    everything = WORK / "all_headers.cpp"
    WORK.mkdir(parents=True, exist_ok=True)
    everything.write_text("".join(f"#include <{path.relative_to(INCLUDE)}>\n"
                                  for path in headers(".hpp")))
    return tidied({everything: ["--", "-std=c++20", f"-I{INCLUDE}",
                                *(f"-isystem{folder}" for folder in MPI)]})


@nightly
def tidy_sources():
    """clang-tidy reports nothing about programs, tests, and headers as those instantiate them."""
    if fault := fault_of("cmake --preset clang", ["cmake", "--preset", "clang"]):
        return [fault]
    database = json.loads((ROOT / "build/clang/compile_commands.json").read_text())
    return tidied({Path(entry["file"]): ["-p", ROOT / "build/clang"] for entry in database})


def tidied(commands):
    """Runs clang-tidy on sources, each with its arguments."""
    tool = ["clang-tidy-16", "--quiet", f"--config-file={ROOT}/.clang-tidy",
            f"--header-filter={ROOT}/(include|examples|tests)/.*"]
    longest_first = sorted(commands, key=length_of, reverse=True)
    return each(lambda path: fault_of(name_of(path), [*tool, path, *commands[path]]), longest_first)


def length_of(source):
    """The bytes of a source and of the sources that a unity file includes."""
    text = source.read_text()
    united = re.findall(r'^#include "(/.+)"$', text, re.MULTILINE)
    return len(text) + sum(os.path.getsize(path) for path in united)


@check
def cuda():
    """Tests of the Cuda device compile to PTX, if nvcc is installed.

    The host's code of HOST_CODE_OF is compiled as well."""
    if not shutil.which("nvcc"):
        say("cuda: nvcc is not installed: nothing compiled")
        return []
    if fault := fault_of("cmake --preset cuda", ["cmake", "--preset", "cuda"]):
        return [fault]
    entries = json.loads((ROOT / "build/cuda/compile_commands.json").read_text())
    chosen = [entry for entry in entries if is_of_cuda(entry)]
    if absent := ASK_FOR_CUDA - {target_of(entry) for entry in chosen
                                 if not entry["file"].endswith(".cu")}:
        return [f"the build has no .cpp of {', '.join(sorted(absent))}"]
    return each(reading_fault, sorted(chosen, key=lambda entry: length_of(Path(entry["file"])),
                                      reverse=True))


def target_of(entry):
    return re.search(r" -o (?:\S+/)?CMakeFiles/([^/]+)\.dir/", entry["command"])[1]


def is_of_cuda(entry):
    """Whether a source is a .cu of the tests, or ASK_FOR_CUDA lists its target. Programs and benchmarks
    instantiate the same templates as the tests; cuda-build compiles them."""
    if entry["file"].endswith(".cu"):
        return "/tests/" in entry["file"].removeprefix(str(ROOT))
    return target_of(entry) in ASK_FOR_CUDA


def reading_fault(entry):
    """Compiles a source without linking: nvcc compiles kernels to PTX, and little of the host's code.

    Some templates compile with nvcc's own reading of the host's code, but not after it wrote them out
    for g++, so g++ reads programs with whole models."""
    words = shlex.split(entry["command"])
    output = words.index("-o")
    if not entry["file"].endswith(".cu"):
        return fault_of(entry["file"], [*words[:output], "-fsyntax-only", *words[output + 2:]],
                        folder=entry["directory"])
    result = WORK / "cuda" / (words[output + 1].replace("/", ".") + ".ptx")
    result.parent.mkdir(parents=True, exist_ok=True)
    words[output + 1] = str(result)
    words = [word for word in words if not word.startswith("--generate-code")]
    if target_of(entry) in HOST_CODE_OF:
        words += [PTX_90A, "-Xcompiler=-fsyntax-only"]
    else:
        words = [*("-ptx" if word == "-c" else word for word in words), SM_90A]
    return fault_of(entry["file"], words, folder=entry["directory"])


@nightly
def sass():
    """Kernels use few bytes of local memory in the machine code of GPUs that no test runs on."""
    if not shutil.which("nvcc"):
        say("sass: nvcc is not installed: nothing compiled")
        return []
    return [fault for faults in each(local_memory_faults, ["80", "86", "89", "90", "100f", "120f"])
            for fault in faults]


def local_memory_faults(architecture):
    """Returns the kernels of tests/architectures that need too much memory for what does not fit the
    registers of a thread: spilled values and arrays with variable indices."""
    source = ROOT / "tests/architectures/kernels.cu"
    binary = WORK / "sass" / f"{architecture}.cubin"
    binary.parent.mkdir(parents=True, exist_ok=True)
    status, output = run([*NVCC, f"-arch=sm_{architecture}", "-cubin", "--extended-lambda",
                          "-Xptxas=-v", source, "-o", binary])
    if status:
        return [f"{name_of(source)} for {architecture}\n{output}"]
    frames = re.findall(r"Function properties for (\w*octavo\w*)\n\s*(\d+) bytes stack frame", output)
    if not frames:
        return [f"{name_of(source)} for {architecture}: ptxas prints no function properties"]
    return [f"{name_of(source)}: {kernel} uses {used} bytes of local memory in each thread on "
            f"sm_{architecture}, but at most {MAX_LOCAL_BYTES} are allowed"
            for kernel, used in frames if int(used) > MAX_LOCAL_BYTES and NEEDS_SM_90A not in kernel]


@nightly
def cuda_build():
    """Tests, programs and benchmarks of the Cuda device compile and link, if nvcc is installed."""
    if not shutil.which("nvcc"):
        say("cuda-build: nvcc is not installed: nothing compiled")
        return []
    return build("cuda")


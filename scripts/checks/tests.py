"""Checks that run tests and other scripts."""

import shutil
from xml.etree import ElementTree

from checks.common import JOBS, ROOT, WORK, build, check, fault_of, nightly, run, say, sources

# Rooms with threads, sockets, files and memory of their own. The others compute, and their tests take
# minutes under sanitizers.
SANITIZED_ROOMS = {"comm", "core", "data", "io", "memory"}
# Tests of these rooms that read megabytes of text, which takes most of the time of all of them.
LONG_SANITIZED_TESTS = ["test_data.BytePairTokenizer.SplittingLongTextsPreservesTokens",
                        "test_data.CharacterTokenizer.SplittingLongTextsPreservesTokens",
                        "test_data.NormalForm.TokensMatchNormalisedText",
                        "test_data.UnigramFiles.FindsBestTokensOfLongWords"]
WAITING_TESTS = 2  # run in addition to JOBS others: many tests wait for ranks or for a time-out


@check
def mutants():
    """Every fault in tests/mutants/ applies: its pattern occurs exactly once."""
    fault = fault_of("scripts/mutate --check", [ROOT / "scripts" / "mutate", "--check"])
    return [fault] if fault else []


@check
def sanitize():
    """Tests of SANITIZED_ROOMS, except long ones, pass under Address- and UndefinedBehaviorSanitizer."""
    return sanitized(SANITIZED_ROOMS, without=LONG_SANITIZED_TESTS)


@nightly
def sanitize_long():
    """The tests of all rooms do."""
    return sanitized(rooms_with_tests())


def sanitized(rooms, without=()):
    programs = test_programs(rooms)
    return build("sanitize", *programs) or test_faults(
        "sanitize", rf"^({'|'.join(programs)})\.", f"^({'|'.join(without)})$")


def rooms_with_tests():
    return {path.parent.name for path in (ROOT / "tests").glob("*/*_test.cpp")} - {"examples"}


def test_programs(rooms):
    return [f"test_{room}" for room in sorted(rooms)]


def test_faults(preset, included, excluded="^$"):
    """Runs tests of a build whose names match one expression and not another; returns the output of the
    tests that failed."""
    report = WORK / f"{preset}.xml"
    WORK.mkdir(parents=True, exist_ok=True)
    status, output = run(["ctest", "--test-dir", f"build/{preset}", "--no-tests=error",
                          "--tests-regex", included, "--exclude-regex", excluded,
                          "--parallel", JOBS + WAITING_TESTS, "--output-junit", report])
    if status == 0:
        return []
    failed = [f"{case.get('name')}\n{case.findtext('system-out', '').rstrip()}"
              for case in ElementTree.parse(report).iter("testcase") if case.get("status") == "fail"]
    # The list of failures as well: a test that crashed or timed out may have printed nothing.
    return [*failed, output[max(output.find("The following tests "), 0):]]


@nightly
def tests_long():
    """The tests pass that run-tests omits: programs of examples/learn, and further types of typed suites."""
    learn = [path.stem for path in sources(["examples/learn"], {".cpp"})]
    typed = sorted({f"test_{path.parent.name}" for path in sources(["tests"], {".cpp"})
                    if "TypesAlways<" in path.read_text()})
    return build("tests-long", *learn, *typed) or test_faults(
        "tests-long", rf"^(examples\.({'|'.join(learn)})$|({'|'.join(typed)})\.)")


@nightly
def fuzz():
    """No file parser crashes during a minute of fuzzing each; scripts/fuzz runs longer."""
    status, output = run([ROOT / "scripts" / "fuzz", "--seconds", 60])
    if status == 0:
        say(output.rstrip())
    return [output] if status else []


@nightly
def octavo_builds():
    """`octavo` builds and runs a trainer and a plan for a C++ type, and prints why another does not compile."""
    folder = WORK / "octavo"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    text = folder / "text.txt"
    text.write_text("all that is gold does not glitter\n" * 100)
    policy = "Layerwise<First<2, Bf16>, Fp8Recipe<DelayedScaling<16, AmaxReduction::most_recent, Margin{1}>>>"
    words = ["fp8-amax-history-len", "16", "fp8-amax-compute-algo", "most_recent", "fp8-margin", "1", "bf16-first", "2"]
    words = [word if at % 2 else "--" + word for at, word in enumerate(words)]
    train = ["train", "--data", text, "--lora", "4", "--steps", "2", "--no-out", "--validation-batches", "1"]
    too_many = "First and Last together select more blocks than the model has layers"
    return octavo_faults(folder, [
        ([*train, "--precision", policy], 0, "2 steps in "),
        ([*train, *words], 0, "2 steps in "),  # the same type, from the cache
        (["train", "--data", text, "--precision", "Layerwise<First<9, Bf16>, Fp8Recipe<Delayed>>"], 2, too_many),
        (["plan", "--model", "llama3_8b", "--precision", policy], 0, f"precision {policy}, "),
    ])


def octavo_faults(folder, commands):
    """Runs commands of octavo with an empty cache: (words, exit status, text in the output)."""
    faults = []
    environment = ["env", f"OCTAVO_CACHE={folder / 'cache'}"]
    for words, expected, text in commands:
        status, output = run([*environment, ROOT / "octavo", *words])
        if status != expected or text not in output:
            faults.append(f"octavo {' '.join(map(str, words))}\nexit status {status}, not {expected}, or an output "
                          f"without '{text}':\n{output}")
    built = len(list((folder / "cache" / "programs").glob("*")))
    return faults if built == 2 or faults else [f"octavo built {built} programs, not 2"]

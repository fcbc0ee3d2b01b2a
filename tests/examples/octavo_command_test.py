"""Tests the command octavo without compiling a program: octavo_command_test.py [unittest's arguments]

A stub of CMake builds programs that print their arguments, so that the tests see the options of a build,
how many processes share it, and the words that reach the program.
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "examples"))

from octavo_command import arguments, build, cache, combination, dispatch, model, pages, precision, shape  # noqa: E402
from octavo_command.commands import compare, evaluate, finetune, generate, plan, prepare, train  # noqa: E402
from octavo_command.errors import CommandError  # noqa: E402
from octavo_command.flags import Flags  # noqa: E402

CUSTOM = ("Layerwise<First<2, Bf16>, Fp8Recipe<DelayedScaling<16, AmaxReduction::most_recent, "
          "Margin{1}>>, Last<1, Bf16>>")
NAMES = precision.named(str(ROOT))
DATA = ("--data", str(ROOT / "README.md"))
SHOWN = f"<--data><{DATA[1]}>"


class Temporary(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def make_folder(self, name, text='{"model_type": "llama"}'):
        folder = self.folder / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(text)
        return folder

    def combine(self, module, *words, environment=None):
        """Returns the combination of a command line, and the words for the program."""
        flags = Flags(list(words))
        wanted = combination.combine(module.PROGRAM, flags, str(ROOT), str(self.folder / "models"),
                                     environment or {})
        return wanted, flags.words

    def refused(self, text, module, *words):
        with self.assertRaises(CommandError) as caught:
            self.combine(module, *words)
        self.assertIn(text, str(caught.exception))
        self.assertEqual(caught.exception.exit_code, 2)


class Precisions(Temporary):
    def precision_of(self, *words, module=train):
        wanted, left = self.combine(module, *words)
        chosen = wanted.options["OCTAVO_PRECISIONS"]
        if chosen != module.PROGRAM.default_precision:
            self.assertEqual(Flags(left).get("precision"), chosen)
        return chosen

    def test_names_are_those_of_the_header(self):
        self.assertEqual(NAMES["fp8-delayed"], "Fp8Recipe<Delayed>")
        self.assertEqual(NAMES["fp8-delayed-bf16-edges"],
                         "Layerwise<First<1, Bf16>, Fp8Recipe<Delayed>, Last<1, Bf16>>")
        header = (ROOT / precision.HEADER).read_text()
        self.assertEqual(len(NAMES), header.count("    NamedPrecision<"))

    def test_defaults_are_those_of_the_programs(self):
        self.assertEqual(self.precision_of(), "fp8-delayed")
        self.assertIn('std::string precision = "fp8-delayed";',
                      (ROOT / "examples/train_llama/model_choice.hpp").read_text())
        self.assertIn('std::string precision = "fp8-delayed";',
                      (ROOT / "examples/plan_memory/options.hpp").read_text())
        for module, source in ((generate, "generate.cpp"), (evaluate, "evaluate/options.hpp")):
            self.assertEqual(self.precision_of(module=module), "bf16")
            self.assertIn('options.precision = "bf16";', (ROOT / "examples" / source).read_text())

    def test_any_type_has_one_form(self):
        spaced = CUSTOM.replace(", ", " ,").replace("<", " <  ")
        self.assertEqual(self.precision_of("--precision", spaced), CUSTOM)
        self.assertEqual(self.precision_of(f"--precision={CUSTOM}"), CUSTOM)

    def test_a_type_with_a_name_becomes_the_name(self):
        for name, text in NAMES.items():
            self.assertEqual(self.precision_of("--precision", text), name)

    def test_plans_are_built_for_types_only(self):
        for words in ((), ("--precision", "bf16"), ("--precision", NAMES["fp8-tensorwise"])):
            wanted, _ = self.combine(plan, *words)
            self.assertEqual((wanted.options["OCTAVO_PRECISIONS"], wanted.text), ("", "cpu"))
        self.assertEqual(self.combine(plan, "--all")[1], ["--all"])
        self.assertEqual(self.precision_of("--precision", CUSTOM, module=plan), CUSTOM)
        wanted, left = self.combine(plan, "--world", "4", "--fp8-format", "e4m3")
        self.assertEqual(wanted.text, "Fp8Recipe<Delayed, E4M3Only>")
        self.assertEqual(left, ["--precision", "Fp8Recipe<Delayed, E4M3Only>", "--world", "4"])

    def test_the_words_of_other_trainers_select_a_type(self):
        for words, expected in (
            ("--fp8-format hybrid", "fp8-delayed"),
            ("--fp8-format e4m3", "Fp8Recipe<Delayed, E4M3Only>"),
            ("--precision fp8-delayed-fast-gradients --fp8-format hybrid",
             "fp8-delayed-fast-gradients"),
            ("--precision fp8-delayed-fast-gradients --fp8-format e4m3",
             "Fp8Recipe<Delayed, E4M3Only, GemmAccumulation::fast>"),
            ("--precision Fp8Recipe<Delayed,Hybrid,GemmAccumulation::fast,GemmAccumulation::fast> "
             "--fp8-format e4m3",
             "Fp8Recipe<Delayed, E4M3Only, GemmAccumulation::fast, GemmAccumulation::fast>"),
            ("--fp8-amax-history-len 16", "Fp8Recipe<DelayedScaling<16, AmaxReduction::max, Margin{0}>>"),
            ("--fp8-amax-history-len 1024 --fp8-amax-compute-algo max --fp8-margin 0", "fp8-delayed"),
            ("--bf16-first 1 --bf16-last 1", "fp8-delayed-bf16-edges"),
            ("--bf16-first 0 --bf16-last 0", "fp8-delayed"),
            ("--precision fp8-tensorwise --bf16-first 2 --bf16-last 1",
             "Layerwise<First<2, Bf16>, Fp8Recipe<Tensorwise>, Last<1, Bf16>>"),
            ("--precision fp8-delayed-bf16-edges --bf16-first 3",
             "Layerwise<First<3, Bf16>, Fp8Recipe<Delayed>, Last<1, Bf16>>"),
            ("--precision fp8-delayed-bf16-edges --bf16-first 0 --bf16-last 0", "fp8-delayed"),
            ("--precision fp8-tensorwise-fp8-head --fp8-format e4m3",
             "Layerwise<Fp8Recipe<Tensorwise, E4M3Only>, Head<Fp8Recipe<Rowwise>>>"),
            ("--fp8-amax-history-len 16 --fp8-amax-compute-algo most_recent --fp8-margin 1 --bf16-first 2 "
             "--bf16-last 1", CUSTOM),
        ):
            with self.subTest(words):
                self.assertEqual(self.precision_of(*words.split()), expected)
                _, left = self.combine(train, *words.split())
                self.assertFalse([word for word in left if word.startswith(("--fp8", "--bf16"))])

    def test_parameters_that_are_not_set_keep_their_values(self):
        self.assertEqual(
            self.precision_of("--precision", CUSTOM, "--fp8-margin", "3"),
            CUSTOM.replace("Margin{1}", "Margin{3}"))
        rounded = CUSTOM.replace("Margin{1}", "Margin{1}, ScaleRounding::power_of_two")
        self.assertEqual(self.precision_of("--precision", rounded, "--fp8-margin", "3"),
                         rounded.replace("Margin{1}", "Margin{3}"))

    def test_words_without_effect_are_refused(self):
        self.refused("--fp8-margin needs delayed scaling, but --precision is fp8-tensorwise", train,
                     "--precision", "fp8-tensorwise", "--fp8-margin", "1")
        self.refused("--bf16-first needs an FP8 precision, but --precision is bf16", train,
                     "--precision", "bf16", "--bf16-first", "1")
        self.refused("--fp8-format needs an Fp8Recipe, but --precision is mxfp8", train,
                     "--precision", "mxfp8", "--fp8-format", "e4m3")
        self.refused("--fp8-format must be hybrid or e4m3, but is 'e5m2'", train, "--fp8-format", "e5m2")
        self.refused("--bf16-last must be a whole number of at least 0, but is '-1'", train,
                     "--bf16-last", "-1")
        self.refused("--fp8-margin must have a value", train, "--fp8-margin")

    def test_a_text_that_is_neither_is_refused(self):
        self.refused("--precision must be one of fp32, bf16, fp8-delayed,", train, "--precision", "bf17")
        for text, meant in (("fp8", "fp8-delayed"), ("FP8-Delayed", "fp8-delayed"), ("BF16", "bf16"),
                            ("FP8", "fp8-delayed"), ("fp8_rowwise", "fp8-rowwise"), ("Blockwise", "fp8-blockwise"),
                            ("fp8-tensorwise-edges", "fp8-tensorwise-bf16-edges")):
            self.refused(f"but is '{text}'; did you mean '{meant}'?", train, "--precision", text)
        for text, found in (("Layerwise<Bf16", "a '<' without '>'"), ("Bf16>", "'>' after the type"),
                            ("First<1, Bf16}", "'}' where ',' or '>' is expected"),
                            ('Bf16; int x', "';' after the type"), ("", "no end")):
            self.refused(f"has {found}", train, "--precision", text)


class Combinations(Temporary):
    def test_lists_contain_only_what_is_asked_for(self):
        wanted, left = self.combine(train, "--model", "gpt2_tiny", "--precision", "bf16", "--steps", "3")
        self.assertEqual(wanted.target, "train_llama")
        self.assertEqual(left, ["--model", "gpt2_tiny", "--precision", "bf16", "--steps", "3"])
        filled = {name: value for name, value in wanted.options.items() if value not in ("", "AUTO", "OFF")}
        self.assertEqual(filled, {"OCTAVO_PRESETS": "gpt2_tiny", "OCTAVO_PRECISIONS": "bf16",
                                  "OCTAVO_REDUCE": "stored", "OCTAVO_PLAIN_MODELS": "ON"})

    def test_the_gpu_has_separate_lists(self):
        wanted, _ = self.combine(finetune, "--device", "cuda", "--model=llama3_8b")
        self.assertEqual(wanted.options["OCTAVO_CUDA_PRESETS"], "llama3_8b")
        self.assertEqual(wanted.options["OCTAVO_CUDA_PRECISIONS"], "fp8-delayed")
        self.assertEqual(wanted.options["OCTAVO_PRESETS"] + wanted.options["OCTAVO_PRECISIONS"], "")

    def test_adapters_and_ranks(self):
        wanted, _ = self.combine(train, "--lora", "8", "--tensor-parallel", "2", "--reduce", "e4m3")
        self.assertEqual(wanted.options["OCTAVO_LORA"], "llama_tiny:fp8-delayed")
        self.assertEqual(wanted.options["OCTAVO_TENSOR_PARALLEL"], "llama_tiny:fp8-delayed:2")
        self.assertEqual(wanted.options["OCTAVO_REDUCE"], "stored;e4m3")
        self.assertEqual(wanted.options["OCTAVO_MPI"], "ON")
        for words in (("--lora", "8"), ("--tensor-parallel", "2")):
            self.assertEqual(self.combine(train, *words)[0].options["OCTAVO_PLAIN_MODELS"], "OFF")
        for precision in ("fp8-delayed-fastest", "Layerwise<Fp8Recipe<Delayed>, ForActivation<E4M3>>"):
            self.refused("--lora does not support ForActivation", train, "--lora", "8", "--precision", precision)
        wanted, _ = self.combine(train, "--lora", "0", "--tensor-parallel", "1")
        self.assertEqual(wanted.options["OCTAVO_PLAIN_MODELS"], "ON")
        self.assertEqual(wanted.options["OCTAVO_LORA"] + wanted.options["OCTAVO_TENSOR_PARALLEL"], "")

    def test_one_rank_and_several_share_a_program_if_mpi_is_installed(self):
        for size, without, with_mpi in (({"OMPI_COMM_WORLD_SIZE": "4"}, "ON", "AUTO"),
                                        ({"PMI_SIZE": "1"}, "OFF", "AUTO")):
            wanted, _ = self.combine(train, environment=size)
            self.assertEqual(wanted.options["OCTAVO_MPI"], without)
            (self.folder / "mpicxx").touch(mode=0o755)
            wanted, _ = self.combine(train, environment=size | {"PATH": str(self.folder)})
            self.assertEqual(wanted.options["OCTAVO_MPI"], with_mpi)
        one, _ = self.combine(train, "--device", "cuda")
        several, _ = self.combine(train, "--device", "cuda", "--zero", "3")
        self.assertIn((one.options["OCTAVO_NCCL"], several.options["OCTAVO_NCCL"]),
                      (("OFF", "ON"), ("AUTO", "AUTO")))

    def test_programs_without_a_model_have_one_build(self):
        for module, target in ((prepare, "prepare_data"), (compare, "compare_runs")):
            wanted, left = self.combine(module, "runs/a", "runs/b")
            self.assertEqual((wanted.target, wanted.model), (target, None))
            self.assertEqual(left, ["runs/a", "runs/b"])
        self.assertEqual(self.combine(prepare)[0].options["OCTAVO_PCRE2"], "ON")
        self.assertEqual(self.combine(compare)[0].options["OCTAVO_PCRE2"], "AUTO")

    def test_the_command_line_overrides_the_configuration(self):
        config = self.folder / "config.toml"
        config.write_text('model = "gpt2_tiny"\nprecision = "bf16"\nlora = 4\n')
        wanted, left = self.combine(train, "--config", str(config), "--precision", "fp32")
        self.assertEqual(wanted.options["OCTAVO_PRESETS"], "gpt2_tiny")
        self.assertEqual(wanted.options["OCTAVO_PRECISIONS"], "fp32")
        self.assertEqual(wanted.options["OCTAVO_LORA"], "gpt2_tiny:fp32")
        self.assertNotIn("--model", left)
        config.write_text(f'precision = "{CUSTOM.replace(" ", "")}"\n')
        _, left = self.combine(train, "--config", str(config))
        self.assertEqual(left[:2], ["--precision", CUSTOM])
        config.write_text("not TOML")  # the program reports it
        self.assertEqual(self.combine(train, "--config", str(config))[0].options["OCTAVO_PRESETS"],
                         "llama_tiny")

    def test_folders_of_equal_shape_have_one_name(self):
        first, second = self.make_folder("a/My-Model"), self.make_folder("b/My-Model")
        other = self.make_folder("c/My-Model", '{"model_type": "gpt2"}')
        wanted, left = self.combine(train, "--model", f"hf:{first}")
        name = wanted.model.name
        self.assertRegex(name, "^my_model_[0-9a-f]{8}$")
        self.assertEqual(wanted.options["OCTAVO_MODELS"], f"{name}:{self.folder}/models/{name}")
        self.assertEqual(wanted.options["OCTAVO_PRESETS"], "")
        self.assertEqual(left, ["--model", f"hf:{first}"])
        self.assertEqual(self.combine(train, "--model", f"hf:{second}")[0].model.name, name)
        self.assertNotEqual(self.combine(train, "--model", f"hf:{other}")[0].model.name, name)
        self.assertEqual(self.combine(train, "--model", str(first))[1], ["--model", f"hf:{first}"])
        self.assertEqual(self.combine(train, "--model", f"shape:{first}")[1], ["--model", name])

    def test_a_folder_uses_the_build_of_an_equal_shape(self):
        tiny = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 384,
                "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "rope_theta": 10000,
                "rms_norm_eps": 1e-5, "head_dim": 32, "sliding_window": 8, "dtype": "bfloat16"}
        folder = self.make_folder("tiny", json.dumps(tiny))
        wanted, left = self.combine(train, "--model", f"hf:{folder}")
        self.assertEqual((wanted.options["OCTAVO_PRESETS"], wanted.options["OCTAVO_MODELS"]), ("llama_tiny", ""))
        self.assertEqual(left, ["--model", f"hf:{folder}"])
        for name, value in (("num_hidden_layers", 5), ("rms_norm_eps", 1e-6), ("tie_word_embeddings", True),
                            ("model_type", "qwen3"), ("rope_theta", 10001), ("model_type", "mistral"),
                            ("rope_scaling", {"rope_type": "linear", "factor": 2.0})):
            other = self.make_folder(f"{name}_{value}"[:30].replace("/", "_"), json.dumps(tiny | {name: value}))
            self.assertEqual(self.combine(train, "--model", f"hf:{other}")[0].options["OCTAVO_PRESETS"], "", name)
        # Written by another program: other keys, and numbers rounded to FP32.
        wide = tiny | {"hidden_size": 256, "head_dim": 64}
        first = self.make_folder("models/wide_12345678", json.dumps(wide))
        copy = self.make_folder("tuned", json.dumps(wide | {"rms_norm_eps": 9.999999747378752e-06,
                                                            "rope_theta": None,
                                                            "rope_parameters": {"rope_theta": 10000.0}}))
        self.assertEqual(self.combine(train, "--model", f"hf:{copy}")[0].options["OCTAVO_MODELS"],
                         f"wide_12345678:{first}")

    def test_files_that_have_no_configuration_are_refused(self):
        pipe, deep = self.folder / "pipe", self.folder / "deep"
        os.mkfifo(pipe)
        deep.write_text("a = " + "[" * 100000)
        for path, text in ((pipe, "must be a regular file"), ("/dev/zero", "must be a regular file"),
                           (deep, "has too many nested arrays")):
            self.refused(text, train, "--config", str(path))
        for i, (text, found) in enumerate((("[" * 100000, "must be valid JSON"), ("", "must be valid JSON"),
                                           ("[]", "must contain a JSON object"),
                                           ('{"hidden_size": "64"}', 'hidden_size must be a positive whole'))):
            self.refused(found, train, "--model", f"hf:{self.make_folder(f'm{i}', text)}")
        folder = self.make_folder("piped")
        (folder / "config.json").unlink()
        os.mkfifo(folder / "config.json")
        self.refused("must be a regular file", train, "--model", f"hf:{folder}")

    def test_a_damaged_shape_in_the_cache_is_written_again(self):
        folder = self.make_folder("My-Model")
        for damage in (lambda path: path.write_text(""), lambda path: path.symlink_to("nowhere")):
            wanted, _ = self.combine(train, "--model", f"hf:{folder}")
            kept = self.folder / "models" / wanted.model.name / "config.json"
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.unlink(missing_ok=True)
            damage(kept)
            wanted, _ = self.combine(train, "--model", f"hf:{folder}")
            build._keep_shape(wanted.model, str(self.folder / "models"))
            self.assertEqual(kept.read_text(), (folder / "config.json").read_text())
            self.assertEqual(os.listdir(kept.parent), ["config.json"])

    def test_presets_of_llama_have_a_shape(self):
        found = shape.presets(str(ROOT))
        self.assertLessEqual({"llama_tiny", "llama3_1b", "llama3_8b", "mistral_7b", "qwen2_5_7b", "qwen3_8b"},
                             set(found))
        self.assertNotIn("mixtral_8x7b", found)
        published = {"model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048,
                     "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8,
                     "head_dim": 64, "vocab_size": 128256, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
                     "tie_word_embeddings": True, "max_position_embeddings": 131072,
                     "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                                      "original_max_position_embeddings": 8192, "rope_type": "llama3"}}
        self.assertEqual(shape.of_config(published), found["llama3_1b"])

    def test_missing_keys_have_the_defaults_of_transformers(self):
        plain = {"num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 128, "num_attention_heads": 64,
                 "vocab_size": 96}
        of_all = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "head_dim": 16}
        for family, more in (("llama", {"num_key_value_heads": 64}),
                             ("mistral", {"num_key_value_heads": 8, "sliding_window": 4096}),
                             ("qwen2", {"num_key_value_heads": 32}),
                             ("qwen3", {"num_key_value_heads": 32, "head_dim": 128})):
            config, known = plain | {"model_type": family}, of_all | more
            found = shape.of_config(config)
            self.assertIsNotNone(found)
            for name, value in known.items():
                with self.subTest(family=family, name=name):
                    self.assertEqual(shape.of_config(config | {name: value}), found)
                    self.assertNotEqual(shape.of_config(config | {name: 2 * value or True}), found)
            self.assertEqual(shape.of_config(config | {"num_key_value_heads": None}),
                             shape.of_config(config | {"num_key_value_heads": 64}))
        self.assertIsNone(shape.of_config(plain | {"model_type": "mistral", "num_attention_heads": 6}))
        self.assertNotEqual(shape.of_config(plain | {"model_type": "mistral", "sliding_window": None}),
                            shape.of_config(plain | {"model_type": "mistral"}))
        for name, value in (("use_sliding_window", True), ("layer_types", ["full_attention", "sliding_attention"])):
            self.assertIsNone(shape.of_config(plain | {"model_type": "qwen2", name: value}))
        self.assertEqual(shape.of_config(plain | {"model_type": "qwen2", "layer_types": ["full_attention"] * 2}),
                         shape.of_config(plain | {"model_type": "qwen2"}))

    @unittest.skipUnless(shutil.which("cmake"), "needs CMake")
    def test_configurations_of_equal_shape_compile_to_equal_models(self):
        missing = object()
        llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 8192}
        older = {"type" if key == "rope_type" else key: value for key, value in llama3.items()}
        choices = {
            "model_type": shape.LLAMA, "num_key_value_heads": (missing, None, 32, 8), "head_dim": (missing, None, 32, 128),
            "rms_norm_eps": (missing, None, 1e-6, 1e-5, 9.999999747378752e-06), "tie_word_embeddings": (missing, None, True),
            "rope_theta": (missing, None, 10000, 10000.0, 5e5, 0), "sliding_window": (missing, None, 8, 0),
            "use_sliding_window": (missing, False, True), "max_window_layers": (missing, 0, 1, 2),
            "layer_types": (missing, None, ["full_attention"] * 2, ["full_attention", "sliding_attention"]),
            "rope_scaling": (missing, None, {}, {"rope_type": "default", "type": "llama3"}, llama3, older,
                             llama3 | {"original_max_position_embeddings": None}),
            "rope_parameters": (missing, None, {}, {"rope_theta": 1e4}, {"rope_theta": None}, llama3 | {"rope_theta": 5e5})}
        fixed = {"num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 384, "num_attention_heads": 32,
                 "vocab_size": 256, "max_position_embeddings": 8192, "hidden_act": "silu"}
        random_numbers = random.Random(1)
        lines = ["cmake_minimum_required(VERSION 3.22)", "project(models LANGUAGES NONE)",
                 f"include({ROOT}/cmake/OctavoAddModel.cmake)"]
        known = []
        while len(known) < 200:
            drawn = {key: random_numbers.choice(values) for key, values in choices.items()}
            config = fixed | {key: value for key, value in drawn.items() if value is not missing}
            if shape.of_config(config) is None:
                continue
            (self.folder / f"{len(known)}.json").write_text(json.dumps(config))
            lines.append(f"octavo_add_model(NAME model_{len(known)} CONFIG {len(known)}.json)")
            known.append(config)
        (self.folder / "CMakeLists.txt").write_text("\n".join(lines))
        subprocess.run(["cmake", "-S", self.folder, "-B", self.folder / "build"], check=True, capture_output=True)
        headers = {}
        for i, config in enumerate(known):
            text = (self.folder / f"build/model_{i}_include/octavo_models/model_{i}.hpp").read_text()
            text = re.sub(r"static_cast<float>\((.*?)\)", lambda number: str(shape._single(number[1])),
                          text.replace(f"model_{i}", "model"))
            self.assertEqual(headers.setdefault(shape.of_config(config), text), text, config)
        self.assertGreater(len(known) - len(headers), 50)  # configurations that equal an earlier one

    @unittest.skipUnless(shutil.which("cmake"), "needs CMake")
    def test_compiled_models_have_the_defaults_of_transformers(self):
        defaults = {"llama": (64, 16, 1e-6, 1e4), "mistral": (8, 16, 1e-6, 1e4), "mixtral": (8, 16, 1e-5, 1e6),
                    "qwen2": (32, 16, 1e-6, 1e4), "qwen3": (32, 128, 1e-6, 1e4), "qwen3_moe": (4, 16, 1e-6, 1e4),
                    "gemma3_text": (4, 256, 1e-6, 1e6)}
        plain = {"num_hidden_layers": 2, "hidden_size": 1024, "intermediate_size": 128, "num_attention_heads": 64,
                 "vocab_size": 96}
        lines = ["cmake_minimum_required(VERSION 3.22)", "project(models LANGUAGES NONE)",
                 f"include({ROOT}/cmake/OctavoAddModel.cmake)"]
        for family in defaults:
            (self.folder / f"{family}.json").write_text(json.dumps(plain | {"model_type": family}))
            lines.append(f"octavo_add_model(NAME {family} CONFIG {family}.json)")
        (self.folder / "CMakeLists.txt").write_text("\n".join(lines))
        subprocess.run(["cmake", "-S", self.folder, "-B", self.folder / "build"], check=True, capture_output=True)
        for family, wanted in defaults.items():
            text = (self.folder / f"build/{family}_include/octavo_models/{family}.hpp").read_text()
            found = [re.search(rf"\.{name} = (?:static_cast<float>\()?([\de.-]+)", text)[1]
                     for name in ("kv_heads", "head_dim", "norm_epsilon", "rope_theta")]
            self.assertEqual(tuple(map(float, found)), wanted, family)

    def test_a_shape_remains_known_by_its_name(self):
        self.refused("is 'my_model_12345678'", train, "--model", "my_model_12345678")
        self.make_folder("models/my_model_12345678")
        wanted, left = self.combine(train, "--model", "my_model_12345678")
        self.assertIn("my_model_12345678:", wanted.options["OCTAVO_MODELS"])
        self.assertEqual(left, ["--model", "my_model_12345678"])

    def test_other_words_reach_the_program_unchanged(self):
        words = ["--prompt=--a=b", "--stop", "x=y", "--model=gpt2_tiny", "--", "--precision", "bf17"]
        wanted, left = self.combine(generate, *words)
        self.assertEqual(left, words)
        self.assertEqual(wanted.options["OCTAVO_PRESETS"], "gpt2_tiny")
        self.refused("--model must have a value", generate, "--model")

    def test_models_that_do_not_exist(self):
        self.refused("--model must be one of ", train, "--model", "lama_tiny")
        self.refused("but is 'lama_tiny'; did you mean 'llama_tiny'?", train, "--model", "lama_tiny")
        self.refused("there is no such folder", train, "--model", "hf:/none")
        self.refused("cannot read", train, "--model", f"shape:{self.folder}")
        self.refused("but is 'llama3'; did you mean 'llama3_", train, "--model", "llama3")
        self.refused("--device must be cpu or cuda, but is 'gpu'; did you mean 'cuda'?", train, "--device", "gpu")
        self.assertIn("llama_tiny", model.presets(str(ROOT)))

    def test_a_checkpoint_has_the_model_and_precision_of_its_run(self):
        run = self.folder / "run"
        checkpoint = run / "checkpoints" / "step-3"
        checkpoint.mkdir(parents=True)
        (run / "config.toml").write_text(f'model = "gpt2_tiny"\nprecision = "{CUSTOM}"\n')
        for path in (run, checkpoint):
            wanted, left = self.combine(generate, "--checkpoint", str(path))
            self.assertEqual(wanted.options["OCTAVO_PRESETS"], "gpt2_tiny")
            self.assertEqual(left, ["--precision", CUSTOM, "--checkpoint", str(path)])
        wanted, _ = self.combine(generate, "--checkpoint", str(run), "--precision", "bf16")
        self.assertEqual(wanted.options["OCTAVO_PRECISIONS"], "bf16")
        self.refused("there is no config.toml of its run", generate, "--checkpoint", str(self.folder))

    def test_an_export_uses_the_program_of_its_run(self):
        run = self.folder / "run"
        run.mkdir()
        (run / "config.toml").write_text(f'model = "gpt2_tiny"\nprecision = "{CUSTOM}"\n')
        for words in (["--resume", str(run)], ["--resume", "latest", "--out", str(run)]):
            wanted, left = self.combine(train, *words, "--export-hf", "exported")
            self.assertEqual(wanted.options["OCTAVO_PRESETS"], "gpt2_tiny")
            self.assertEqual(left, ["--precision", CUSTOM, "--model", "gpt2_tiny", *words, "--export-hf", "exported"])
        wanted, _ = self.combine(train, "--resume", str(run), "--export-hf", "exported", "--precision", "bf16")
        self.assertEqual(wanted.options["OCTAVO_PRECISIONS"], "bf16")
        for words in (["--resume", str(self.folder)], ["--resume", "auto"], ["--resume", "latest", "--out", "none"]):
            self.assertEqual(self.combine(train, *words)[1], words)

    def test_a_resumed_run_keeps_its_model_and_precision(self):
        run = self.folder / "run"
        checkpoint = run / "checkpoints" / "step-3"
        checkpoint.mkdir(parents=True)
        (run / "config.toml").write_text('model = "gpt2_tiny"\nprecision = "fp8-tensorwise"\n')
        for words in (["--resume", str(run)], ["--resume", str(checkpoint)], ["--resume", str(run / "checkpoints")],
                      ["--resume", "auto", "--out", str(run)]):
            wanted, left = self.combine(train, *words)
            self.assertEqual(wanted.text, "gpt2_tiny, fp8-tensorwise, cpu")
            self.assertEqual(left, ["--precision", "fp8-tensorwise", "--model", "gpt2_tiny", *words])
        wanted, _ = self.combine(train, "--resume", str(run), "--precision", "bf16", "--convert")
        self.assertEqual(wanted.text, "gpt2_tiny, bf16, cpu")


class Arguments(Temporary):
    """What is found before a build."""

    def refused_by(self, text, check, *words):
        with self.assertRaises(CommandError) as caught:
            check(Flags(list(words)), str(ROOT))
        self.assertIn(text, str(caught.exception))

    def test_every_documented_flag_is_known(self):
        for target in pages.SECTIONS:
            documented = [f"--{name}" for _, names, _, _ in pages.rows(str(ROOT), target) for name in names]
            self.assertTrue(documented)
            arguments.require_known_flags(Flags([*documented, "--help"]), str(ROOT), target)

    def test_unknown_flags_are_refused(self):
        def check(flags, root):
            arguments.require_known_flags(flags, root, "train_llama")

        self.refused_by("unknown option 'seq-length-max'", check, "--seq-length-max", "3")
        self.refused_by("did you mean 'batch'?", check, "--bacth=3")
        arguments.require_known_flags(Flags(["--", "--bacth"]), str(ROOT), "train_llama")
        self.refused_by("'-batch=3' has one dash; use --batch=3", check, "--data", "a", "-batch=3")
        for words in (["--data", "-batch"], ["--data", "a", "-"], ["--data", "a", "-x"]):
            check(Flags(words), str(ROOT))

    def test_flags_of_other_trainers_are_refused_with_those_of_the_program(self):
        for target, flag, meant in (("train_llama", "--lr=3", "learning-rate"), ("train_llama", "--Seq_Length", "seq-len"),
                                    ("train_llama", "--dataset", "data"), ("finetune_llama", "--dataset", "chats"),
                                    ("train_llama", "--dtype", "precision"), ("plan_memory", "--tp", "tensor-parallel")):
            with self.subTest(target=target, flag=flag), self.assertRaisesRegex(CommandError, f"; use '{meant}' instead"):
                arguments.require_known_flags(Flags([flag]), str(ROOT), target)
        with self.assertRaisesRegex(CommandError, "^'chats' is a flag of finetune_llama, .* octavo finetune "):
            arguments.require_known_flags(Flags(["--chats", "a"]), str(ROOT), "train_llama")
        with self.assertRaisesRegex(CommandError, "^unknown option 'lr'; see --help$"):
            arguments.require_known_flags(Flags(["--lr=3"]), str(ROOT), "prepare_data")

    def test_numbers(self):
        for words in (["--steps", "ten"], ["--seq-len", "1k"], ["--learning-rate", "-1"], ["--batch=auto"],
                      ["--seq-len", "--batch", "2"], ["--batch", "0"], ["--steps", "1.5"], ["--beta1", "1"], ["--zero", "4"]):
            with self.subTest(words), self.assertRaises(CommandError):
                arguments.require_numbers(Flags(words), str(ROOT), "train_llama")
        for words in (["--steps", "1_000"], ["--max-time", "90s"], ["--beta2", ".95"], ["--data", "text"],
                      ["--threads", "all"]):
            arguments.require_numbers(Flags(words), str(ROOT), "train_llama")
        with self.assertRaises(CommandError):
            arguments.require_numbers(Flags(["--seq-len", "long"]), str(ROOT), "evaluate")

    def test_generation(self):
        check = arguments.require_generation
        folder = f"hf:{self.make_folder('m')}"
        self.refused_by("a preset has no weights", check, "--model", "llama_tiny")
        self.refused_by("--system needs a chat template", check, "--model", folder, "--system", "a")
        self.refused_by("but is 'smollm'; did you mean 'smollm2'?", check, "--model", folder, "--chat", "smollm")
        template = self.folder / "template.json"
        template.write_text("{}")
        for words in (["--model", folder], ["--model", folder, "--chat", "gemma3"], ["--checkpoint", "run"],
                      ["--model", folder[3:]], ["--model", folder, "--chat", str(template)]):
            check(Flags(words), str(ROOT))

    def test_inputs_must_exist(self):
        def check(flags, _root):
            arguments.require_inputs(flags, "data")

        file = self.folder / "a text.txt"
        file.write_text("a")
        self.refused_by("--data is required: pass a text file or a folder", check, "--steps", "3")
        self.refused_by(f"--data b.txt: there is no such file or folder; check the path; relative paths start at {os.getcwd()}",
                        check, "--data", str(file), "--data=b.txt")
        self.refused_by("--validation-data /b:0.3: there is no such file or folder; check the path", check,
                        "--data", str(file), "--validation-data", "/b:0.3")
        empty = self.folder / "empty.txt"
        empty.touch()
        self.refused_by(f"--data {empty}: the file is empty", check, "--data", str(file), "--data", f"{empty}:0.5")
        self.refused_by("--config none.toml: there is no such", check, "--config", "none.toml")
        self.refused_by("--tokenizer none.json: there is no such", check, "--data", str(file), "--tokenizer", "none.json")
        config = self.folder / "a.toml"
        config.write_text(f'data = ["{file}", "b.txt"]\n')
        self.refused_by("--data b.txt: there is no such", check, "--config", str(config))
        for words in (["--data", str(file)], [f"--data={file}:0.3"], ["--data", f"{self.folder}"], ["--data", "*.none"],
                      ["--data", str(file), "--tokenizer", "bytes"],
                      ["--list-checkpoints"], ["--resume", "latest"],
                      ["--config", str(config), "--data", str(file)]):
            check(Flags(words), str(ROOT))
        with self.assertRaisesRegex(CommandError, "--chats is required"):
            arguments.require_inputs(Flags([]), finetune.PROGRAM.required)
        arguments.require_inputs(Flags([]), evaluate.PROGRAM.required)

    def test_a_gpu_is_found_before_the_build(self):
        environment = {"PATH": str(self.folder)}
        with self.assertRaisesRegex(CommandError, "needs an NVIDIA GPU, but nvidia-smi finds none"):
            arguments.require_gpu(environment, str(self.folder))
        (self.folder / "nvidiactl").touch()
        arguments.require_gpu(environment, str(self.folder))
        (self.folder / "nvidiactl").unlink()
        tool = self.folder / "nvidia-smi"
        tool.write_text("#!/bin/sh\necho 9.0\n")
        tool.chmod(0o755)
        arguments.require_gpu(environment, str(self.folder))

    def test_evaluation(self):
        self.refused_by("nothing to evaluate; pass --data", arguments.require_evaluation, "--model", "llama_tiny")
        arguments.require_evaluation(Flags(["--hellaswag", "a"]), str(ROOT))
        self.refused_by("--chat-template is required", arguments.require_evaluation, "--chats", "a")

    def test_chats_need_a_template(self):
        check = arguments.require_chats
        self.refused_by("--chat-template is required", check, "--chats", "a")
        self.refused_by("but is 'lama3'; did you mean 'llama3'?", check, "--chats", "a", "--chat-template", "lama3")
        for words in (["--chats", "a", "--chat-template", "llama3"], ["--resume", "latest"]):
            check(Flags(words), str(ROOT))

    def test_finetuning_needs_a_tokenizer(self):
        check, folder = arguments.require_finetuning, self.make_folder("m")
        chats = ["--chats", "a", "--chat-template", "llama3"]
        self.refused_by("neither tokenizer.json nor tokenizer.model", check, *chats, "--model", f"hf:{folder}")
        for model in ([], ["--model", "llama_tiny"], ["--model", f"shape:{folder}"]):
            self.refused_by("--tokenizer is required", check, *chats, *model)
        for words in (["--tokenizer", "bytes"], ["--resume", "latest"]):
            check(Flags([*chats, *words, "--model", f"hf:{folder}"]), str(ROOT))
        (folder / "tokenizer.model").write_text("")
        check(Flags([*chats, "--model", f"hf:{folder}"]), str(ROOT))

    def test_plans_need_only_a_shape(self):
        folder = str(self.make_folder("m"))
        for given, passed in (("llama3_8b", "llama3_8b"), (f"hf:{folder}", f"hf:{folder}"), (folder, f"hf:{folder}"),
                              (f"shape:{folder}", f"hf:{folder}"), ("a/config.json", "a/config.json")):
            flags = Flags(["--model", given])
            plan.check(flags, str(ROOT))
            self.assertEqual(flags.words, ["--model", passed])
        with unittest.mock.patch.dict(os.environ, OCTAVO_CACHE=str(self.folder)):
            self.make_folder("models/m_1a2b3c4d")
            flags = Flags(["--model", "m_1a2b3c4d"])
            plan.check(flags, str(ROOT))
            self.assertEqual(flags.words, ["--model", str(self.folder / "models/m_1a2b3c4d/config.json")])
        self.refused_by("did you mean 'llama3_8b'?", plan.check, "--model", "llama3-8b")
        self.refused_by("--model hf:none: there is no such folder", plan.check, "--model", "hf:none")
        self.refused_by("pass hf: and its folder", plan.check, "--model", "meta-llama/Llama-3.2-1B")

    def test_a_plan_of_a_configuration(self):
        def passed(text, *words):
            path = self.folder / "run.toml"
            path.write_text(text)
            return plan.with_configuration([*words, "--config", str(path)], str(ROOT))

        # The trainer's defaults, where those of plan_memory are others.
        defaults = ["--model", "llama_tiny", "--device", "cpu", "--batch", "8", "--seq-len", "128"]
        self.assertEqual(passed(""), defaults)
        self.assertEqual(passed('steps = 5\nrecompute = "none"\ngather = "stored"\ndata = ["a"]\n'), defaults)
        self.assertEqual(passed('model = "hf:m"\ndevice = "cuda"\nbatch = 1\nseq-len = 8192\ndeterministic = true\n'
                                'lora = 8\nlora-targets = "q_proj,v_proj"\nrecompute = "block"\n'),
                         ["--model", "hf:m", "--lora", "8", "--lora-targets", "q_proj,v_proj", "--recompute", "block",
                          "--deterministic"])
        self.assertEqual(passed("batch = 4\n", "--model", "llama3_8b", "--card", "H100", "--seq-len", "64"),
                         ["--batch", "4", "--model", "llama3_8b", "--card", "H100", "--seq-len", "64"])
        self.assertIn("256", passed('chats = ["a"]\n'))  # 8 sequences of at most 32 chats
        with self.assertRaisesRegex(CommandError, "run.toml: .*line 1"):
            passed("batch = \n")
        with self.assertRaisesRegex(CommandError, "none.toml: No such file"):
            plan.with_configuration(["--config", "none.toml"], str(ROOT))
        self.assertEqual(plan.with_configuration(["--batch", "2"], str(ROOT)), ["--batch", "2"])

    def test_cards(self):
        def check(flags, root):
            arguments.require_card(flags, "card", root)

        self.refused_by("but is 'RTX 4091'; did you mean 'RTX 4090'?", check, "--card", "RTX 4091")
        for card in ("A100", "nvidia geforce RTX 4090", "8.6", "sm_86:24GiB", "sm_90a"):
            check(Flags(["--card", card]), str(ROOT))
        check(Flags([]), str(ROOT))
        check(Flags(["--card"]), str(ROOT))


class Keys(Temporary):
    def key(self, *words, content="a", compiler="g++", module=train):
        basis = {"device": "cpu", "tools": {"CXX": compiler}}
        return cache.program_key(content, basis, self.combine(module, *words)[0])

    def test_a_program_is_compiled_for_the_gpu(self):
        tool = self.folder / "nvidia-smi"
        for capability, architecture in {"9.0": "90a", "8.0": "80", "12.0": "120", "": None}.items():
            tool.write_text(f"#!/bin/sh\necho {capability}\n")
            tool.chmod(0o755)
            self.assertEqual(cache.architecture({"PATH": str(self.folder)}), architecture)
        tool.unlink()
        self.assertIsNone(cache.architecture({"PATH": str(self.folder)}))

    def test_a_key_covers_everything_that_is_compiled(self):
        keys = [self.key(), self.key(content="b"), self.key(compiler="clang++"),
                self.key("--precision", "bf16"), self.key("--precision", CUSTOM),
                self.key("--model", "gpt2_tiny"), self.key("--lora", "4"),
                self.key("--tensor-parallel", "2"), self.key("--reduce", "fp32"),
                self.key("--device", "cuda"), self.key(module=generate), self.key(module=finetune)]
        self.assertEqual(len(set(keys)), len(keys))

    def test_variables_that_compilers_read_count(self):
        environment = {"PATH": os.environ["PATH"]}
        bases = [cache.basis(environment, "cpu")]
        for name in ("CXXFLAGS", "LDFLAGS", "CMAKE_PREFIX_PATH"):
            bases.append(cache.basis(environment | {name: "-O1"}, "cpu"))
        self.assertEqual(len({cache.build_key("root", one) for one in bases}), len(bases))
        self.assertEqual(cache.basis(environment | {"OTHER": "-O1"}, "cpu"), bases[0])

    def test_other_flags_share_a_program(self):
        self.assertEqual(self.key(), self.key("--steps", "3", "--lora", "0"))
        self.assertEqual(self.key("--lora", "4"), self.key("--lora", "8"))
        self.assertEqual(self.key("--precision", "Fp8Recipe<Delayed>"), self.key())

    def test_sources_count_by_their_content(self):
        for name in ("one", "two"):
            (self.folder / name / "include").mkdir(parents=True)
            (self.folder / name / "include" / "a.hpp").write_text("int a;")
        first, second = (str(self.folder / name) for name in ("one", "two"))
        self.assertEqual(cache.content_of(first), cache.content_of(second))
        (self.folder / "two/include/a.hpp").write_text("int b;")
        self.assertNotEqual(cache.content_of(first), cache.content_of(second))
        (self.folder / "two/include/a.hpp").write_text("int a;")
        (self.folder / "two/include/b.hpp").write_text("")
        self.assertNotEqual(cache.content_of(first), cache.content_of(second))

    def test_only_regular_files_are_sources(self):
        sources = self.folder / "include"
        sources.mkdir()
        (sources / "a.hpp").write_text("int a;")
        plain = cache.content_of(str(self.folder))
        (sources / ".#a.hpp").symlink_to("user@host.1234")
        os.mkfifo(sources / "pipe")
        self.assertEqual(cache.content_of(str(self.folder)), plain)
        with open(os.fsencode(sources) + b"/\xff.hpp", "w"):
            pass
        self.assertNotEqual(cache.content_of(str(self.folder)), plain)

    def test_interrupted_copies_are_removed_after_a_day(self):
        for name, age in (("a.new", 1e5), ("b.new", 0), ("key", 1e5)):
            (self.folder / name).mkdir()
            os.utime(self.folder / name, (time.time() - age,) * 2)
        (self.folder / "link").symlink_to("nowhere")
        cache.remove_old(str(self.folder))
        self.assertEqual(sorted(os.listdir(self.folder)), ["b.new", "key", "link"])

    def test_a_program_that_another_checkout_has_kept_is_used(self):
        built = self.folder / "program"
        built.write_text("a")
        built.chmod(0o755)
        kept = self.folder / "programs" / "key"
        kept.parent.mkdir()
        for _ in range(2):
            cache.keep(str(built), str(kept))
            self.assertEqual(cache.find(str(kept), "program"), str(kept / "program"))
        self.assertEqual(os.listdir(kept.parent), ["key"])

    def test_programs_that_were_not_used_are_removed(self):
        for i in range(5):
            path = self.folder / str(i)
            path.mkdir()
            os.utime(path, (i, i))
        cache.remove_old(str(self.folder), most=2)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["3", "4"])


class Reasons(unittest.TestCase):
    def test_sentences_of_static_assert(self):
        sentence = "Layerwise: First occurs twice; use it once"
        for line in (f"layerwise.hpp:130:3: error: static assertion failed: {sentence}",
                     f"layerwise.hpp:130:3: error: static assertion failed due to requirement 'a <= 1': {sentence}",
                     f'layerwise.hpp:130:3: error: static_assert failed due to requirement \'a <= 1\' "{sentence}"',
                     f'layerwise.hpp(130): error: static assertion failed with "{sentence}"'):
            self.assertEqual(build.reason_of(["note", line, "x.cpp:1:1: error: no type named 'A'"]), sentence)

    def test_other_errors(self):
        self.assertEqual(build.reason_of(["In file", "x.cpp:9:19: error: 'Bf17' was not declared", "x: error: b"]),
                         "'Bf17' was not declared")
        self.assertEqual(build.reason_of(['x.cpp(9): error: identifier "Bf17" is undefined',
                                          'a.hpp(1): error: static assertion failed with "a precision must"']),
                         'identifier "Bf17" is undefined')
        self.assertIsNone(build.reason_of(["[1/2] Building"]))
        self.assertEqual(
            build.cmake_reason(["-- The CXX compiler", "CMake Error at cmake/A.cmake:3 (message):",
                                "  CLI11 is missing: run scripts/install-dependencies,", "  install it",
                                "Call Stack (most recent call first):", "  CMakeLists.txt:1"]),
            "CLI11 is missing: run scripts/install-dependencies, install it")


class Command(Temporary):
    """With a stub of CMake, which takes half a second."""

    def setUp(self):
        super().setUp()
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "cmake").write_text("#!" + sys.executable + textwrap.dedent("""
            import os, pathlib, sys, time
            words = sys.argv[1:]
            log = open(os.environ["STUB_LOG"], "a")
            print("configure" if "--preset" in words else "build", *words, file=log, flush=True)
            if "--preset" in words:
                pathlib.Path(words[words.index("-B") + 1]).mkdir(exist_ok=True)
                if "STUB_REFUSES" in os.environ:
                    sys.exit("CMake Error: octavo_add_model: n_layer is missing")
                sys.exit(0)
            if "STUB_ERROR" in os.environ:
                print("[1/9] Building CXX object a.o", "FAILED: a.o", os.environ["STUB_ERROR"], sep="\\n", flush=True)
                time.sleep(60)
            time.sleep(0.5)
            while "STUB_WAITS_FOR" in os.environ and not os.path.exists(os.environ["STUB_WAITS_FOR"]):
                time.sleep(0.01)
            path = pathlib.Path(words[1]) / "bin" / words[words.index("--target") + 1]
            path.parent.mkdir(exist_ok=True)
            path.write_text('#!/bin/sh\\nprintf "<%s>" "$@"; exit 7\\n')
            path.chmod(0o755)
            """))
        (tools / "cmake").chmod(0o755)
        self.log = self.folder / "log"
        self.environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}", "STUB_LOG": str(self.log),
            "OCTAVO_CACHE": str(self.folder / "cache")}

    def start(self, *words, **environment):
        return subprocess.Popen([ROOT / "octavo", *words], env=self.environment | environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run_command(self, *words, **environment):
        with self.start(*words, **environment) as process:
            out, err = process.communicate(timeout=30)
        return process.returncode, out, err

    def builds(self):
        return self.log.read_text().count("\nbuild ") if self.log.exists() else 0

    def wait_for_builds(self, count):
        end = time.monotonic() + 10
        while self.builds() < count and time.monotonic() < end:
            time.sleep(0.01)

    def test_builds_once_and_runs_the_program(self):
        code, out, err = self.run_command("train", "--precision", CUSTOM, *DATA)
        self.assertEqual((code, out), (7, f"<--precision><{CUSTOM}>{SHOWN}"))
        self.assertIn(f"octavo: built train_llama (llama_tiny, {CUSTOM}, cpu) in ", err)
        self.assertIn(f"-DOCTAVO_PRECISIONS={CUSTOM} ", self.log.read_text())
        self.assertIn("--target train_llama", self.log.read_text())
        self.assertEqual(self.run_command("train", f"--precision={CUSTOM}", *DATA)[0::2], (7, ""))
        self.assertEqual(self.builds(), 1)
        self.run_command("train", "--precision", "bf16", *DATA)
        self.assertEqual(self.builds(), 2)

    def test_ranks_share_a_build(self):
        ranks = [self.start("train", *DATA, OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_RANK=str(rank))
                 for rank in range(4)]
        said = []
        for rank in ranks:
            with rank:
                out, err = rank.communicate(timeout=30)
                self.assertEqual((rank.returncode, out), (7, SHOWN))
                said += err.splitlines()
        self.assertEqual(self.builds(), 1)
        self.assertEqual(len([line for line in said if ": built " in line]), 1)
        self.run_command("train", *DATA)  # one rank
        self.assertEqual(self.builds(), 1 if shutil.which("mpicxx") else 2)

    def test_a_type_that_does_not_compile_is_answered_by_one_sentence(self):
        sentence = "Layerwise: First occurs twice; use it once"
        code, out, err = self.run_command("train", *DATA, STUB_ERROR=f"a: error: static assertion failed: {sentence}")
        self.assertEqual((code, out), (2, ""))
        self.assertEqual(err.splitlines()[1:], [f"octavo: {sentence}"])
        self.assertEqual(list((self.folder / "cache/programs").iterdir()), [])

    def test_a_cache_that_cannot_be_written(self):
        (self.folder / "cache").write_text("")
        code, _, err = self.run_command("train", *DATA)
        self.assertEqual(code, 1)
        self.assertIn("set OCTAVO_CACHE to a writable folder", err)

    def test_a_full_disk(self):
        self.run_command("train", *DATA)
        programs = self.folder / "cache/programs"
        shutil.rmtree(programs)
        log = next((self.folder / "cache/builds").glob("*.log"))
        log.unlink()
        log.symlink_to("/dev/full")
        code, _, err = self.run_command("train", *DATA, STUB_ERROR="a: error: b")
        self.assertEqual((code, len(err.splitlines())), (1, 2), err)
        self.assertIn(f"octavo: cannot build in the cache {self.folder / 'cache'}: writing: No space left", err)
        self.assertEqual(os.listdir(programs), [])

    def test_damaged_programs_are_built_again(self):
        self.run_command("train", *DATA)
        kept = next((self.folder / "cache/programs").iterdir())
        program = kept / "train_llama"

        def replace(path, make):
            cache.remove(path)
            make()

        damages = (lambda: program.write_text(""), lambda: program.chmod(0o644),
                   lambda: replace(program, program.mkdir), lambda: replace(kept, lambda: kept.write_text("")),
                   lambda: replace(kept, lambda: kept.symlink_to("nowhere")),
                   lambda: (kept / "train_llama.size").unlink())
        for count, damage in enumerate(damages, 2):
            damage()
            code, _, err = self.run_command("train", *DATA)
            self.assertEqual(code, 7, err)
            self.assertIn(f"octavo: {kept} does not contain a complete program; building it again\n", err)
            self.assertEqual(self.builds(), count)
        self.assertEqual(self.run_command("train", *DATA)[0::2], (7, ""))

    def test_a_shape_that_cmake_refuses_is_not_kept(self):
        code, _, err = self.run_command("train", "--model", f"hf:{self.make_folder('m')}", *DATA, STUB_REFUSES="1")
        self.assertEqual((code, err.splitlines()[1:]), (2, ["octavo: octavo_add_model: n_layer is missing"]))
        self.assertEqual(os.listdir(self.folder / "cache/models"), [])

    def test_an_import_of_a_pipe_is_refused(self):
        os.mkfifo(self.folder / "pipe")
        code, _, err = self.run_command("import", str(self.folder / "pipe"))
        self.assertEqual((code, len(err.splitlines())), (2, 1))
        self.assertIn("must be a regular file", err)

    def test_signals_end_the_compilers(self):
        for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
            with self.start("train", *DATA, STUB_ERROR="wait") as process:
                self.wait_for_builds(1)
                process.send_signal(number)
                self.assertEqual(process.wait(timeout=10), 128 + number)
                process.communicate()
            self.log.unlink()

    def test_a_build_folder_is_locked_while_a_compiler_runs(self):
        end = self.folder / "end of the build"
        self.addCleanup(end.touch)
        with self.start("train", *DATA, STUB_WAITS_FOR=str(end)) as process:
            self.wait_for_builds(1)
            process.kill()
            process.wait()
            with self.start("train", *DATA) as second:
                self.assertEqual(second.stderr.readline(), "octavo: waiting for another build\n")
                end.touch()
                second.communicate(timeout=30)
                self.assertEqual(second.returncode, 7)

    def test_a_compiler_that_does_not_exist(self):
        code, _, err = self.run_command("train", *DATA, CXX="no-such-compiler")
        self.assertEqual(code, 1)
        self.assertIn("building needs the compiler no-such-compiler, which is not on PATH", err)

    def test_a_gpu_that_does_not_exist(self):
        tools = self.folder / "tools"
        for name in ("nvcc", "nvidia-smi"):
            (tools / name).write_text("#!/bin/sh\nexit 9\n")
            (tools / name).chmod(0o755)
        if any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/dxg")):
            self.skipTest("this machine has a GPU")
        code, _, err = self.run_command("train", *DATA, "--device", "cuda")
        self.assertEqual((code, self.builds()), (2, 0))
        self.assertIn("--device cuda needs an NVIDIA GPU, but nvidia-smi finds none on this machine", err)

    def test_a_precision_that_the_gpu_lacks_is_refused_before_the_build(self):
        tools = self.folder / "tools"
        for name, answer in (("nvcc", "exit 9"), ("nvidia-smi", "echo 9.0")):
            (tools / name).write_text(f"#!/bin/sh\n{answer}\n")
            (tools / name).chmod(0o755)
        cuda = (*DATA, "--device", "cuda", "--precision")
        for words in (("train", *cuda, "mxfp8"), ("train", *cuda, "Layerwise<First<1, Bf16>, Nvfp4>"),
                      ("evaluate", *cuda, "nvfp4")):
            code, _, err = self.run_command(*words)
            self.assertEqual((code, self.builds()), (2, 0), err)
            self.assertRegex(err, r"^octavo: --precision: a GPU of compute capability 9\.0 does not support (mxfp8|nvfp4) GEMMs; "
                                  r"use fp32, bf16, fp8-delayed,.*\n$")
        code, _, err = self.run_command("train", *cuda, "fp8-rowwise")
        self.assertEqual((code, self.builds()), (7, 1), err)

    def test_help_and_version_need_no_build(self):
        for command in ("train", "finetune", "generate", "evaluate", "prepare", "compare", "plan", "doctor"):
            for flag in ("--help", "-h"):
                code, out, err = self.run_command(command, "--device", flag)
                self.assertEqual((code, err), (0, ""))
                self.assertIn(f"usage: octavo {command} [flags]", out)
            code, out, err = self.run_command(command, "--version")
            self.assertEqual((code, err), (0, ""))
            self.assertRegex(out, r"^octavo \d+\.\d+\.\d+\n$")
        self.assertFalse(self.log.exists() or (self.folder / "cache").exists())
        self.assertEqual(self.run_command("generate", "--model", f"hf:{self.make_folder('m')}", "--", "--help")[0], 7)

    def test_arguments_that_are_missing_are_refused_before_the_build(self):
        file = str(ROOT / "README.md")
        for words, text in ((["prepare"], "no text is given"), (["prepare", "--out", "a.bin", "--special"], "no text"),
                            (["prepare", file], "--out is required"), (["prepare", "none", "--out", "a"], "none: there is no"),
                            (["compare"], "no run is given"), (["compare", "--html", "a"], "no run is given"),
                            (["compare", "/none"], "/none: there is no such folder; check the path\n"),
                            (["train", "text.txt"], "such as --data text.txt"),
                            (["finetune", "my chats.jsonl"], "such as --chats 'my chats.jsonl'"),
                            (["evaluate", "text.txt", "--batch", "2"], "such as --data text.txt"),
                            (["plan", "llama3_8b"], "such as --model llama3_8b")):
            code, _, err = self.run_command(*words)
            self.assertEqual((code, len(err.splitlines())), (2, 1), err)
            self.assertIn(text, err)
        self.assertEqual(self.builds(), 0)
        for words, text in ((["publish"], "the following arguments are required: RUN, --to"),
                            (["publish", "a", "--to", "wand"], "invalid choice: 'wand'"),
                            (["import", "--foo", "a"], "unrecognized arguments: --foo")):
            code, _, err = self.run_command(*words)
            self.assertEqual((code, len(err.splitlines())), (2, 1), err)
            self.assertRegex(err, f"^octavo: .*{text}.*; see octavo {words[0]} --help\n$")
        for words in (["prepare", "--special", "-", "--out", "a"], ["compare", "--html", "a", str(ROOT)],
                      ["compare", "none", "--watch=1"]):
            self.assertEqual(self.run_command(*words)[0], 7, words)

    def test_help_adds_the_flags_of_octavo(self):
        out = self.run_command("train", "--help")[1]
        self.assertIn("--fp8-amax-compute-algo max|most_recent", out)
        self.assertIn("shape:FOLDER", out)
        self.assertIn("fp8-blockwise", out)

    def test_commands(self):
        code, out, _ = self.run_command("--help")
        self.assertEqual(code, 0)
        for name in dispatch.names():
            self.assertRegex(out, rf"\n  {name} +[a-z]")
        self.assertEqual(self.run_command("--version"), self.run_command("train", "--version"))
        code, _, err = self.run_command("trains")
        self.assertEqual(code, 2)
        self.assertRegex(err, "^octavo: the command must be one of .*train.*, "
                              "but is 'trains'; did you mean 'train'\\?\n$")


if __name__ == "__main__":
    unittest.main()

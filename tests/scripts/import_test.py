#!/usr/bin/env python3
"""Tests octavo import through its command line: import_test.py [TRAIN_LLAMA FINETUNE_LLAMA]

With the two trainers, configurations that were imported also train.
"""
import contextlib
import io
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import unittest

try:
    import tomllib
except ImportError:
    print("needs Python 3.11")
    sys.exit(77)
try:
    import yaml
except ImportError:
    yaml = None

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SCRIPTS = os.path.join(HERE, "import")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "examples"))

from octavo_command import dispatch  # noqa: E402
from octavo_command.commands import import_  # noqa: E402
from octavo_command.importing import effects, limits, report, rows, shapes  # noqa: E402

TRAINERS = dict(zip(("train_llama", "finetune_llama"), map(os.path.realpath, sys.argv[1:3])))


def octavo(*words, cwd=None):
    """Runs the command in this process, which takes a tenth of the time."""
    before, output, error = os.getcwd(), io.StringIO(), io.StringIO()
    os.chdir(cwd or before)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
            code = dispatch.main(["import", *words])
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(words, code, output.getvalue(), error.getvalue())


def octavo_process(*words, **more):
    return subprocess.run([os.path.join(ROOT, "octavo"), "import", *words], capture_output=True, text=True,
                          timeout=60, check=False, **more)


class Imported:
    """The output of a run: the answers by key, the warnings, and the configuration."""

    def __init__(self, *words, **more):
        result = octavo(*words, **more)
        self.code, self.error, self.output = result.returncode, result.stderr, result.stdout
        table, _, rest = result.stdout.partition("\n\n")
        self.answers = {}
        for line in table.splitlines():
            found = re.match(r"(.*?)  .*?\b(mapped|no effect|refused|unknown)  +(.*)", line)
            self.answers.setdefault(found.group(1), []).append((found.group(2), found.group(3)))
        self.warnings = re.findall(r"^warning: (.*)", result.stdout, re.M)
        configuration = rest[rest.find("\n# Imported"):] if "# Imported" in rest else ""
        self.toml = tomllib.loads(configuration)

    def kind(self, key):
        return self.answers[key][0][0]

    def text(self, key):
        return self.answers[key][0][1]


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return path

    def imported(self, name, content, *words):
        return Imported(self.file(name, content), *words)

    def refuses(self, text, *words, code=2):
        result = octavo(*words, cwd=self.folder)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn(text, result.stderr)


class WholeRuns(Case):
    """Whole scripts: every key is answered, and the configuration is the expected one."""

    def answered(self, run, keys):
        given = [key for key, answers in run.answers.items() if not all("(default)" in text for _, text in answers)]
        missing = [key for key in keys if key not in run.answers and not any(
            name.endswith("…") and key.startswith(name[:-1]) for name in run.answers)]
        self.assertEqual(missing, [])
        self.assertEqual(len(given), len(keys), set(given) ^ set(keys))
        self.assertNotIn("unknown", [answer for answers in run.answers.values() for answer, _ in answers])

    def test_megatron(self):
        run = Imported(os.path.join(SCRIPTS, "llama3_8b_fp8.sh"))
        with open(os.path.join(SCRIPTS, "llama3_8b_fp8.sh"), encoding="utf-8") as file:
            script = file.read()
        flags = set(re.findall(r"--[a-z][\w-]*", script)) - {"--fp16", "--train-data-path", "--valid-data-path"}
        self.answered(run, flags | {"CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_DEBUG", "OUTPUT"})
        self.assertEqual(run.code, 1)
        self.assertEqual([key for key in run.answers if run.kind(key) == "refused"], ["--decoupled-lr"])
        self.assertEqual(run.warnings, [])
        self.assertEqual(run.toml, {
            "model": "llama3_8b", "precision": "fp8-delayed", "device": "cuda", "zero": 1, "gather": "fp8",
            "reduce": "stored", "data": ["corpus/slimpajama_text_document.bin"], "batch": 1, "seq-len": 8192,
            "micro-batches": 16, "max-time": 14100, "validation-fraction": 0.01, "validation-batches": 32,
            "steps": 10000, "learning-rate": 1.5e-4, "schedule": "cosine", "warmup": 500, "final-fraction": 0.0666666666667,
            "weight-decay": 0.1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "max-gradient-norm": 1.0, "seed": 1234,
            "out": "runs/llama3_8b_fp8", "log-every": 1, "evaluate-every": 100, "checkpoint-every": 1000,
            "resume": "auto"})
        self.assertIn("mpirun -n 8 octavo train", run.output)

    def test_megatron_with_arguments_and_variables(self):
        run = Imported(os.path.join(SCRIPTS, "llama3_8b_fp8.sh"), "--set", "1=runs/other", "--set", "3=held_out",
                       "--set", "DTYPE=bf16", "--set", "GPUS=4")
        self.assertEqual(run.toml["out"], "runs/other")
        self.assertEqual(run.toml["validation-data"], ["held_out.bin"])
        self.assertEqual(run.toml["precision"], "bf16")
        self.assertNotIn("gather", run.toml)
        self.assertIn("mpirun -n 4 octavo train", run.output)

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_llama_factory(self):
        run = Imported("llama3_full_sft.yaml", cwd=SCRIPTS)
        with open(os.path.join(SCRIPTS, "llama3_full_sft.yaml"), encoding="utf-8") as file:
            keys = set(re.findall(r"^(\w+):", file.read(), re.M))
        with open(os.path.join(SCRIPTS, "zero1.json"), encoding="utf-8") as file:
            for key, value in json.load(file).items():
                keys |= {f"{key}.{inner}" for inner in value} if isinstance(value, dict) else {key}
        self.answered(run, keys)
        self.assertEqual(run.code, 0)
        self.assertEqual(run.toml, {
            "model": "hf:meta-llama/Meta-Llama-3-8B-Instruct", "device": "cuda", "recompute": "block", "zero": 1,
            "precision": "Fp8Recipe<DelayedScaling<16, AmaxReduction::max, Margin{0}>>", "comm-timeout": 180000000,
            "chats": ["data/ultrachat.jsonl"], "chat-template": "llama3", "batch": 4, "seq-len": 4096,
            "micro-batches": 8, "steps": 1000, "learning-rate": 2e-4, "schedule": "cosine", "warmup": 100,
            "final-fraction": 0.0, "weight-decay": 0.0, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8,
            "max-gradient-norm": 1.0, "seed": 42, "out": "saves/llama3-8b/full/sft", "log-every": 10,
            "evaluate-every": 500, "checkpoint-every": 500, "keep-last": 3})
        self.assertIn("octavo finetune", run.output)

    def test_torchtitan(self):
        path = os.path.join(SCRIPTS, "llama3_8b.toml")
        run = Imported(path, "--ranks", "8")
        with open(path, "rb") as file:
            tables = tomllib.load(file)
        keys = {f"{name}.{key}" for name, table in tables.items() if name != "quantize" for key in table}
        keys |= {f"quantize.linear.float8.{key}" for key in tables["quantize"]["linear"]["float8"]} | {"--ranks"}
        self.answered(run, keys)
        self.assertEqual([key for key in run.answers if run.kind(key) == "refused"], ["training.dataset"])
        self.assertEqual(run.toml, {
            "model": "llama3_8b", "precision": "fp8-tensorwise", "device": "cuda", "recompute": "swiglu", "zero": 3,
            "gather": "fp8", "batch": 1, "seq-len": 8192, "micro-batches": 8, "steps": 1000, "learning-rate": 3e-4,
            "schedule": "linear", "warmup": 200, "final-fraction": 0.0, "optimizer": "adamw", "weight-decay": 0.1,
            "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "max-gradient-norm": 1.0, "out": "./outputs",
            "log-every": 10, "evaluate-every": 0, "checkpoint-every": 500, "keep-last": 10, "resume": "auto"})

    def test_llm_c(self):
        run = Imported(os.path.join(SCRIPTS, "gpt2_124m.sh"))
        self.answered(run, set("-i -j -o -e -b -t -d -x -l -q -u -c -sl -sg -v -s -g -h -r -z -n -nk -nm -y -ge -pi "
                               "-np --bind-to NCCL_NET_GDR_LEVEL".split()))
        self.assertEqual((run.code, run.warnings), (0, []))
        self.assertEqual(run.toml, {
            "model": "gpt2_124m", "precision": "bf16", "device": "cuda", "recompute": "none", "zero": 1,
            "data": ["dev/data/fineweb10B/fineweb_train_*.bin"],
            "validation-data": ["dev/data/fineweb10B/fineweb_val_*.bin"], "batch": 64, "seq-len": 1024,
            "micro-batches": 1, "validation-batches": 20, "steps": 19560, "learning-rate": 6e-4, "schedule": "cosine",
            "warmup": 700, "final-fraction": 0.0, "weight-decay": 0.1, "on-spike": "skip", "spike-threshold": 6.0,
            "spike-window": 128, "out": "log_gpt2_124M", "evaluate-every": 250,
            "hellaswag": "dev/data/hellaswag/hellaswag_val.bin", "hellaswag-questions": 10042, "sample": 144,
            "checkpoint-every": 5000, "keep-last": 3, "keep-every": 10000, "resume": "auto"})
        self.assertIn("mpirun -n 8 octavo train", run.output)

    def test_llm_c_python(self):
        path = os.path.join(SCRIPTS, "gpt2_124m_pytorch.sh")
        run = Imported(path)
        with open(path, encoding="utf-8") as file:
            flags = set(re.findall(r"--[a-z_]+", file.read()))
        self.answered(run, flags)
        self.assertEqual((run.code, run.warnings, len(flags)), (0, [], 27))
        self.assertEqual({key for key in run.answers if run.kind(key) == "no effect"},
                         {"--standalone", "--inference_only", "--overfit_single_batch", "--tensorcores", "--compile",
                          "--flash", "--write_tensors"})
        self.assertEqual(run.toml, {
            "model": "gpt2_124m", "precision": "bf16", "device": "cuda", "zero": 1,
            "data": ["dev/data/fineweb10B/fineweb_train_*.bin"],
            "validation-data": ["dev/data/fineweb10B/fineweb_val_*.bin"], "batch": 32, "seq-len": 1024,
            "micro-batches": 2, "validation-batches": 40, "steps": 19560, "learning-rate": 6e-4, "schedule": "cosine",
            "warmup": 700, "final-fraction": 0.0, "weight-decay": 0.1, "max-gradient-norm": 0.5,
            "out": "pylog_gpt2_124M", "evaluate-every": 250, "sample": 0})
        self.assertIn("mpirun -n 8 octavo train", run.output)
        self.assertEqual(Imported(path, "--set", "GPUS=4").toml["micro-batches"], 4)

    @unittest.skipUnless(TRAINERS and yaml, "no trainers, or no python3-yaml")
    def test_configurations_train(self):
        """Everything but the size of the run comes from the configuration."""
        text = self.file("text.txt", "all that is gold does not glitter\n" * 400)
        held_out = self.file("held_out.txt", "not all those who wander are lost\n" * 400)
        chat = {"messages": [{"role": "user", "content": "Say red!"}, {"role": "assistant", "content": "red"}]}
        chats = self.file("chats.jsonl", (json.dumps(chat) + "\n") * 40)
        template = self.file("bytes.json", {"user": {"before": "U: ", "end": "\n"},
                                            "assistant": {"before": "A: ", "end": "\n"}})
        size = ["--device", "cpu", "--model", "llama_tiny", "--seq-len", "64", "--batch", "1", "--micro-batches", "1",
                "--steps", "2", "--warmup", "1", "--sample", "0", "--validation-batches", "1", "--comm-timeout", "9"]
        for name, more in (("gpt2_124m.sh", ["--data", text, "--validation-data", held_out, "--hellaswag", ""]),
                           ("gpt2_124m_pytorch.sh", ["--data", text, "--validation-data", held_out]),
                           ("llama3_8b_fp8.sh", ["--data", text]), ("llama3_8b.toml", ["--data", text]),
                           ("llama3_full_sft.yaml", ["--chats", chats, "--chat-template", template, "--tokenizer",
                                                     "bytes", "--precision", "fp8-delayed"])):
            with self.subTest(name):
                path, out = os.path.join(self.folder, name + ".imported"), os.path.join(self.folder, name + ".run")
                octavo(os.path.join(SCRIPTS, name), "--out", path, "--ranks", "1")
                program = TRAINERS["finetune_llama" if name.endswith("yaml") else "train_llama"]
                result = subprocess.run([program, "--config", path, "--out", out, *size, *more], capture_output=True,
                                        text=True, timeout=120, check=False)
                self.assertEqual(result.returncode, 0, result.stderr)
                with open(os.path.join(out, "config.toml"), "rb") as file:
                    used = tomllib.load(file)
                with open(path, "rb") as file:
                    wanted = tomllib.load(file)
                given = [word[2:] for word in size + more if word.startswith("--")] + ["out", "device", "resume"]
                if "--hellaswag" in more:
                    given.append("hellaswag-questions")  # no effect without a file
                for key in wanted.keys() - set(given):
                    self.assertEqual(used[key], wanted[key], key)

    @unittest.skipUnless(TRAINERS, "no trainers")
    def test_flags_exist(self):
        """Every flag that a table sets or advises is a flag of a trainer."""
        texts = "".join(subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
                        for program in TRAINERS.values())
        flags = set(report.ORDER)
        for module in import_.TRAINERS.values():
            flags |= {row.flag for row in module.ROWS.values() if isinstance(row, (rows.to, rows.choice))}
            flags |= set(getattr(module, "SAMPLE", {}))
            advice = " ".join(str(text) for row in module.ROWS.values() for text in vars(row).values())
            flags |= set(re.findall(r"(?:pass|use|see|and|:) --([a-z][a-z0-9-]*)", advice))
        known = set(re.findall(r"--([a-z][\w-]*)", texts))
        self.assertEqual(flags - known, set())

    def test_shapes_are_those_of_the_presets(self):
        with open(os.path.join(ROOT, "include/octavo/models/llama_config.hpp"), encoding="utf-8") as file:
            text = file.read()
        names = {"layers": "layers", "hidden": "hidden", "ffn": "ffn", "heads": "heads", "kv_heads": "kv_heads",
                 "head_dim": "head_dim", "vocabulary": "vocabulary", "rope_theta": "rope_theta",
                 "tied": "tied_embeddings", "qk_norm": "qk_norm", "qkv_bias": "qkv_bias"}
        count = 0
        for preset, body in re.findall(r"constexpr LlamaConfig (\w+)\{(.*?)\};", text, re.S):
            self.assertIn(preset, shapes.PRESETS)
            count += 1
            experts = re.findall(r"\.(?:experts|choices) = (\d+)|\.balance_coefficient = ([\d.]+)", body)
            self.assertEqual(shapes.EXPERTS.get(preset, ()), tuple(float(a or b) for a, b in experts), preset)
            for field, member in names.items():
                found = re.search(rf"\.{member} = ([\w.]+)", body)
                value = 500000.0 if found is None and field == "rope_theta" else 0 if found is None else \
                    {"true": 1, "false": 0}.get(found.group(1)) if found.group(1) in ("true", "false") else \
                    float(found.group(1).rstrip("f"))
                self.assertEqual(shapes.PRESETS[preset][field], value, f"{preset}.{field}")
        self.assertGreaterEqual(count, 11)


class Mistakes(Case):
    """Each configuration error that runs in the field had is named."""

    ZERO = {"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 4}
    SFT = ("model_name_or_path: m\nstage: sft\nfinetuning_type: full\ntemplate: llama3\ndataset: x\nfp8: true\n"
           "max_steps: 10\n")

    def warns(self, run, text):
        self.assertEqual(sum(text in warning for warning in run.warnings), 1, run.warnings)

    def test_no_mistake(self):
        self.assertEqual(self.imported("ds.json", self.ZERO).warnings, [])

    def test_section_fp8_of_deepspeed(self):
        run = self.imported("ds.json", {**self.ZERO, "fp8": {"enabled": True, "loss_scale": 0, "hysteresis": 2}})
        self.warns(run, 'DeepSpeed ignores the section "fp8"')
        for key in ("fp8.enabled", "fp8.loss_scale", "fp8.hysteresis"):
            self.assertEqual(run.kind(key), "no effect")

    def test_accumulation_in_fp32(self):
        run = self.imported("ds.json", {**self.ZERO, "data_types": {"grad_accum_dtype": "fp32"}})
        self.warns(run, "data_types.grad_accum_dtype = fp32 casts every gradient")
        self.assertEqual(run.toml["reduce"], "fp32")
        run = self.imported("ds.json", {**self.ZERO, "data_types": {"grad_accum_dtype": "bf16"}})
        self.assertEqual(run.warnings, [])

    def test_communication_in_fp32(self):
        run = self.imported("ds.json", {**self.ZERO, "communication_data_type": "fp32"})
        self.warns(run, "communication_data_type = fp32 sends twice the bytes")

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_back_end_auto_or_missing(self):
        auto = self.imported("sft.yaml", self.SFT + "fp8_backend: auto\n")
        self.warns(auto, "the FP8 back end is auto, so torchao runs")
        self.assertEqual(auto.toml["precision"], "fp8-rowwise")
        self.warns(self.imported("sft.yaml", self.SFT), "the FP8 back end is missing")
        self.assertEqual(self.imported("sft.yaml", self.SFT + "fp8_backend: te\n").warnings, [])
        accelerate = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: fp8\n"
        self.warns(self.imported("a.yaml", accelerate), "the FP8 back end is missing")

    def test_connections(self):
        script = "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 8\n"
        self.warns(self.imported("run.sh", script), "CUDA_DEVICE_MAX_CONNECTIONS is not set")
        self.warns(self.imported("run.sh", "export CUDA_DEVICE_MAX_CONNECTIONS=8\n" + script),
                   "CUDA_DEVICE_MAX_CONNECTIONS is 8")
        self.assertEqual(self.imported("run.sh", "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" + script).warnings, [])
        self.assertEqual(self.imported("run.sh", "CUDA_DEVICE_MAX_CONNECTIONS=1 " + script).warnings, [])

    def test_all_reduce_variable(self):
        run = self.imported("run.sh", "export NVTE_FP8_ALLREDUCE=1 CUDA_DEVICE_MAX_CONNECTIONS=1\n"
                                      "torchrun pretrain_gpt.py --bf16\n")
        self.warns(run, "nothing reads NVTE_FP8_ALLREDUCE")
        self.assertEqual(run.kind("NVTE_FP8_ALLREDUCE"), "no effect")

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_layers(self):
        self.file("ds.json", {**self.ZERO, "train_micro_batch_size_per_gpu": "auto"})
        self.file("acc.yaml", "compute_environment: LOCAL_MACHINE\nnum_processes: 8\nmixed_precision: bf16\n"
                              "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n")
        run = self.imported("run.sh", "accelerate launch --config_file acc.yaml run_clm.py --output_dir o --bf16\n")
        self.warns(run, "3 files decide this run")
        self.assertEqual(run.toml["zero"], 1)
        self.assertEqual(run.toml["precision"], "bf16")
        self.assertIn("mpirun -n 8 octavo train", run.output)
        self.assertEqual(run.kind("num_processes"), "mapped")

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_command_lines_override_files(self):
        self.file("sft.yaml", self.SFT + "fp8_backend: te\nlearning_rate: 1e-4\n")
        run = self.imported("run.sh", "CUDA_DEVICE_MAX_CONNECTIONS=1 FORCE_TORCHRUN=1 llamafactory-cli train sft.yaml "
                                      "learning_rate=2e-5 seed=3\n")
        self.assertEqual((run.toml["learning-rate"], run.toml["seed"]), (2e-5, 3))
        self.assertEqual([answer for answer, _ in run.answers["learning_rate"]], ["no effect", "mapped"])
        titan = self.file("titan.toml", "[model]\nname = \"llama3\"\nflavor = \"8B\"\n"
                                        "[training]\nsteps = 10\nseq_len = 64\n")
        run = Imported("--", "torchrun", "-m", "torchtitan.train", "--job.config_file", titan, "--training.steps", "20")
        self.assertEqual((run.toml["steps"], run.toml["seq-len"]), (20, 64))
        run = Imported("--", "torchrun", "pretrain_gpt.py", "--lr", "1", "--lr", "2")
        self.assertEqual(run.toml["learning-rate"], 2.0)

    def test_contradicting_layers(self):
        self.file("ds.json", self.ZERO)
        run = self.imported("run.sh", "torchrun --nproc_per_node 2 run_clm.py --output_dir o "
                                      "--per_device_train_batch_size 8 --deepspeed ds.json\n")
        self.assertIn("contradicts per_device_train_batch_size = 8", run.text("train_micro_batch_size_per_gpu"))
        self.assertEqual((run.code, run.toml["batch"]), (1, 8))
        run = self.imported("run.sh", "torchrun --nproc_per_node 2 run_clm.py --output_dir o "
                                      "--per_device_train_batch_size 4 --deepspeed ds.json\n")
        self.assertEqual((run.kind("train_micro_batch_size_per_gpu"), run.toml["batch"]), ("no effect", 4))


class Keys(Case):
    def megatron(self, flags, *words):
        return Imported(*words, "--", "torchrun", "--nproc_per_node", "4", "pretrain_gpt.py", *flags.split())

    def test_unknown_keys(self):
        run = self.megatron("--lr 1e-3 --not-a-flag 3")
        self.assertEqual(run.answers["--not-a-flag"], [("unknown", "unknown to this importer")])
        self.assertEqual(run.code, 1)
        self.assertIn("--not-a-flag: unknown", run.output)

    def test_decay_and_unknown_keys_of_torchtitan(self):
        titan = self.file("titan.toml", '[model]\nname = "llama3"\nflavor = "8B"\n[comm]\nsave_trace = 1\n'
                                        '[lr_scheduler]\ndecay_type = "linear"\ndecay_ratio = 0.8\n'
                                        '[mx]\nrecipe_name = "mxfp8"\n')
        run = Imported(titan, "--ranks", "1")
        self.assertEqual((run.toml["schedule"], run.toml["decay-fraction"]), ("wsd", 0.8))
        self.assertIn('schedule = "wsd"', run.text("lr_scheduler.decay_type"))
        self.assertIn("decay-fraction = 0.8", run.text("lr_scheduler.decay_ratio"))
        self.assertEqual(run.kind("comm.save_trace"), "unknown")
        self.assertIn("see --precision mxfp8", run.text("mx.recipe_name"))

    def test_exit_code_without_refusals(self):
        self.assertEqual(self.megatron("--lr 1e-3 --context-parallel-size 1").code, 0)
        self.assertEqual(self.megatron("--lr 1e-3 --context-parallel-size 2").code, 1)

    def test_recipes_of_megatron(self):
        for flags, precision in (
                ("--bf16", "bf16"), ("", "fp32"),
                ("--fp8-format hybrid --fp8-amax-history-len 1024 --fp8-amax-compute-algo max", "fp8-delayed"),
                ("--fp8-format hybrid", "Fp8Recipe<DelayedScaling<1, AmaxReduction::most_recent, Margin{0}>>"),
                ("--fp8-format hybrid --fp8-margin 2",
                 "Fp8Recipe<DelayedScaling<1, AmaxReduction::most_recent, Margin{2}>>"),
                ("--fp8-format hybrid --fp8-recipe tensorwise", "fp8-tensorwise"),
                ("--fp8-format e4m3 --fp8-recipe tensorwise", "Fp8Recipe<Tensorwise, E4M3Only>"),
                ("--fp8-format e4m3 --fp8-recipe blockwise", "fp8-blockwise"),
                ("--fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16", "fp8-tensorwise-bf16-edges"),
                ("--fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16 --num-layers-at-start-in-bf16 2",
                 "Layerwise<First<2, Bf16>, Fp8Recipe<Tensorwise>, Last<1, Bf16>>")):
            with self.subTest(flags):
                self.assertEqual(self.megatron(flags).toml["precision"], precision)
        run = self.megatron("--fp8-format e4m3 --fp8-recipe mxfp8")
        self.assertEqual((run.kind("--fp8-recipe"), run.toml.get("precision")), ("refused", None))
        self.assertEqual(self.megatron("--fp16").kind("--fp16"), "refused")

    def test_defaults_of_the_other_trainer(self):
        toml = self.megatron("--lr 1e-3 --train-iters 100").toml
        self.assertEqual((toml["weight-decay"], toml["beta2"], toml["schedule"], toml["warmup"]),
                         (0.01, 0.999, "linear", 0))

    def test_ranks_that_are_unknown(self):
        run = Imported("--", "python", "pretrain_gpt.py", "--global-batch-size", "64")
        self.assertIn("pass --ranks N", run.text("--global-batch-size"))
        run = Imported("--ranks", "8", "--", "python", "pretrain_gpt.py", "--global-batch-size", "64")
        self.assertEqual(run.toml["micro-batches"], 8)
        run = self.megatron("--global-batch-size 63")
        self.assertIn("must be a multiple of batch 1 × 4 ranks", run.text("--global-batch-size"))
        run = self.megatron("--global-batch-size 64 --tensor-model-parallel-size 2")
        self.assertEqual((run.toml["micro-batches"], run.toml["tensor-parallel"]), (32, 2))

    def test_positions_that_the_preset_does_not_have(self):
        run = Imported("--", *("torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
                               "--group-query-attention --num-query-groups 8 --ffn-hidden-size 14336").split())
        self.assertIn("llama3_8b has rotary positions, but these settings select learnt positions",
                      run.text("--num-layers"))
        run = Imported("--", *("torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
                               "--group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 "
                               "--position-embedding-type rope --rotary-base 500000 --vocab-size 100000").split())
        self.assertIn("llama3_8b has vocab_size = 128256; write a config.json", run.text("--vocab-size"))

    def test_shape_of_no_preset(self):
        run = self.megatron("--num-layers 5 --hidden-size 640 --num-attention-heads 10")
        self.assertEqual((run.kind("--num-layers"), run.toml.get("model")), ("refused", None))
        run = self.megatron("--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --num-query-groups 8 "
                            "--ffn-hidden-size 14336 --vocab-size 128256 --position-embedding-type rope "
                            "--rotary-base 10000")
        self.assertEqual((run.kind("--rotary-base"), run.toml["model"]), ("refused", "llama3_8b"))

    def test_experts(self):
        shape = ("--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --num-query-groups 8 "
                 "--ffn-hidden-size 14336 --position-embedding-type rope --rotary-base 1000000 --num-experts 8 --moe-router-topk ")
        run = self.megatron(shape + "2 --moe-grouped-gemm")
        self.assertEqual((run.toml["model"], run.code), ("mixtral_8x7b", 0))
        self.assertEqual(self.megatron(shape + "4").text("--moe-router-topk"), "mixtral_8x7b has 2")
        self.assertNotIn("model", self.megatron(shape.replace("--num-experts 8", "--num-experts 4") + "2").toml)

    def expects(self, run, flags):
        self.assertEqual({name: run.toml.get(name) for name in flags}, flags)

    def test_lengths_of_megatron(self):
        self.expects(self.megatron("--lr-warmup-fraction 0"), {"warmup": 0})
        self.assertIn("pass --steps N", self.megatron("--lr-warmup-fraction 0.1").text("--lr-warmup-fraction"))
        self.expects(self.megatron("--lr-warmup-fraction 0.07 --train-iters 999"), {"warmup": 70})

    def test_memory_of_megatron(self):
        for flags, wanted in (
                ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "block"),
                ("--recompute-granularity selective --recompute-modules layernorm moe_act mlp", "ffn"),
                ("--recompute-granularity selective --recompute-modules moe_act layernorm", "swiglu"),
                ("--recompute-granularity selective --recompute-modules core_attn", None)):
            self.expects(self.megatron(flags), {"recompute": wanted})
        formats = "--use-precision-aware-optimizer --exp-avg-dtype {} --exp-avg-sq-dtype {}"
        self.expects(self.megatron(formats.format("bf16", "bf16")), {"moments": "bf16"})
        self.expects(self.megatron(formats.format("bf16", "fp32")), {"moments": None})
        gather = "--fp8-format e4m3 --fp8-param-gather --fp8-recipe "
        self.expects(self.megatron(gather + "tensorwise"), {"gather": "fp8"})
        self.expects(self.megatron(gather + "blockwise"), {"gather": None})

    def test_data_and_layers_of_megatron(self):
        self.expects(self.megatron("--data-path a --split 90,6,4"), {"data": ["a.bin"], "validation-fraction": 0.0625})
        self.expects(self.megatron("--data-path a --split 90,10"), {"validation-fraction": 0.1})
        self.assertEqual(self.megatron("--split 100,0,0").kind("--split"), "refused")
        for positions, norm, kind in (("rope", "RMSNorm", "no effect"), ("rope", "LayerNorm", "refused"),
                                      ("learned_absolute", "LayerNorm", "no effect"),
                                      ("learned_absolute", "RMSNorm", "refused")):
            run = self.megatron(f"--position-embedding-type {positions} --normalization {norm}")
            self.assertEqual(run.kind("--normalization"), kind, (positions, norm))
        self.expects(self.megatron("--save a --load a"), {"out": "a", "resume": "auto"})
        self.assertEqual(self.megatron("--save a --load b").kind("--load"), "refused")

        self.expects(self.megatron("--train-iters 1_000"), {"steps": 1000})
        self.expects(self.megatron("--train-samples 150 --global-batch-size 64"), {"steps": 2})  # rounded down
        self.expects(Imported("--", *"torchrun --nnodes 2 --nproc_per_node 4 pretrain_gpt.py --global-batch-size 64".split()),
                     {"micro-batches": 8})

    def test_the_longest_prefix_counts(self):
        self.assertEqual(self.megatron("--moe-router-padding-for-fp8").kind("--moe-router-padding-for-fp8"), "no effect")
        self.assertEqual(self.megatron("--moe-other 3").kind("--moe-other"), "refused")

    def test_flags_of_launchers(self):
        for flags, wanted in (
                ("--num_processes 4 --fsdp_sharding_strategy SHARD_GRAD_OP", {"zero": 2}),
                ("--mixed_precision fp8 --fp8_backend TE --fp8_amax_history_len 1024 --fp8_amax_compute_algo max",
                 {"precision": "fp8-delayed"}),
                ("--zero_stage 3 --gradient_clipping 0.5", {"zero": 3, "max-gradient-norm": 0.5})):
            self.expects(Imported("--", "accelerate", "launch", *flags.split(), "run_clm.py", "--output_dir", "o"), wanted)
        self.expects(Imported("--", *"torchrun torchtitan/train.py --training.seq-len 64".split()), {"seq-len": 64})
        self.expects(Imported("--", *"llamafactory-cli train stage=sft output_dir=a=b".split()), {"out": "a=b"})

    def test_dictionaries_of_python(self):
        run = self.imported("train.py", "training_args = {'output_dir': 'o', 'max_steps': 7}\nother = {'max_steps': 8}\n")
        self.expects(run, {"steps": 7, "out": "o"})

    def test_least_learning_rates(self):
        run = self.megatron("--lr 1e-3 --min-lr 1e-3 --lr-decay-style cosine")
        self.expects(run, {"schedule": "constant", "final-fraction": None})
        self.assertEqual(self.megatron("--lr 1e-3 --min-lr 2e-3").kind("--min-lr"), "refused")

    def test_values_at_the_end_of_a_range(self):
        run = self.megatron("--adam-beta1 1 --adam-beta2 0 --weight-decay 0")
        self.expects(run, {"beta1": None, "beta2": 0, "weight-decay": 0})
        self.assertEqual(run.kind("--adam-beta1"), "refused")
        for micro_batch, global_batch in ((0, 8), (8, 0)):
            run = self.megatron(f"--micro-batch-size {micro_batch} --global-batch-size {global_batch} --train-samples 80")
            self.assertEqual(run.kind("--global-batch-size"), "refused")
        self.assertEqual(Imported("--", *"./train_gpt2cu -d 1024 -t x".split()).kind("-d"), "refused")

    def test_checkpoints_that_are_kept(self):
        titan = "torchrun torchtitan/train.py --checkpoint.enable --checkpoint.interval 5 --checkpoint.keep_latest_k "
        self.expects(Imported("--", *(titan + "1").split()), {"checkpoint-every": 5, "keep-last": 2})
        self.expects(Imported("--", *(titan + "3").split()), {"checkpoint-every": 5, "keep-last": 3})
        run = self.megatron("--save out --save-retain-interval 100")
        self.assertEqual((run.kind("--save-retain-interval"), run.toml.get("keep-every")), ("no effect", None))
        run = self.megatron("--save out --save-interval 10 --save-retain-interval 100")
        self.expects(run, {"checkpoint-every": 10, "keep-every": 100})

    def test_intervals_of_hugging_face(self):
        """Intervals below 1 are fractions of the run, and are rounded up, as in the Trainer."""
        for more, flags in (
                ({"eval_steps": 0.1, "save_steps": 0.25}, {"evaluate-every": 100, "checkpoint-every": 250}),
                ({"save_steps": 20, "save_total_limit": 1}, {"checkpoint-every": 20, "keep-last": 2}),
                ({"save_steps": 20, "save_total_limit": 5}, {"checkpoint-every": 20, "keep-last": 5}),
                ({"logging_steps": 30}, {"evaluate-every": 30, "log-every": 30}),
                ({"warmup_ratio": 0.1, "warmup_steps": 0}, {"warmup": 100}), ({"warmup_steps": 0.1}, {"warmup": 100}),
                ({"fsdp": "full_shard auto_wrap"}, {"zero": 3}), ({"fsdp": "shard_grad_op"}, {"zero": 2})):
            with self.subTest(more):
                run = self.imported("a.json", {"output_dir": "o", "max_steps": 999, "eval_strategy": "steps", **more})
                self.expects(run, flags)
        run = self.imported("a.json", {"output_dir": "o", "eval_strategy": "steps", "eval_steps": 0.1})
        self.assertEqual((run.kind("eval_steps"), run.toml.get("evaluate-every")), ("refused", None))

    def test_optimizer_and_schedule_of_deepspeed(self):
        def imported(schedule):
            return self.imported("ds.json", {
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.8, 0.95]}},
                "scheduler": {"type": schedule, "params": {"total_num_steps": 100, "warmup_num_steps": 10}},
                "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 0}})
        self.expects(imported("WarmupDecayLR"), {
            "learning-rate": 1e-3, "beta1": 0.8, "beta2": 0.95, "schedule": "linear", "final-fraction": 0.0,
            "steps": 100, "warmup": 10, "zero": 1})
        self.expects(imported("WarmupLR"), {"schedule": "constant", "final-fraction": None})

    def test_batches_of_ranks_that_share_layers(self):
        def imported(accumulation):
            return self.imported("ds.json", {
                "train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "tensor_parallel": {"autotp_size": 2},
                "gradient_accumulation_steps": accumulation}, "--ranks", "8")
        run = imported(8)
        self.assertEqual((run.kind("train_batch_size"), run.code), ("no effect", 0))
        self.assertEqual(imported(4).kind("train_batch_size"), "refused")

    def test_adapters_of_whole_models(self):
        if yaml is None:
            self.skipTest("no python3-yaml")
        run = self.imported("sft.yaml", Mistakes.SFT.replace("fp8: true", "adapter_name_or_path: a"))
        self.assertEqual((run.kind("adapter_name_or_path"), run.toml.get("load-adapters")), ("no effect", None))

    def test_blend(self):
        run = self.megatron("--data-path 0.3 a 0.7 b")
        self.assertEqual(run.toml["data"], ["a.bin:0.3", "b.bin:0.7"])

    def test_hugging_face_json_and_python(self):
        arguments = {"output_dir": "out", "per_device_train_batch_size": 4, "max_steps": 100,
                     "lr_scheduler_type": "cosine", "warmup_ratio": 0.1, "bf16": True, "optim": "adamw_bnb_8bit", "save_strategy": "no",
                     "gradient_checkpointing": True, "resume_from_checkpoint": None}
        run = self.imported("arguments.json", arguments)
        code = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        for run in (run, self.imported("train.py", f"args = TrainingArguments({code})\n")):
            self.assertEqual(run.code, 0)
            self.assertEqual((run.toml["warmup"], run.toml["moments"], run.toml["recompute"], run.toml["precision"]),
                             (10, "8bit", "block", "bf16"))
            self.assertNotIn("checkpoint-every", run.toml)
        run = self.imported("train.py", "args = TrainingArguments(output_dir='o', max_steps=count)\n")
        self.assertIn("depends on count", run.text("max_steps"))

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_switches_that_are_off(self):
        run = self.imported("sft.yaml", Mistakes.SFT.replace("fp8: true", "pure_bf16: false\nuse_galore: false"))
        self.assertEqual((run.kind("pure_bf16"), run.kind("use_galore")), ("no effect", "no effect"))
        run = self.imported("sft.yaml", Mistakes.SFT.replace("fp8: true", "pure_bf16: true\nuse_galore: true"))
        self.assertEqual((run.toml["master-weights"], run.kind("use_galore")), ("bf16", "refused"))
        self.assertEqual((run.toml["precision"], run.kind("pure_bf16")), ("bf16", "mapped"))

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_datasets(self):
        os.mkdir(os.path.join(self.folder, "data"))
        self.file("data/dataset_info.json", {
            "alpaca": {"file_name": "alpaca.json"}, "hub": {"hf_hub_url": "a/b"},
            "chats": {"file_name": "c.jsonl", "formatting": "sharegpt", "columns": {"messages": "messages"}},
            "renamed": {"file_name": "r.json", "columns": {"prompt": "question"}}})
        sft = Mistakes.SFT.replace("fp8: true\n", "mask_history: true\n")
        run = self.imported("sft.yaml", sft.replace("dataset: x", "dataset: alpaca,chats"))
        self.assertEqual([os.path.basename(name) for name in run.toml["chats"]], ["alpaca.json", "c.jsonl"])
        self.assertTrue(run.toml["last-turn-only"])
        run = self.imported("sft.yaml", sft.replace("dataset: x", "dataset: alpaca\neval_dataset: chats"))
        self.assertEqual([os.path.basename(name) for name in run.toml["chats"] + run.toml["validation-chats"]],
                         ["alpaca.json", "c.jsonl"])
        for name, text in (("hub", "has no file"), ("renamed", "have other names"), ("none", "has no file")):
            run = self.imported("sft.yaml", sft.replace("dataset: x", f"dataset: {name}"))
            self.assertIn(text, run.text("dataset"))
            self.assertNotIn("chats", run.toml)

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_epochs(self):
        arguments = {"output_dir": "out", "num_train_epochs": 3, "warmup_ratio": 0.1}
        run = self.imported("arguments.json", arguments)
        self.assertIn("pass --steps N", run.text("num_train_epochs"))
        self.assertEqual(self.imported("arguments.json", arguments, "--steps", "200").toml["warmup"], 20)
        sft = "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ntemplate: llama3\nnum_train_epochs: 2\n"
        run = self.imported("sft.yaml", sft)
        self.assertEqual((run.toml["epochs"], run.toml["lora"], run.toml["lora-alpha"]), (2, 8, 16))

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_accelerate_with_transformer_engine(self):
        run = self.imported(
            "a.yaml", "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: fp8\nnum_processes: 2\n"
                      "fp8_config:\n  backend: TE\n  fp8_format: HYBRID\n  amax_history_len: 1024\n"
                      "  amax_compute_algo: max\n  override_linear_precision: (false, false, false)\n"
                      "fsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n")
        self.assertEqual((run.toml["precision"], run.toml["zero"], run.code), ("fp8-delayed", 2, 0))
        start = "compute_environment: LOCAL_MACHINE\ndistributed_type: NO\nmixed_precision: fp8\nfp8_config:\n  backend: "
        self.expects(self.imported("a.yaml", start + "TE\n"),
                     {"precision": "Fp8Recipe<DelayedScaling<1024, AmaxReduction::most_recent, Margin{0}>>"})
        self.expects(self.imported("a.yaml", start + "AO\n"), {"precision": "fp8-tensorwise"})

    def test_defaults_of_llm_c(self):
        run = Imported("--", "./train_gpt2cu", "-y", "0")
        self.assertEqual(run.toml, {
            "precision": "bf16", "device": "cuda", "recompute": "swiglu", "validation-batches": 20, "batch": 4,
            "data": ["dev/data/tinyshakespeare/tiny_shakespeare_train.bin"], "seq-len": 1024, "schedule": "constant",
            "validation-data": ["dev/data/tinyshakespeare/tiny_shakespeare_val.bin"], "learning-rate": 3e-4, "warmup": 0,
            "weight-decay": 0.0, "evaluate-every": 20, "sample": 64, "sample-each": True})
        self.assertEqual([key for key in run.answers if run.kind(key) == "refused"], ["-e", "-x"])
        self.assertIn("pass --model hf:FOLDER", run.text("-e"))
        self.assertIn("pass --steps N", run.text("-x"))
        self.assertEqual(run.kind("-y"), "no effect")
        self.assertEqual(Imported("--steps", "9", "--", "train_gpt2cu", "-x", "-1").toml["steps"], 9)

    def test_values_of_llm_c(self):
        def run_of(flags):
            return Imported("--", "train_gpt2cu", "-x", "9", "-e", "d48", *flags.split())
        self.assertEqual(run_of("").toml["model"], "gpt2_1558m")
        self.assertEqual(run_of("-b 8 -t 512 -d 65536 -pn 4").toml["micro-batches"], 4)
        self.assertEqual(run_of("-d 1000").kind("-d"), "refused")
        self.assertEqual(run_of("-d -1").kind("-d"), "no effect")
        constant = run_of("-k constant -u 5 -q 0.5")
        self.assertEqual((constant.toml["warmup"], constant.kind("-u"), constant.kind("-q")), (0, "no effect", "no effect"))
        self.assertNotIn("final-fraction", constant.toml)
        self.assertEqual(run_of("-k wsd").kind("-k"), "refused")
        self.assertEqual(run_of("-sl 3").kind("-sl"), "refused")
        self.assertNotIn("on-spike", run_of("-sl 3").toml)
        self.assertEqual(run_of("-sl 0 -sg 0").kind("-sl"), "no effect")
        self.assertEqual(run_of("-n 7 -nm 21").toml["keep-every"], 7)
        self.assertEqual(run_of("-n 7 -nk 1").toml["keep-last"], 2)
        self.assertEqual(run_of("-nk 4").kind("-nk"), "no effect")
        self.assertEqual(run_of("-m -1").kind("-m"), "refused")
        self.assertEqual(run_of("-s 0").toml["sample"], 0)
        self.assertNotIn("sample-each", run_of("-s 5").toml)
        self.assertEqual(run_of("-w 0 -a 1").toml["master-weights"], "bf16")
        self.assertEqual(run_of("-a 1").kind("-a"), "refused")
        self.assertEqual(run_of("-e gpt3:c768").kind("-e"), "no effect")  # the last one decides
        self.assertEqual(Imported("--", "train_gpt2cu", "-e", "d36").kind("-e"), "refused")
        self.refuses("llm.c's flags must be pairs such as -b 64, but '-b' is the last word", "--", "train_gpt2cu", "-b")
        self.refuses("but 'b' is not a flag", "--", "train_gpt2cu", "b", "64")
        self.assertIn("mpirun -n 4 octavo train", Imported("--", "srun", "-n", "4", "--label", "train_gpt2cu", "-x", "9",
                                                            "-e", "d12").output)

    def test_presets_with_a_window_are_not_chosen(self):
        """The shape of Mistral 7B without a window is that of no preset."""
        flags = ("--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
                 "--group-query-attention --num-query-groups 8 --kv-channels 128 --vocab-size 32000 "
                 "--rotary-base 10000 --swiglu --untie-embeddings-and-output-weights --normalization RMSNorm")
        run = Imported("--", *f"torchrun pretrain_gpt.py {flags}".split())
        self.assertNotEqual(run.toml.get("model"), "mistral_7b")
        self.assertEqual(run.code, 1)

    def test_defaults_of_llm_c_python(self):
        run = Imported("--", "python", "train_gpt2.py")
        self.assertEqual(run.toml, {
            "model": "hf:gpt2", "precision": "fp32", "device": "cuda", "batch": 4, "seq-len": 64, "micro-batches": 1,
            "data": ["dev/data/tinyshakespeare/tiny_shakespeare_val.bin"], "steps": 10, "learning-rate": 1e-4,
            "schedule": "constant", "warmup": 0, "weight-decay": 0.0, "max-gradient-norm": 1.0,
            "evaluate-every": 0, "sample": 0})
        self.assertEqual([key for key in run.answers if run.kind(key) == "refused"], ["--overfit_single_batch"])
        self.assertEqual(run.text("--nproc_per_node"), "mpirun -n 1 (default)")

    def test_values_of_llm_c_python(self):
        def run_of(flags, launcher="python"):
            return Imported("--", *launcher.split(), "train_gpt2.py", *flags.split())
        self.assertEqual(run_of("--model=d48").toml["model"], "gpt2_1558m")
        self.assertEqual(run_of("--model gpt2-xl").toml["model"], "hf:gpt2-xl")
        self.assertIn("pass --model shape:FOLDER", run_of("--model d24").text("--model"))
        self.assertIn("must be gpt2, gpt2-medium", run_of("--model d13").text("--model"))
        self.assertEqual(run_of("--total_batch_size 512").toml["micro-batches"], 2)
        self.assertEqual(run_of("--total_batch_size 512", "torchrun --nproc_per_node 2").toml["micro-batches"], 1)
        self.assertEqual(run_of("--total_batch_size 300").kind("--total_batch_size"), "refused")
        self.assertEqual(run_of("--total_batch_size 128").kind("--total_batch_size"), "refused")
        self.assertEqual(run_of("--inference_only 1").kind("--inference_only"), "refused")
        self.assertEqual(run_of("--grad_clip 0").kind("--grad_clip"), "refused")
        self.assertNotIn("max-gradient-norm", run_of("--grad_clip 0").toml)
        self.assertNotIn("out", run_of("--output_dir=").toml)
        self.assertEqual([run_of(f"--zero_stage {stage}").toml.get("zero") for stage in range(5)], [1, 1, 2, 3, None])
        self.assertIn("shards only at --zero_stage 1", run_of("--zero_stage 2").warnings[0])
        self.assertEqual(run_of("--zero_stage 1").warnings, [])

    def test_devices_and_formats_of_llm_c_python(self):
        def run_of(flags, launcher="python"):
            run = Imported("--", *launcher.split(), "train_gpt2.py", *flags.split())
            return run.toml.get("device"), run.toml.get("precision")
        self.assertEqual(run_of("--dtype bfloat16"), ("cuda", "bf16"))
        self.assertEqual(run_of("--dtype bfloat16 --device cpu"), ("cpu", "fp32"))
        self.assertEqual(run_of("--dtype bfloat16 --device cpu", "torchrun --standalone"), ("cuda", "bf16"))
        self.assertEqual(run_of("--dtype bfloat16 --device cuda:1"), ("cuda", "bf16"))
        self.assertEqual(run_of("--dtype float16"), ("cuda", None))
        self.assertEqual(run_of("--dtype float64"), ("cuda", None))
        self.assertEqual(run_of("--device mps"), (None, "fp32"))

    def test_llm_c_llama3(self):
        def run_of(flags, launcher="python"):
            return Imported("--", *launcher.split(), "train_llama3.py", *flags.split())
        run = run_of("")
        self.assertEqual(run.toml, {
            "model": "hf:meta-llama/Meta-Llama-3.1-8B", "precision": "bf16", "master-weights": "bf16", "moments": "bf16",
            "device": "cuda", "batch": 4, "seq-len": 64, "micro-batches": 1,
            "data": ["dev/data/tinyshakespeare/tiny_shakespeare_val.bin"], "steps": 10, "learning-rate": 1e-5,
            "schedule": "constant", "warmup": 0, "weight-decay": 0.0, "max-gradient-norm": 1.0, "evaluate-every": 0,
            "sample": 0})
        self.assertEqual([key for key in run.answers if run.kind(key) == "refused"], ["--overfit_single_batch"])
        run = run_of("--use_hf 1 --ckpt_dir c --tokenizer_path t --input_bin a.bin --input_val_bin b.bin --output_dir o "
                     "--model meta-llama/Meta-Llama-3.1-8B --batch_size 2 --sequence_length 4096 --total_batch_size 65536 "
                     "--num_iterations 500 --inference_only 0 --learning_rate 2e-5 --warmup_iters 20 "
                     "--learning_rate_decay_frac 0.1 --weight_decay 0.1 --grad_clip 1.0 --val_loss_every 50 "
                     "--val_max_steps 10 --sample_every 50 --overfit_single_batch 0 --tensorcores 1 --device cuda "
                     "--compile 1 --dtype bfloat16 --zero_stage 1 --write_tensors 0", "torchrun --nproc_per_node 4")
        self.assertEqual((run.code, run.warnings), (0, []))
        self.assertEqual({key: run.toml[key] for key in ("micro-batches", "zero", "sample", "temperature", "sample-each",
                                                         "final-fraction")},
                         {"micro-batches": 2, "zero": 1, "sample": 64, "temperature": 0.6, "sample-each": True,
                          "final-fraction": 0.1})
        self.assertNotIn("top-p", run.toml)
        self.assertEqual(run_of("--dtype float32").toml["precision"], "bf16")
        for flags in ("--use_hf 0 --ckpt_dir c --tokenizer_path t", "--dtype float16", "--device cpu", "--model gpt2",
                      "--flash 1"):
            self.assertEqual(run_of(flags + " --overfit_single_batch 0").code, 1, flags)
        self.assertIn("train_llama3.py shards only at --zero_stage 1", run_of("--zero_stage 3").warnings[0])

    def test_samples_and_validation_of_llm_c_python(self):
        def run_of(flags):
            toml = Imported("--", "python", "train_gpt2.py", *flags.split()).toml
            return tuple(toml.get(key) for key in ("evaluate-every", "validation-batches", "sample", "sample-each"))
        self.assertEqual(run_of("--val_loss_every 5 --sample_every 5"), (0, None, 32, None))
        self.assertEqual(run_of("--input_val_bin a.bin --val_loss_every 5 --sample_every 5"), (5, 20, 32, True))
        self.assertEqual(run_of("--input_val_bin a.bin --val_loss_every 5 --sample_every 9"), (5, 20, 32, None))
        self.assertEqual(run_of("--input_val_bin a.bin --val_loss_every -1 --sample_every -1"), (0, 20, 0, None))

    def test_flags_without_effect(self):
        """The trainers refuse them, so that the configuration must not contain them."""
        titan = "torchrun torchtitan/train.py --"
        for command, flag, key in (
                ("./train_gpt2cu -s 20 -g 0", "sample-each", "-s"),
                (titan + "float8.force_recompute_fp8_weight_in_bwd true", "weight-copies",
                 "float8.force_recompute_fp8_weight_in_bwd"),
                (titan + "training.mixed_precision_param float32 --training.dtype bfloat16", "master-weights",
                 "training.dtype"),
                ("torchrun pretrain_gpt.py --muon-momentum 0.9", "muon-momentum", "--muon-momentum"),
                ("torchrun run_clm.py --validation_file a --validation_split_percentage 5", "validation-fraction",
                 "validation_split_percentage")):
            with self.subTest(command):
                run = Imported("--", *command.split())
                self.assertNotIn(flag, run.toml)
                self.assertEqual(run.kind(key), "no effect")
        run = Imported("--", *"torchrun pretrain_gpt.py --optimizer muon --muon-momentum 0.9".split())
        self.assertEqual(run.toml["muon-momentum"], 0.9)

    def test_final_fractions(self):
        """The trainers need a final fraction below 1."""
        for fraction, schedule, final, kinds in (
                ("0.5", "linear", 0.5, ("mapped", "mapped")), ("1", "constant", None, ("no effect", "mapped")),
                ("1.5", "linear", None, ("mapped", "refused"))):
            run = Imported("--", *f"train_gpt2cu -k linear -q {fraction}".split())
            self.assertEqual((run.toml["schedule"], run.toml.get("final-fraction")), (schedule, final))
            self.assertEqual((run.kind("-k"), run.kind("-q")), kinds)

    def test_needs_are_those_of_the_trainer(self):
        with open(os.path.join(ROOT, "examples/train_llama/needs.hpp"), encoding="utf-8") as file:
            groups = re.findall(r"\{\{(\"--[^}]*)\}", file.read())
        flags = {flag for group in groups for flag in re.findall(r"--([\w-]+)", group)}
        known = {flag for names, *_ in effects.NEEDS for flag in names.split()}
        self.assertEqual(known, flags & set(report.ORDER))

    def test_ranges_are_those_of_the_trainers(self):
        checks = {}
        for name in ("train_llama/declare.hpp", "train_llama/optimizer.hpp", "train_llama/model_choice.hpp",
                     "train_llama/data.hpp", "finetune_llama.cpp", "train_llama/chats.hpp"):
            with open(os.path.join(ROOT, "examples", name), encoding="utf-8") as file:
                for statement in file.read().split(";\n"):
                    flags = re.findall(r'"--([\w-]+)"', statement)
                    check = re.search(r"->check\((?:programs::)?(\w+)\(", statement)
                    if flags and check and check[1] in limits.RULES and flags[-1] in report.ORDER:
                        checks.setdefault(check[1], set()).add(flags[-1])
        self.assertEqual({rule: set(names.split()) for rule, names in limits.FLAGS.items()}, checks)

    def test_values_that_the_trainers_refuse(self):
        path = self.file("ds.json", json.dumps({"gradient_clipping": -5, "zero_optimization": {"stage": 7}}))
        run = Imported(path)
        self.assertEqual((run.code, run.kind("gradient_clipping"), run.kind("zero_optimization.stage")),
                         (1, "refused", "refused"))
        self.assertEqual(run.text("gradient_clipping"),
                         "max-gradient-norm must be a number of at least 0, but would be -5.0")
        self.assertTrue({"zero", "max-gradient-norm"}.isdisjoint(run.toml))

    def test_scripts_that_grow_without_bound(self):
        double = "A=xxxxxxxxxx\n" + "A=$A$A\n" * 60
        for begin in (double, "A=$((9**9**9**9))\n", "A=$((3**(9**9)))\n", double.replace("$A$A", '"$A $A"')):
            with self.subTest(begin[:20]):
                path = self.file("grows.sh", begin + "torchrun pretrain_gpt.py --num-layers $A --micro-batch-size 1\n")
                self.assertEqual(Imported(path).kind("--num-layers"), "refused")
        path = self.file("powers.sh", "A=$((2**10))\ntorchrun pretrain_gpt.py --seq-length $A --micro-batch-size 1\n")
        self.assertEqual(Imported(path).toml["seq-len"], 1024)
        self.assertIn("must have at most", octavo(self.file("long.sh", "X=1 " * 100_000)).stderr)

    def test_a_file_that_cannot_be_written_is_not_left(self):
        path = self.file("ds.json", '{"train_micro_batch_size_per_gpu": 2}')
        out = os.path.join(os.path.dirname(path), "out.toml")
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))

        done = octavo_process(path, "--out", out, preexec_fn=limit)
        self.assertEqual((done.returncode, os.path.exists(out)), (1, False), done.stderr)
        self.assertIn(f"cannot write {out}: File too large", done.stderr)

    def test_standard_output_that_cannot_be_written(self):
        path = self.file("ds.json", '{"train_micro_batch_size_per_gpu": 2}')
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([os.path.join(ROOT, "octavo"), "import", path], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr),
                         (1, "octavo: standard output: cannot be written: No space left on device\n"))

    def test_names_and_values_that_are_not_utf8(self):
        path = self.file("ds.json", '{"train_batch_size": "\\ud800", "zero_optimization": {}}')
        self.assertIn("must be valid UTF-8", octavo(path).stderr)
        folder = os.path.dirname(path)
        os.rename(path, os.fsencode(folder) + b"/b\xff.json")
        out = os.path.join(folder, "out.toml")
        with open(os.fsencode(folder) + b"/b\xff.json", "w", encoding="utf-8") as file:
            file.write('{"train_micro_batch_size_per_gpu": 2}')
        done = octavo_process(os.fsencode(folder) + b"/b\xff.json", "--out", out)
        self.assertEqual((done.returncode, os.path.exists(out)), (2, False), done.stderr)
        self.assertIn("must be valid UTF-8", done.stderr)

    def test_malformed_values_of_llm_c(self):
        """A malformed value is refused, and the trainer's default replaces it."""
        for program, name in ((["train_gpt2cu"], "llm_c"), (["python", "train_gpt2.py"], "llm_c_python"),
                              (["python", "train_llama3.py"], "llm_c_llama3")):
            for key, row in import_.TRAINERS[name].ROWS.items():
                with self.subTest(key):
                    run = Imported("--", *program, key, "x")
                    self.assertNotIn("None", run.toml.values())
                    if getattr(row, "convert", None) in (rows.whole, rows.number):
                        self.assertEqual(run.kind(key), "refused")
        self.assertEqual(Imported("--", "train_gpt2cu", "-m", "x").toml["validation-batches"], 20)

    def test_malformed_values(self):
        """They are refused, and the configuration is that without the key."""
        trainers = {"deepspeed": {"train_micro_batch_size_per_gpu": 2}, "hugging_face": {"max_steps": 9},
                    "llama_factory": {"stage": "pt"}, "accelerate": {"mixed_precision": "fp8"},
                    "torchtitan": {}, "megatron": {"--fp8-format": "hybrid"}}
        for trainer, key, values in (
                ("hugging_face", "output_dir", ([], ["a", "b"], {}, True, "", "a\0b")),
                ("hugging_face", "model_name_or_path", (["a"], False, "")), ("hugging_face", "train_file", ([1], True)),
                ("hugging_face", "bf16", ([1], "maybe", 7)), ("hugging_face", "warmup_ratio", (1e308, -0.1)),
                ("hugging_face", "fsdp", ("sharded", ["full_shard", "other"])),
                ("llama_factory", "export_dir", (["a"], False)), ("llama_factory", "lora_target", ("", [["q"]])),
                ("torchtitan", "training.mixed_precision_param", ("float16", ["bfloat16"])),
                ("torchtitan", "parallelism.tensor_parallel_degree", (0, -2, 1.5)),
                ("deepspeed", "optimizer.params.betas", ([0.9], ["x", 0.9], [0.9, None], 0.9)),
                ("accelerate", "fp8_config.amax_history_len", (0, -5, 2**40)),
                ("accelerate", "fp8_config.amax_compute_algo", ("mean", True)),
                ("accelerate", "fp8_config.margin", (-1, 17)), ("accelerate", "num_processes", (0, "8x")),
                ("megatron", "--fp8-amax-history-len", (0, 0.5)), ("megatron", "--data-path", (True, "nan a 1 b")),
                ("megatron", "--split", ("-1,1,0", "inf,1,0", "x")), ("megatron", "--train-samples", (0, True))):
            for value in values:
                with self.subTest(trainer=trainer, key=key, value=value):
                    run = self.imported("a.json", {**trainers[trainer], key: value}, "--from", trainer)
                    self.assertEqual((run.code, run.kind(key)), (1, "refused"), run.output)
                    self.assertEqual(run.toml, self.imported("a.json", trainers[trainer], "--from", trainer).toml)
        run = self.imported("a.json", {"output_dir": ["a", "b"]})
        self.assertEqual(run.text("output_dir"), "must be one value, but is 'a b'; correct it")

    def test_switches(self):
        for word, precision in (("n", "fp32"), ("f", "fp32"), ("No", "fp32"), ("t", "bf16"), ("YES", "bf16"), (1, "bf16")):
            self.expects(self.imported("a.json", {"output_dir": "o", "bf16": word}), {"precision": precision})

    def test_defaults_of_values_that_are_malformed_twice(self):
        run = Imported("--", *"train_gpt2cu -x a -x b -g a -g b".split())
        self.assertEqual((run.kind("-x"), run.toml["sample"]), ("no effect", 64))
        self.expects(Imported("--", *"python train_gpt2.py --grad_clip a --grad_clip b --batch_size --batch_size x".split()),
                     {"max-gradient-norm": 1.0, "batch": 4})

    def test_batches_of_deepspeed_without_micro_batches(self):
        """DeepSpeed does not split a rank's share of the batch any further."""
        self.expects(self.imported("ds.json", {"train_batch_size": 64}, "--ranks", "8"),
                     {"batch": 8, "micro-batches": None})
        self.expects(self.imported("ds.json", {"train_batch_size": 64, "gradient_accumulation_steps": 4}, "--ranks", "8"),
                     {"batch": 2, "micro-batches": 4})
        self.assertEqual(self.imported("ds.json", {"train_batch_size": 63}, "--ranks", "8").kind("train_batch_size"),
                         "refused")
        self.assertIn("--ranks N", self.imported("ds.json", {"train_batch_size": 64}).text("train_batch_size"))

    def test_betas_that_contradict_other_settings(self):
        self.file("ds.json", {"optimizer": {"type": "Adam", "params": {"betas": [0.8, 0.99]}}})
        for flags, wanted in (("--adam_beta1 0.7", (0.7, 0.99)), ("--adam_beta2 0.7", (0.8, 0.7))):
            run = self.imported("run.sh", f"python run_clm.py --output_dir o {flags} --deepspeed ds.json\n")
            self.assertEqual((run.toml["beta1"], run.toml["beta2"]), wanted)
            self.assertIn("contradicts", run.text("optimizer.params.betas"))

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_last_turns_of_texts(self):
        run = self.imported("a.yaml", "stage: pt\nmask_history: true\n")
        self.assertEqual((run.kind("mask_history"), run.toml.get("last-turn-only")), ("no effect", None))

    def test_scripts_in_an_argument(self):
        trainer = "pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 256 --lr 6e-4"
        for command in (f'ARGS="{trainer}"\nsrun --nodes=2 bash -c "torchrun --nproc_per_node 2 $ARGS --bf16"\n',
                        f"srun -l bash -lc '\n  export RANK=$SLURM_PROCID\n  python {trainer} --bf16\n'\n",
                        f"bash -c 'cd /work && exec python {trainer} --bf16'\n"):
            run = self.imported("run.sh", command)
            self.assertEqual((run.toml["model"], run.toml["seq-len"], run.toml["precision"]),
                             ("gpt2_124m", 256, "bf16"), run.error)
        self.assertEqual(self.imported("run.sh", f"srun -n 4 sh -c 'python {trainer}'").kind("srun -n 4"), "no effect")
        run = self.imported("run.sh", "printf %s bash -c 'echo'\ntorchrun pretrain_gpt.py --lr 1\n"
                                      "logger -t run bash -c 'torchrun pretrain_gpt.py --lr 2'\n")
        self.assertEqual((run.code, run.toml.get("learning-rate")), (0, 1.0), run.error)

    def test_the_command(self):
        result = octavo_process("--ranks", "2", "--", "torchrun", "pretrain_gpt.py", "--lr", "1e-3", "--no-such-flag")
        self.assertEqual(result.returncode, 1)
        self.assertIn("mpirun -n 2 octavo train", result.stdout)


class Scripts(Case):
    """Shell scripts are read, and never run."""

    def test_nothing_is_executed(self):
        self.imported("run.sh", f"touch {self.folder}/made\nX=$(touch {self.folder}/made)\n"
                                "torchrun pretrain_gpt.py --lr 1e-3\n")
        self.assertFalse(os.path.exists(f"{self.folder}/made"))

    def test_variables(self):
        run = self.imported("run.sh", "A=1\nB=$((A + 2 * 3))\nunset_one=\n"
                                      "ARGS=(--train-iters \"$B\" # seven\n --lr ${RATE:-1e-3})\n"
                                      "ARGS+=(--seed ${unset_one:-9})\n"
                                      "if [ $B -gt 5 ] && [ -n \"$A\" ]; then\n ARGS+=(--seq-length 64)\nelse\n ARGS+=(--seq-length 32)\nfi\n[[ $A == 2 ]] && ARGS+=(--seq-length 16)\n"
                                      "CMD=\"torchrun pretrain_gpt.py ${ARGS[*]}\"\neval $CMD | tee log\n")
        toml = run.toml
        self.assertEqual((toml["steps"], toml["learning-rate"], toml["seed"], toml["seq-len"]), (7, 1e-3, 9, 64))

    def test_values_are_those_of_bash(self):
        for script in (
                '[ ! -n "x" ] && R=1 || R=2', 'R=1; [ x = y ] || R=2', 'R=1; [ x = x ] || R=2', 'R=1; [ x != x ] && R=2',
                'R=0; [ 3 -ge 3 ] && R=${R}1; [ 3 -gt 3 ] && R=${R}2; [ 3 -le 3 ] && R=${R}3; [ 3 -lt 3 ] && R=${R}4',
                'R=0; [ 3 -eq 4 ] && R=${R}1; [ 3 -ne 4 ] && R=${R}2; [ 9 -lt 10 ] && R=${R}3',
                'if [ 1 -eq 2 ] || [ 1 -eq 1 ]; then R=or; fi', 'if [ 1 -eq 1 ] && [ 1 -eq 2 ]; then R=1; else R=2; fi',
                'A=3\nif [ $A -eq 1 ]; then\n R=1\nelif [ $A -eq 3 ]; then\n R=3\nelse\n R=0\nfi',
                'A=3; if [ $A -eq 3 ]; then if [ $A -eq 4 ]; then R=4; else R=5; fi; else R=6; fi',
                'R=${A:=7}; R=$R$A', 'A=; R="${A-5}|${A:-6}|${B-7}|${B:-${C:-8}}"', 'R=1; : <<EOF\nR=9\nEOF\nR=${R}2',
                'A=1; A=2 true; R=$A', 'B=2 true; R=${B:-none}', 'A=(a b); A+=(c "d e"); R="${A[*]}"',
                'A="x  y"; B=($A z); R="${B[*]}"', 'A="x  y"; R="$A"', 'A=a; A+=b; R=$A$A"$A"\'$A\'\\ c',
                'A=x # comment\nR=$A#y', 'A=1; B=$A; A=2; R=$B$A', 'R=a\\\nb', 'export A=4 B=5; R=$A$B', 'eval "R=3"',
                'R=$((7 / 2 * 3 - 10 % 4)),$((2 ** 10)),$(( (17 + 8 - 1) / 8 ))', 'R=$((-7 / 2)),$((-7 % 2)),$((7 / -2))',
                'A=6; B=A; R=$((A * 2 + $A - (A - 1)))'):
            with self.subTest(script):
                expected = subprocess.run(["bash", "-c", script + '\nprintf %s "$R"'], capture_output=True, text=True,
                                          timeout=60, check=True).stdout
                run = self.imported("run.sh", script + '\ntorchrun pretrain_gpt.py --save "$R"\n')
                self.assertEqual(run.toml.get("out"), expected, run.output)

    def test_other_scripts_that_a_script_reads(self):
        self.file("environment.sh", "export CUDA_DEVICE_MAX_CONNECTIONS=1\nRATE=3e-4\n")
        run = self.imported("run.sh", "source environment.sh\n. missing.sh\n"
                                      "python -u my.py --micro-batch-size 2 --lr $RATE\n")
        self.assertEqual((run.toml["learning-rate"], run.toml["batch"], run.warnings), (3e-4, 2, []))

    def test_values_that_the_script_does_not_determine(self):
        script = ("N=$(cat steps)\nif [ -f data ]; then\n R=1\nfi\n"
                  "torchrun pretrain_gpt.py --train-iters $N --seed $R --lr $LR\n")
        run = self.imported("run.sh", script)
        self.assertIn("depends on $(cat steps); pass --set NAME=VALUE", run.text("--train-iters"))
        self.assertIn("depends on the condition in line 2", run.text("--seed"))
        self.assertIn("depends on $LR; pass --set LR=VALUE", run.text("--lr"))
        run = self.imported("run.sh", script, "--set", "N=5", "--set", "R=2", "--set", "LR=0.1")
        self.assertEqual((run.toml["steps"], run.toml["seed"], run.toml["learning-rate"]), (5, 2, 0.1))

    def test_expressions_that_have_no_value(self):
        for expression in ("1 / 0", "1 % 0", "5(3)", "()", "1 +", "-" * 20_000 + "1", "1" + "+1" * 20_000, "9" * 20_000):
            with self.subTest(expression[:9]):
                run = self.imported("run.sh", f"torchrun pretrain_gpt.py --train-iters $(({expression}))\n")
                self.assertEqual(run.kind("--train-iters"), "refused")

    def test_scripts_that_bash_would_refuse(self):
        start = "torchrun pretrain_gpt.py --lr 1e-3\n"
        for line in ("echo >\n", "<\n", "if ; then A=1; fi\n", "export \"A B\"=1\n", "A=\\x B=$((A + 1))\n",
                     "A=(1 2\n)\n"):
            with self.subTest(line):
                self.assertEqual(self.imported("run.sh", line + start).toml["learning-rate"], 1e-3)
        for text in ("A=(", "\"", "if true; then\n", "$((", "${", "`", "<<X\n"):
            with self.subTest(text):
                self.assertIn(octavo(self.file("run.sh", start + text)).returncode, (0, 1, 2))

    def test_numbers_and_texts_of_odd_forms(self):
        run = Imported("--", "torchrun", "pretrain_gpt.py", "--lr", "inf", "--seed", "1.5", "--save", "a\"b\n\x7f")
        self.assertEqual([run.kind(key) for key in ("--lr", "--seed")], ["refused", "refused"])
        self.assertEqual(run.toml["out"], "a\"b\n\x7f")

    def test_a_launch_in_a_loop_or_condition(self):
        path = self.file("run.sh", "if [ -f x ]; then\n torchrun pretrain_gpt.py --lr 1\nfi\n")
        self.refuses("whether the trainer starts depends on the condition in line 1", path)
        path = self.file("run.sh", "torchrun pretrain_gpt.py --lr 1\ntorchrun pretrain_gpt.py --lr 2\n")
        self.refuses("starts it in these lines: 1, 2", path)
        self.refuses("lines: none", self.file("run.sh", "echo hello\n"))
        self.refuses("lines: none", self.file("run.sh", "make train_gpt2cu\n"))
        path = self.file("run.sh", "while test -f x; do\n ./train_gpt2cu -x 9\ndone\n")
        self.refuses("whether the trainer starts depends on a while in line 1", path)
        path = self.file("run.sh", "while :; do ./train_gpt2cu -x 9; sleep 1; done\n")
        self.assertEqual(Imported(path).toml["steps"], 9)


class Messages(Case):
    def test_wrong_input(self):
        self.refuses("cannot read missing.json: No such file", "missing.json")
        self.refuses("must be valid JSON", self.file("a.json", "{"))
        if yaml:
            self.refuses("must be valid YAML", self.file("a.yaml", "a: [1"))
            # Aliases: a value that contains itself, and 10^9 values.
            aliases = ["v0: &v0 [1]"] + [f"v{i}: &v{i} [{', '.join([f'*v{i - 1}'] * 10)}]" for i in range(1, 10)]
            for text in ("stage: &a {b: *a}", "\n".join(["stage: sft", *aliases])):
                self.refuses("values on 100 levels", self.file("a.yaml", text))
        self.refuses("values on 100 levels", self.file("a.json", '{"stage":' * 200 + "1" + "}" * 200))
        self.refuses("must be valid TOML", self.file("a.toml", "a = "))
        self.refuses("its keys are of none: a; pass --from TRAINER", self.file("b.json", {"a": 1}))
        self.refuses("must contain keys and values", self.file("b.json", "[1]"))
        self.refuses("pass either files or", "--ranks", "2")
        self.refuses("--ranks must be at least 1, but is 0", "--ranks", "0", "a.json")
        self.refuses("--set must be NAME=VALUE, but is X", "--set", "X", "a.json")
        self.refuses("must be UTF-8 text", self.file_of_bytes(b"\xff\xfe\x00"))

    def test_keys_that_occur_twice(self):
        self.refuses("contains 'seed' twice; remove one", self.file("a.json", '{"output_dir": "o", "seed": 1, "seed": 2}'))
        if yaml:
            self.refuses("contains 'b' twice", self.file("a.yaml", "stage: sft\nfsdp_config: {b: 1, b: 2}\n"))
            merged = self.file("a.yaml", "stage: pt\na: &a {seed: 1}\nb: {<<: *a, seed: 2}\n")
            self.assertEqual(Imported(merged).kind("b.seed"), "unknown")

    def test_values_that_parsers_do_not_read(self):
        large = "0x" + "f" * 5000
        deep = "TrainingArguments(output_dir=" + "[" * 90 + "1" + "]" * 90 + ", max_steps=" + "-" * 5000 + "1)\n"
        files = {"a.toml": f"[training]\nsteps = {large}\n", "b.toml": "a = " + "9" * 5000, "a.json": '{"a": %s}' % ("9" * 5000),
                 "a.py": f"TrainingArguments(max_steps={large})", "b.py": deep, "c.py": "x = " + "(" * 300}
        if yaml:
            files |= {f"{at}.yaml": f"stage: {value}\n" for at, value in enumerate((
                large, "2020-13-45", "!!int x", "!!float ''", "!!bool x", "!!timestamp x", "!!python/name:os.system",
                "{[1]: 2}", "{{}: 1}"))}
        for name, content in files.items():
            with self.subTest(name):
                self.refuses(name, self.file(name, content))
        many = self.imported("d.py", "TrainingArguments(output_dir='o', max_steps=" + "x + " * 600 + "x)\n")
        self.assertEqual(many.kind("max_steps"), "refused")

    @unittest.skipUnless(yaml, "no python3-yaml")
    def test_registries_of_datasets_of_other_forms(self):
        os.mkdir(os.path.join(self.folder, "data"))
        for entry in (3, {}, {"file_name": 3}, {"file_name": "a", "columns": [1]}, {"file_name": "a", "formatting": [1]}):
            with self.subTest(entry):
                self.file("data/dataset_info.json", {"x": entry})
                run = self.imported("sft.yaml", Mistakes.SFT)
                self.assertEqual((run.kind("dataset"), run.toml.get("chats")), ("refused", None))

    def test_encodings_without_the_table_s_letters(self):
        path = self.file("ds.json", '{"train_batch_size": 8}')
        done = octavo_process(path, "--ranks", "2", env={**os.environ, "PYTHONIOENCODING": "ascii"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("batch = 4", done.stdout)

    def file_of_bytes(self, content):
        path = os.path.join(self.folder, "bytes.sh")
        with open(path, "wb") as file:
            file.write(content)
        return path

    def test_files_are_not_overwritten(self):
        source, out = self.file("a.json", Mistakes.ZERO), self.file("out.toml", "mine")
        self.refuses("--out must name a new file, but", source, "--out", out)
        result = octavo(source, "--out", os.path.join(self.folder, "new.toml"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.refuses("cannot write", source, "--out", "no/folder.toml", code=1)

    def test_without_the_module_yaml(self):
        self.file("yaml.py", "raise ImportError")
        path = self.file("a.yaml", "template: llama3\n")
        result = octavo_process(path, env={**os.environ, "PYTHONPATH": self.folder})
        self.assertEqual(result.returncode, 2)
        self.assertIn("install it: apt-get install python3-yaml", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

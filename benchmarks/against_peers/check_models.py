"""Random models of transformers, each compiled into a program: logits, loss, gradients, and weights.

Transformers creates each model with random weights and computes in double precision, except where it
converts to FP32 itself. octavo_add_model reads the same folder, and Octavo computes in FP32. The
folder that Octavo writes must have the same settings, and tensors of the same bytes.
"""
import os
import random
import shutil
from pathlib import Path

import numpy as np
import safetensors
import torch
import transformers

import check_configs
import support

HERE = Path(__file__).resolve().parent
MODELS = 200
MODELS_PER_SOURCE = 20
LOGITS_BOUND, LOSS_BOUND, GRADIENT_BOUND = 1e-5, 2e-6, 1e-4  # relative to the norm of the tensor
LEAST_WIDTH = 8  # RMSNorm of fewer values has gradients that are differences of nearly equal numbers
IGNORED = 0.2  # share of the positions without a target


def fill(model, generator):
    """Weights for which every layer changes the logits: matrices keep the norm of their input."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name or ".ln_" in name:
                parameter.copy_(0.3 * noise + (0 if name.endswith("bias") else 1))
            elif parameter.ndim == 1:
                parameter.copy_(0.3 * noise)
            else:
                is_transposed = isinstance(model, transformers.GPT2LMHeadModel) and ".h." in name
                parameter.copy_(noise / parameter.shape[0 if is_transposed else 1] ** 0.5)


def make(family, rng, folder):
    """Writes the folder of a random model and a batch; returns the configuration."""
    config = None
    while config is None or config.hidden_size < LEAST_WIDTH:
        config, kind = family(rng, check_configs.SMALL)
    config.dtype = "float32"
    config._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    model = kind(config)
    fill(model, generator)
    model.save_pretrained(folder)
    longest = min(48, getattr(config, "n_positions", 48))
    shape = (rng.randint(1, 3), rng.randint(2, longest))
    tokens = np.array([[rng.randrange(config.vocab_size) for _ in range(shape[1] + 1)] for _ in range(shape[0])],
                      dtype=np.int32)
    targets = np.where(np.array([[rng.random() < IGNORED for _ in range(shape[1])] for _ in range(shape[0])]), -1,
                       tokens[:, 1:]).astype(np.int32)
    targets[0, -1] = tokens[0, -1]
    np.array(shape, dtype=np.int32).tofile(folder / "shape.i32")
    tokens[:, :-1].tofile(folder / "tokens.i32")
    targets.tofile(folder / "targets.i32")
    return config


def build(work, models):
    folder = work / "build"
    support.call("cmake", "-S", HERE / "random_models", "-B", folder, f"-DMODELS={models}",
                 "-DCMAKE_BUILD_TYPE=", "-DCMAKE_CXX_FLAGS=-O1", f"-DMODELS_PER_SOURCE={MODELS_PER_SOURCE}")
    support.call("cmake", "--build", folder, "--parallel", os.cpu_count())
    return folder / "random_models"


def expected(folder):
    """The logits, the loss and the gradients by name, in double precision."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double()
    shape = np.fromfile(folder / "shape.i32", dtype=np.int32)
    tokens, targets = (torch.from_numpy(np.fromfile(folder / name, dtype=np.int32).reshape(shape)).long()
                       for name in ("tokens.i32", "targets.i32"))
    logits = model(input_ids=tokens, use_cache=False).logits.double()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    loss.backward()
    return (logits.detach().numpy().ravel(), loss.item(),
            {name: parameter.grad.numpy() for name, parameter in model.named_parameters()})


def relative_error(found, wanted):
    """The norm of the difference, relative to the norm of what is expected."""
    if found.shape != wanted.shape:
        return float("inf")
    norm = np.linalg.norm(wanted)
    difference = np.linalg.norm(found - wanted)
    return float(difference / norm) if norm > 0 else float(difference)


def gradients_of(folder):
    values = np.fromfile(folder / "gradients.f32", dtype=np.float32).astype(np.float64)
    found, begin = {}, 0
    for line in (folder / "gradients.txt").read_text().splitlines():
        name, rows, columns, is_transposed = line.split()
        rows, columns = int(rows), int(columns)
        matrix = values[begin:begin + rows * columns].reshape(rows, columns)
        found[name] = matrix.T if is_transposed == "1" else matrix
        begin += rows * columns
    assert begin == values.size
    return found


def tensor_bytes(path):
    with safetensors.safe_open(path, framework="np") as file:
        return {name: (str(tensor.dtype), tensor.shape, tensor.tobytes())
                for name in file.keys() for tensor in [file.get_tensor(name)]}


class Comparison:
    def __init__(self):
        self.cases = dict.fromkeys(["logits", "losses", "gradients", "written tensors", "written configurations"], 0)
        self.largest = dict.fromkeys(self.cases, 0.0)
        self.differences = {subject: [] for subject in self.cases}

    def number(self, subject, name, value, bound):
        self.cases[subject] += 1
        self.largest[subject] = max(self.largest[subject], value)
        if not value <= bound:
            self.differences[subject].append(f"{name} differs by {value:.1e}")

    def equal(self, subject, name, is_equal):
        self.cases[subject] += 1
        if not is_equal:
            self.differences[subject].append(name)

    def add_model(self, folder, config):
        name = folder.name
        logits, loss, gradients = expected(folder)
        found = np.fromfile(folder / "logits.f32", dtype=np.float32).astype(np.float64)
        self.number("logits", name, relative_error(found, logits), LOGITS_BOUND)
        self.number("losses", name, abs(np.fromfile(folder / "loss.f32", dtype=np.float32)[0] - loss) / loss,
                    LOSS_BOUND)
        own = gradients_of(folder)
        self.equal("gradients", f"{name}: other tensors", set(own) == set(gradients))
        for tensor, gradient in gradients.items():
            if tensor in own:
                self.number("gradients", f"{name}: {tensor}",
                            relative_error(own[tensor].reshape(gradient.shape), gradient), GRADIENT_BOUND)
        given, written = (tensor_bytes(place / "model.safetensors") for place in (folder, folder / "written"))
        self.equal("written tensors", f"{name}: other tensors", set(given) == set(written))
        for tensor in given:
            self.equal("written tensors", f"{name}: {tensor}", given[tensor] == written.get(tensor))
        again = type(config).from_pretrained(folder / "written")
        differing = check_configs.differing(check_configs.settings_of(again), check_configs.settings_of(config))
        self.equal("written configurations", f"{name}: {'; '.join(differing)}", not differing)

    def report(self, report, models):
        for subject, cases in self.cases.items():
            largest = self.largest[subject]
            error = f", differing by at most {largest:.0e}" if largest > 0 else ""
            report.add(f"{subject} of {models} compiled models{error}", cases, self.differences[subject])


def check(report, programs, work):
    transformers.logging.set_verbosity_error()
    rng = random.Random(12)
    models = work / "models"
    shutil.rmtree(models, ignore_errors=True)
    configs = {}
    for family in check_configs.FAMILIES:
        for i in range(MODELS // len(check_configs.FAMILIES)):
            folder = models / f"{family.__name__}_{i:02}"
            folder.mkdir(parents=True)
            configs[folder] = make(family, rng, folder)
    program = build(work, models)
    comparison = Comparison()
    failed = []
    for line in support.call(program, *configs).decode().splitlines():
        name, result = line.split(" ", 1)
        if result != "ok":
            failed.append(line)
    report.add("models that were compiled and ran", len(configs), failed)
    names = {line.split()[0] for line in failed}
    for folder, config in configs.items():
        if folder.name not in names:
            comparison.add_model(folder, config)
    comparison.report(report, len(configs) - len(names))


if __name__ == "__main__":
    support.main(check)

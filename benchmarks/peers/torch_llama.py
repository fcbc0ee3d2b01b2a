#!/usr/bin/env python3
"""Measures training steps of the same Llama in PyTorch: torch.compile, in BF16 or with torchao's float8
linear layers. Measures the same as train_step and prints the same line.

    benchmarks/peers/torch_llama.py --model llama3_8b --precision fp8-tensorwise --micro-batches 4

Random tokens of the whole vocabulary, the same in every step; BF16 weights, gradients and moments,
no FP32 master weights; gradients clipped to 1; fused AdamW; every block and the loss compiled. Each
step is timed by the host, from its start until the GPU has finished. Attention is cuDNN's, the
fastest in PyTorch on Hopper; --attention selects another. PyTorch fails instead of using a different
one. FP8 needs torchao, of which the Python files alone suffice
(TORCHAO_FORCE_SKIP_LOADING_SO_FILES=1).
"""
import argparse
import dataclasses
import importlib.metadata
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

LEARNING_RATE = 3e-4
DEVIATION = 0.02  # of the initial weights


@dataclasses.dataclass(frozen=True)
class Config:
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    vocabulary: int = 128256
    rope_theta: float = 500000.0
    tied_embeddings: bool = False

    @property
    def qkv_sizes(self):
        return [self.heads * self.head_dim, self.kv_heads * self.head_dim,
                self.kv_heads * self.head_dim]

    def flops_per_token(self, sequence):
        """6 per weight in a GEMM, plus causal attention, half of all pairs."""
        attention = self.heads * self.head_dim
        block = self.hidden * (sum(self.qkv_sizes) + attention + 3 * self.ffn + 2)
        weights = self.layers * block + self.hidden + self.vocabulary * self.hidden
        return 6 * weights + 6 * self.layers * sequence * attention


# The presets of octavo; llama3_1b's frequencies are not rescaled here, which costs no time.
MODELS = {
    "llama3_8b": Config(32, 4096, 14336, 32, 8),
    "llama3_small": Config(12, 2048, 5504, 16, 4),
    "llama3_1b": Config(16, 2048, 8192, 32, 8, head_dim=64, tied_embeddings=True),
}


def rotate(x, cosine, sine):
    first, second = x.float().chunk(2, -1)
    rotated = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
    return rotated.to(x.dtype)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        attention = config.heads * config.head_dim
        self.attention_norm = nn.Parameter(torch.ones(config.hidden))
        self.mlp_norm = nn.Parameter(torch.ones(config.hidden))
        self.qkv = nn.Linear(config.hidden, sum(config.qkv_sizes), bias=False)
        self.output = nn.Linear(attention, config.hidden, bias=False)
        self.gate_up = nn.Linear(config.hidden, 2 * config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def attention(self, x, cosine, sine):
        batch, tokens, _ = x.shape
        parts = self.qkv(x).split(self.config.qkv_sizes, -1)
        query, key, value = (part.view(batch, tokens, -1, self.config.head_dim).transpose(1, 2)
                             for part in parts)
        attended = F.scaled_dot_product_attention(rotate(query, cosine, sine),
                                                  rotate(key, cosine, sine), value,
                                                  is_causal=True, enable_gqa=True)
        return self.output(attended.transpose(1, 2).reshape(batch, tokens, -1))

    def forward(self, x, cosine, sine):
        hidden = (self.config.hidden,)
        x = x + self.attention(F.rms_norm(x, hidden, self.attention_norm, 1e-5), cosine, sine)
        gate, up = self.gate_up(F.rms_norm(x, hidden, self.mlp_norm, 1e-5)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.Parameter(torch.ones(config.hidden))
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        if config.tied_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, tokens, cosine, sine):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cosine, sine)
        return x

    def loss(self, x, targets):
        logits = self.head(F.rms_norm(x, (self.config.hidden,), self.final_norm, 1e-5))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def initialize(model, config):
    """Octavo's initial values: smaller weights where the residual stream is written."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            writes = name.endswith(("output.weight", "down.weight"))
            nn.init.normal_(parameter, std=DEVIATION / (2 * config.layers) ** (0.5 * writes))


def make_model(config, precision):
    """A compiled model on the GPU, and its compiled loss."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Llama(config)
    torch.set_default_dtype(torch.float32)
    initialize(model, config)
    if precision != "bf16":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        recipe = Float8LinearConfig.from_recipe_name(precision.removeprefix("fp8-"))
        convert_to_float8_training(model.blocks, config=recipe)
    for block in model.blocks:
        block.compile()
    return model, torch.compile(model.loss)


def rope_table(config, tokens):
    exponents = torch.arange(0, config.head_dim, 2, device="cuda").float() / config.head_dim
    angles = torch.outer(torch.arange(tokens, device="cuda").float(),
                         config.rope_theta ** -exponents)
    return angles.cos(), angles.sin()


def choose_attention(name):
    torch.backends.cuda.enable_cudnn_sdp(name == "cudnn")
    torch.backends.cuda.enable_flash_sdp(name == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)


class Trainer:
    """Repeats the same step: step() returns the loss, on the GPU."""

    def __init__(self, options):
        config = MODELS[options.model]
        self.model, self.loss = make_model(config, options.precision)
        self.cosine, self.sine = rope_table(config, options.seq_len)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE,
                                           betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        shape = (2, options.micro_batches, options.batch, options.seq_len)
        self.tokens, self.targets = torch.randint(0, config.vocabulary, shape, device="cuda")

    def step(self):
        total = torch.zeros((), device="cuda")
        for tokens, targets in zip(self.tokens, self.targets):
            hidden = self.model(tokens, self.cosine, self.sine)
            loss = self.loss(hidden, targets) / len(self.tokens)
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total


def measure(options, make_trainer):
    """The times of the steps, the losses of all, and the seconds until the first timed step."""
    def timed(trainer):
        begin = time.perf_counter()
        loss = trainer.step()
        torch.cuda.synchronize()
        return time.perf_counter() - begin, loss

    begin = time.perf_counter()
    trainer = make_trainer(options)
    results = [timed(trainer) for _ in range(options.warmup)]
    warmup = time.perf_counter() - begin
    results += [timed(trainer) for _ in range(options.steps)]
    return ([seconds for seconds, _ in results[options.warmup:]],
            [loss.item() for _, loss in results], warmup)


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def cudnn_version():
    number = torch.backends.cudnn.version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def result_of(options, config, seconds, losses, warmup):
    tokens = options.batch * options.seq_len
    milliseconds = 1e3 * statistics.median(seconds) / options.micro_batches
    free, total = torch.cuda.mem_get_info()
    end = time.time()  # right behind the timed steps
    return {
        "who": "pytorch", "model": options.model, "precision": options.precision,
        "batch": options.batch, "sequence_length": options.seq_len,
        "micro_batches": options.micro_batches, "steps": options.steps, "recompute": "none",
        "milliseconds": milliseconds,
        "fastest_milliseconds": 1e3 * min(seconds) / options.micro_batches,
        "slowest_milliseconds": 1e3 * max(seconds) / options.micro_batches,
        "tokens_per_second": 1e3 * tokens / milliseconds,
        "tflops": tokens * config.flops_per_token(options.seq_len) / milliseconds * 1e-9,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "card_gib": (total - free) / 2**30,
        "loss": losses[-1], "losses": losses, "warmup_seconds": warmup,
        "timed_begin": end - sum(seconds), "timed_end": end,
        "attention": options.attention,
        "card": torch.cuda.get_device_name(), "cuda": torch.version.cuda,
        "cudnn": cudnn_version(), "torch": torch.__version__,
        "torchao": "not used" if options.precision == "bf16" else version_of("torchao"),
    }


def print_line(result):
    print(f"{result['who']:<8}{result['model']:<13}{result['precision']:<15}"
          f"{result['attention']:<9}B={result['batch']} S={result['sequence_length']} "
          f"micro={result['micro_batches']} | {result['milliseconds']:9.2f} ms per micro-batch | "
          f"{result['tokens_per_second']:8.0f} tok/s | {result['tflops']:6.1f} TFLOP/s | "
          f"peak {result['peak_gib']:6.2f} GiB | loss {result['loss']:7.4f}", flush=True)


def append_json(path, result):
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def parse_arguments(description, models):
    def count(text):
        if (number := int(text)) < 1:
            raise argparse.ArgumentTypeError(f"{text} is less than 1")
        return number

    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=models, default=next(iter(models)))
    parser.add_argument("--precision", choices=["bf16", "fp8-tensorwise", "fp8-rowwise"],
                        default="bf16")
    parser.add_argument("--attention", choices=["cudnn", "flash"], default="cudnn")
    parser.add_argument("--batch", type=count, default=1, help="sequences per micro-batch")
    parser.add_argument("--seq-len", type=count, default=8192, help="tokens per sequence")
    parser.add_argument("--micro-batches", type=count, default=1)
    parser.add_argument("--steps", type=count, default=6, help="number of timed steps")
    parser.add_argument("--warmup", type=count, default=3, help="number of steps before the timed ones")
    parser.add_argument("--json", help="file to which the result is appended")
    return parser.parse_args()


def main(description=__doc__, models=MODELS, make_trainer=Trainer):
    options = parse_arguments(description, models)
    torch.manual_seed(0)
    choose_attention(options.attention)
    result = result_of(options, models[options.model], *measure(options, make_trainer))
    print(f"torch {result['torch']}, CUDA {result['cuda']}, cuDNN {result['cudnn']}, "
          f"torchao {result['torchao']}, attention through {options.attention}; "
          f"{result['warmup_seconds']:.0f} s of compilation and warm-up")
    print_line(result)
    if options.json:
        append_json(options.json, result)


if __name__ == "__main__":
    main()

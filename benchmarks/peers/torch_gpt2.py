#!/usr/bin/env python3
"""Measures training steps of the same GPT-2 in PyTorch: torch.compile, in BF16 or with torchao's float8
linear layers. Measures the same as train_step and prints the same line.

    benchmarks/peers/torch_gpt2.py --model gpt2_124m --batch 16 --seq-len 1024

Otherwise like torch_llama.py, except that the whole model and its loss are compiled together, which is
faster for a model of this size. The vocabulary is padded to a multiple of 128, as in Octavo.
"""
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

import torch_llama as peer


@dataclasses.dataclass(frozen=True)
class Config:
    layers: int
    hidden: int
    heads: int
    vocabulary: int = 50257
    positions: int = 1024

    @property
    def padded_vocabulary(self):
        return -(-self.vocabulary // 128) * 128

    def flops_per_token(self, sequence):
        """6 per weight in a GEMM, plus causal attention, half of all pairs."""
        block = 12 * self.hidden * self.hidden + 13 * self.hidden
        weights = self.layers * block + 2 * self.hidden + self.vocabulary * self.hidden
        return 6 * weights + 6 * self.layers * sequence * self.hidden


MODELS = {"gpt2_124m": Config(12, 768, 12), "gpt2_1558m": Config(48, 1600, 25)}


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden = config.hidden
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def attention(self, x):
        batch, tokens, hidden = x.shape
        query, key, value = (part.view(batch, tokens, self.heads, -1).transpose(1, 2)
                             for part in self.qkv(x).split(hidden, -1))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(attended.transpose(1, 2).reshape(batch, tokens, hidden))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config.padded_vocabulary, config.hidden)
        self.positions = nn.Embedding(config.positions, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.padded_vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, targets):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.final_norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def initialize(model, config):
    """Octavo's initial values: smaller weights where the residual stream is written."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            writes = name.endswith(("output.weight", "down.weight"))
            nn.init.normal_(parameter, std=peer.DEVIATION / (2 * config.layers) ** (0.5 * writes))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


class Trainer:
    """Repeats the same step: step() returns the loss, on the GPU."""

    def __init__(self, options):
        config = MODELS[options.model]
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            model = Gpt2(config)
        torch.set_default_dtype(torch.float32)
        initialize(model, config)
        if options.precision != "bf16":
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training
            recipe = Float8LinearConfig.from_recipe_name(options.precision.removeprefix("fp8-"))
            convert_to_float8_training(model.blocks, config=recipe)
        self.parameters = list(model.parameters())
        self.model = torch.compile(model)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=peer.LEARNING_RATE,
                                           betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        shape = (2, options.micro_batches, options.batch, options.seq_len)
        self.tokens, self.targets = torch.randint(0, config.vocabulary, shape, device="cuda")

    def step(self):
        total = torch.zeros((), device="cuda")
        for tokens, targets in zip(self.tokens, self.targets):
            loss = self.model(tokens, targets) / len(self.tokens)
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total


if __name__ == "__main__":
    peer.main(__doc__, MODELS, Trainer)

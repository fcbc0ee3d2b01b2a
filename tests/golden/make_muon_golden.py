#!/usr/bin/env python3
"""Writes muon.golden beside this file.

Fifty steps of PyTorch's Muon on the CPU, twice, with different settings, for matrices whose
gradients follow from their weights by formulas: `gradients` below. Needs NumPy and PyTorch 2.9 or
newer.

README.md gives the file layout. The file has `RUN.stepN:NAME` after step N of run RUN.
"""

import pathlib

import numpy as np
import torch

from make_llama_golden import write_golden

STEPS = 50
SNAPSHOTS = (1, 10, 50)
SHAPES = {"query": (24, 16), "key": (8, 16), "value": (8, 16), "gate": (20, 12), "up": (20, 12),
          "down": (12, 20)}
RUNS = {
    "first": {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.95, "nesterov": True,
              "adjust_lr_fn": "original"},
    "second": {"lr": 0.01, "weight_decay": 0.3, "momentum": 0.8, "nesterov": False,
               "adjust_lr_fn": "match_rms_adamw", "ns_steps": 4},
}


def noise(shape, salt):
    """Numbers from -1 to 1 that FP32 holds exactly."""
    count = int(np.prod(shape))
    numbers = (np.arange(count) * 37 + salt * 101) * (salt + 3) % 64
    return torch.tensor((numbers - 32) / 32, dtype=torch.float32).reshape(shape)


def gradients(weight, number, step):
    """Of half the squared distance to a target, and noise."""
    return (weight - noise(weight.shape, number)) * 0.5 + noise(weight.shape, number + 7 * step)


def train(settings):
    weights = {name: torch.nn.Parameter(noise(shape, number + 50) * 0.25)
               for number, (name, shape) in enumerate(SHAPES.items())}
    optimizer = torch.optim.Muon(weights.values(), **settings)
    for step in range(1, STEPS + 1):
        for number, weight in enumerate(weights.values()):
            weight.grad = gradients(weight.detach(), number, step)
        optimizer.step()
        if step in SNAPSHOTS:
            for name, weight in weights.items():
                yield f"step{step}:{name}", weight.detach().numpy().copy()


def main():
    torch.set_num_threads(1)
    tensors = [(f"{run}.{name}", array) for run, settings in RUNS.items()
               for name, array in train(settings)]
    write_golden(pathlib.Path(__file__).with_name("muon.golden"), {"steps": STEPS}, tensors)


if __name__ == "__main__":
    main()

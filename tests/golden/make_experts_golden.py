#!/usr/bin/env python3
"""Writes mixtral_experts.golden and qwen3_experts.golden beside this file.

The mixture of experts of one block: input, weights, output, load-balancing loss and gradients that
PyTorch and Hugging Face transformers compute on the CPU. Weights and inputs come from the formula of
make_llama_golden.py. The block runs in double precision except for the router's softmax.

README.md gives the file layout.
"""

import math

import numpy as np
import torch
import transformers
from transformers.models.mixtral import modeling_mixtral as mixtral
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen3

from make_llama_golden import FOLDER, symmetric_uniform, write_golden

TOKENS = 40
COEFFICIENT = 0.5


def make_mixtral():
    settings = {"hidden": 16, "ffn": 24, "experts": 6, "choices": 2, "renormalised": 1}
    config = transformers.MixtralConfig(
        hidden_size=16, intermediate_size=24, num_local_experts=6, num_experts_per_tok=2,
        num_attention_heads=4, num_key_value_heads=2, hidden_act="silu")
    return settings, mixtral.MixtralSparseMoeBlock(config), mixtral.load_balancing_loss_func


def make_qwen3():
    settings = {"hidden": 16, "ffn": 8, "experts": 16, "choices": 4, "renormalised": 0}
    config = transformers.Qwen3MoeConfig(
        hidden_size=16, moe_intermediate_size=8, num_experts=16, num_experts_per_tok=4,
        norm_topk_prob=False, num_attention_heads=4, num_key_value_heads=2, hidden_act="silu")
    return settings, qwen3.Qwen3MoeSparseMoeBlock(config), qwen3.load_balancing_loss_func


def values(stream, shape, scale):
    flat = scale * symmetric_uniform(stream, math.prod(shape))
    return torch.from_numpy(flat.reshape(shape).astype(np.float32)).double()


def make_golden(path, settings, block, balance_loss):
    hidden = settings["hidden"]
    block = block.double().train()
    block.experts.config._experts_implementation = "eager"
    parameters = sorted(block.named_parameters())
    with torch.no_grad():
        for stream, (_, parameter) in enumerate(parameters, start=1):
            parameter.copy_(values(stream, tuple(parameter.shape),
                                   math.sqrt(3.0 / parameter.shape[-1])))
    x = values(20, (TOKENS, hidden), 2.0).requires_grad_()
    y_gradient = values(21, (TOKENS, hidden), 1.0)
    y = block(x[None])[0]
    logits = torch.nn.functional.linear(x, block.gate.weight)
    loss = balance_loss((logits,), settings["experts"], settings["choices"])
    ((y * y_gradient).sum() + COEFFICIENT * loss).backward()
    as_float = lambda tensor: tensor.detach().numpy().astype(np.float32)
    tensors = [("x", as_float(x)), ("y", as_float(y)), ("y_gradient", as_float(y_gradient)),
               ("x_gradient", as_float(x.grad))]
    tensors += [("weight:" + name, as_float(parameter)) for name, parameter in parameters]
    tensors += [("gradient:" + name, as_float(parameter.grad)) for name, parameter in parameters]
    write_golden(path, {**settings, "tokens": TOKENS, "coefficient": COEFFICIENT,
                        "loss": loss.item()}, tensors)
    print(f"{path.name}: loss {loss.item():.9f}, {path.stat().st_size} bytes, "
          f"torch {torch.__version__}, transformers {transformers.__version__}")


def main():
    torch.set_num_threads(1)
    make_golden(FOLDER / "mixtral_experts.golden", *make_mixtral())
    make_golden(FOLDER / "qwen3_experts.golden", *make_qwen3())


if __name__ == "__main__":
    main()

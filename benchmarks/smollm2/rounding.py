#!/usr/bin/env python3
"""Measures how rounding to BF16 in each place changes SmolLM2's logits: an FP32 model that rounds in chosen places.

    rounding.py FOLDER TOKENS LOGITS [--tokens 64]

reference.py writes FOLDER and LOGITS, in FP32. Prints the largest and the root mean square error, each
divided by the largest logit: with rounding in all places that store BF16, in one place only, and in all
except some.
"""

import argparse

import numpy
import torch
from reference import read_tokens
from transformers import AutoModelForCausalLM

PLACES = {"weights": "weights", "residual": "the residual stream", "norm": "outputs of RMSNorm",
          "qkv": "queries, keys, values", "attention": "output of attention",
          "gate_up": "gate and up", "swiglu": "output of SwiGLU",
          "products": "what is added to the residual stream", "logits": "logits"}


class Model:
    def __init__(self, folder):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.config, self.weights = model.config, model.state_dict()

    def logits(self, tokens, rounded):
        """[tokens, vocabulary], rounded to BF16 at the places named in `rounded`."""
        config = self.config
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        size = config.hidden_size // heads
        length = len(tokens)

        def at(place, values):
            return values.to(torch.bfloat16).float() if place in rounded else values

        def weight(name):
            return at("weights", self.weights[f"model.{name}.weight"])

        def norm(x, name):
            scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps)
            return at("norm", x * scale * weight(name))

        parameters = getattr(config, "rope_parameters", None)
        theta = parameters["rope_theta"] if parameters else config.rope_theta
        angles = torch.arange(length)[:, None] / theta ** (torch.arange(0, size, 2) / size)
        cosine, sine = (torch.cat([part, part], 1) for part in (angles.cos(), angles.sin()))

        def heads_of(x, count):
            return at("qkv", x).view(length, count, size).transpose(0, 1)

        def turned(x):
            half = torch.cat([-x[..., size // 2:], x[..., :size // 2]], -1)
            return at("qkv", x * cosine + half * sine).repeat_interleave(heads // len(x), 0)

        mask = torch.full((length, length), float("-inf")).triu(1)
        x = weight("embed_tokens")[tokens]
        for i in range(config.num_hidden_layers):
            block = f"layers.{i}"
            h = norm(x, f"{block}.input_layernorm")
            query = turned(heads_of(h @ weight(f"{block}.self_attn.q_proj").T, heads))
            key = turned(heads_of(h @ weight(f"{block}.self_attn.k_proj").T, kv_heads))
            value = heads_of(h @ weight(f"{block}.self_attn.v_proj").T, kv_heads)
            scores = torch.softmax(query @ key.transpose(1, 2) / size ** 0.5 + mask, -1)
            mixed = scores @ value.repeat_interleave(heads // kv_heads, 0)
            mixed = at("attention", mixed.transpose(0, 1).reshape(length, -1))
            x = at("residual", x + at("products", mixed @ weight(f"{block}.self_attn.o_proj").T))
            h = norm(x, f"{block}.post_attention_layernorm")
            gate = at("gate_up", h @ weight(f"{block}.mlp.gate_proj").T)
            up = at("gate_up", h @ weight(f"{block}.mlp.up_proj").T)
            inner = at("swiglu", torch.nn.functional.silu(gate) * up)
            x = at("residual", x + at("products", inner @ weight(f"{block}.mlp.down_proj").T))
        return at("logits", norm(x, "norm") @ weight("embed_tokens").T)


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("tokens")
    parser.add_argument("logits")
    parser.add_argument("--tokens", dest="count", type=int, default=64)
    options = parser.parse_args()
    model = Model(options.folder)
    tokens = read_tokens(options.tokens)[:options.count]
    expected = torch.from_numpy(numpy.fromfile(options.logits, dtype="<f4")).view(len(tokens), -1)

    def show(name, rounded):
        error = (model.logits(tokens, rounded) - expected).abs() / expected.abs().max()
        print(f"| {name} | {error.max():.1e} | {error.pow(2).mean().sqrt():.1e} |", flush=True)

    print("| rounded to BF16 | largest error | root mean square |\n|---|--:|--:|")
    show("nothing", set())
    for place, name in PLACES.items():
        show(f"{name} alone", {place})
    show("everything", set(PLACES))
    show("all but the residual stream and what is added", set(PLACES) - {"residual", "products"})
    show("and but outputs of RMSNorm", set(PLACES) - {"residual", "products", "norm"})


if __name__ == "__main__":
    main()

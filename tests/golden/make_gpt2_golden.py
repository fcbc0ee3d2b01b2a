#!/usr/bin/env python3
"""Writes gpt2_small.golden next to this file: like make_llama_golden.py, but for a
GPT-2.

Names are Hugging Face's, but weights that it stores as [in, out] (Conv1D) are written as
[out, in], as those of every other linear layer. The model runs in double precision throughout.
"""

import math

import numpy as np
import torch
import transformers

import make_llama_golden as llama


def make_weight(name, shape, stream):
    """Float32 values large enough that attention, norms, biases and epsilon matter to the result."""
    values = llama.symmetric_uniform(stream, math.prod(shape)).reshape(shape)
    if name.endswith(".bias"):
        values = 0.5 * values
    elif len(shape) == 1:
        values = 1.0 + 0.5 * values
    elif "wte" in name or "wpe" in name:
        values = 0.1 * values
    else:
        values = math.sqrt(3.0 / shape[1]) * values
    return values.astype(np.float32)


def is_conv1d(name, parameter):
    return ".c_" in name and parameter.dim() == 2


def as_written(name, tensor):
    array = tensor.detach().numpy().astype(np.float32)
    return np.ascontiguousarray(array.T if is_conv1d(name, tensor) else array)


def make_gpt2():
    settings = {"layers": 2, "hidden": 48, "ffn": 192, "heads": 3, "kv_heads": 3, "head_dim": 16,
                "vocabulary": 70, "positions": 64, "norm_epsilon": 1e-5, "tied_embeddings": 1}
    config = transformers.GPT2Config(
        n_layer=settings["layers"], n_embd=settings["hidden"], n_head=settings["heads"],
        vocab_size=settings["vocabulary"], n_positions=settings["positions"],
        layer_norm_epsilon=settings["norm_epsilon"], activation_function="gelu_new",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager",
        bos_token_id=None, eos_token_id=None)
    return settings, transformers.GPT2LMHeadModel(config)


def fill_weights(model):
    with torch.no_grad():
        for stream, (name, parameter) in enumerate(sorted(model.named_parameters()), start=1):
            shape = tuple(parameter.shape)[::-1 if is_conv1d(name, parameter) else 1]
            weight = make_weight(name, shape, stream)
            weight = weight.T if is_conv1d(name, parameter) else weight
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(weight)).to(parameter.dtype))


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    settings, model = make_gpt2()
    model = model.eval()
    fill_weights(model)
    model = model.double()
    tokens, targets = llama.make_batch(settings["vocabulary"])
    logits, loss = llama.compute(model, tokens, targets)
    parameters = sorted(model.named_parameters())
    tensors = [("tokens", tokens), ("targets", targets),
               ("logits", logits.detach().numpy().astype(np.float32))]
    tensors += [("weight:" + name, as_written(name, parameter)) for name, parameter in parameters]
    tensors += [("gradient:" + name, as_written(name, parameter.grad))
                for name, parameter in parameters]
    path = llama.FOLDER / "gpt2_small.golden"
    values = {**settings, "batch": llama.BATCH, "sequence_length": llama.SEQUENCE_LENGTH,
              "loss": loss}
    llama.write_golden(path, values, tensors)
    print(f"{path.name}: loss {loss:.9f}, {path.stat().st_size} bytes, torch {torch.__version__}, "
          f"transformers {transformers.__version__}")


if __name__ == "__main__":
    main()

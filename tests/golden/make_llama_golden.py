#!/usr/bin/env python3
"""Writes llama_small.golden and qwen3_small.golden next to this file.

A small model, a batch, and the logits, loss and gradients that PyTorch and Hugging Face
transformers (4.5x or 5.x) compute for them on the CPU. Weights and tokens come from a counter-based
formula, not from a library's random numbers, so every version makes the same model. The model runs
in double precision except where transformers itself goes to float (norms, RoPE, softmax).

README.md gives the file layout.
"""

import math
import pathlib

import numpy as np
import torch
import transformers

FOLDER = pathlib.Path(__file__).resolve().parent
BATCH = 2
SEQUENCE_LENGTH = 40


def random_words(stream, count):
    """SplitMix64 (Steele, Lea, Flood 2014) at counters 0..count-1 of a numbered stream."""
    with np.errstate(over="ignore"):
        golden_gamma = np.uint64(0x9E3779B97F4A7C15)
        counter = np.arange(count, dtype=np.uint64) + np.uint64(stream << 32)
        z = (counter + np.uint64(1)) * golden_gamma
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def symmetric_uniform(stream, count):
    """Float64 values in [-1, 1) with 24 random bits."""
    return (random_words(stream, count) >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1.0


def make_weight(name, shape, stream):
    """Float32 values large enough that attention, norms and epsilon all matter to the result."""
    values = symmetric_uniform(stream, math.prod(shape)).reshape(shape)
    if len(shape) == 1:
        values = 1.0 + 0.5 * values
    elif name == "model.embed_tokens.weight":
        values = 0.1 * values
    else:
        values = math.sqrt(3.0 / shape[1]) * values
    return values.astype(np.float32)


def rope_arguments(theta, scaling, maximum_length):
    """RoPE settings as the installed major version of transformers requires them."""
    if int(transformers.__version__.split(".")[0]) >= 5:
        parameters = {"rope_type": "default"} if scaling is None else dict(scaling)
        return {"rope_parameters": {**parameters, "rope_theta": theta},
                "max_position_embeddings": maximum_length}
    return {"rope_theta": theta, "rope_scaling": scaling,
            "max_position_embeddings": maximum_length}


def make_llama():
    # theta, head_dim 16 and original length 32 put one pair in the unchanged branch, two in the
    # blended one and five in the divided one.
    settings = {"layers": 2, "hidden": 64, "ffn": 128, "heads": 4, "kv_heads": 2, "head_dim": 16,
                "vocabulary": 96, "norm_epsilon": 1e-5, "rope_theta": 500.0, "llama3_rope": 1,
                "rope_factor": 8.0, "rope_low": 1.0, "rope_high": 4.0, "rope_original_length": 32,
                "tied_embeddings": 0, "qk_norm": 0}
    scaling = {"rope_type": "llama3", "factor": settings["rope_factor"],
               "low_freq_factor": settings["rope_low"], "high_freq_factor": settings["rope_high"],
               "original_max_position_embeddings": settings["rope_original_length"]}
    rope = rope_arguments(settings["rope_theta"], scaling, 256)
    config = transformers.LlamaConfig(**shape_arguments(settings), **rope)
    return settings, transformers.LlamaForCausalLM(config)


def make_qwen3():
    settings = {"layers": 1, "hidden": 32, "ffn": 48, "heads": 4, "kv_heads": 1, "head_dim": 16,
                "vocabulary": 40, "norm_epsilon": 1e-6, "rope_theta": 10000.0, "llama3_rope": 0,
                "rope_factor": 1.0, "rope_low": 1.0, "rope_high": 4.0, "rope_original_length": 0,
                "tied_embeddings": 1, "qk_norm": 1}
    rope = rope_arguments(settings["rope_theta"], None, 64)
    config = transformers.Qwen3Config(**shape_arguments(settings), **rope)
    return settings, transformers.Qwen3ForCausalLM(config)


def shape_arguments(settings):
    return {"num_hidden_layers": settings["layers"], "hidden_size": settings["hidden"],
            "intermediate_size": settings["ffn"], "num_attention_heads": settings["heads"],
            "num_key_value_heads": settings["kv_heads"], "head_dim": settings["head_dim"],
            "vocab_size": settings["vocabulary"], "rms_norm_eps": settings["norm_epsilon"],
            "tie_word_embeddings": bool(settings["tied_embeddings"]), "hidden_act": "silu",
            "attention_bias": False, "attn_implementation": "eager",
            "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


def fill_weights(model):
    with torch.no_grad():
        for stream, (name, parameter) in enumerate(sorted(model.named_parameters()), start=1):
            weight = make_weight(name, tuple(parameter.shape), stream)
            parameter.copy_(torch.from_numpy(weight).to(parameter.dtype))


def make_batch(vocabulary):
    words = random_words(0, BATCH * (SEQUENCE_LENGTH + 1)) % np.uint64(vocabulary)
    text = words.astype(np.int32).reshape(BATCH, SEQUENCE_LENGTH + 1)
    return text[:, :-1].copy(), text[:, 1:].copy()


def compute(model, tokens, targets):
    """Logits and loss, with the gradients left in the model's parameters."""
    model.zero_grad()
    logits = model(input_ids=torch.from_numpy(tokens).long(), use_cache=False).logits
    flat = logits.double().reshape(-1, logits.shape[-1])
    loss = torch.nn.functional.cross_entropy(flat, torch.from_numpy(targets).long().reshape(-1))
    loss.backward()
    return logits.detach().reshape(-1, logits.shape[-1]), loss.item()


def write_golden(path, values, tensors):
    lines = ["octavo-golden 1"]
    lines += [f"{key} {value!r}" for key, value in values.items()]
    for name, array in tensors:
        kind = {"float32": "f32", "int32": "i32"}[array.dtype.name]
        lines.append(" ".join(["tensor", name, kind, *map(str, array.shape)]))
    with open(path, "wb") as file:
        file.write(("\n".join(lines + ["end"]) + "\n").encode("ascii"))
        for _, array in tensors:
            file.write(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())


def make_golden(path, settings, model):
    model = model.eval()
    fill_weights(model)
    model = model.double()
    tokens, targets = make_batch(settings["vocabulary"])
    logits, loss = compute(model, tokens, targets)
    parameters = sorted(model.named_parameters())
    as_float = lambda tensor: tensor.detach().numpy().astype(np.float32)
    tensors = [("tokens", tokens), ("targets", targets),
               ("rope_frequencies", as_float(model.model.rotary_emb.inv_freq)),
               ("logits", as_float(logits))]
    tensors += [("weight:" + name, as_float(parameter)) for name, parameter in parameters]
    tensors += [("gradient:" + name, as_float(parameter.grad)) for name, parameter in parameters]
    values = {**settings, "batch": BATCH, "sequence_length": SEQUENCE_LENGTH, "loss": loss}
    write_golden(path, values, tensors)
    print(f"{path.name}: loss {loss:.9f}, {path.stat().st_size} bytes, torch {torch.__version__}, "
          f"transformers {transformers.__version__}")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    make_golden(FOLDER / "llama_small.golden", *make_llama())
    make_golden(FOLDER / "qwen3_small.golden", *make_qwen3())


if __name__ == "__main__":
    main()

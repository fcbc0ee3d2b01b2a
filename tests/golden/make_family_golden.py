#!/usr/bin/env python3
"""Writes families/NAME/ beside this file: small models of each family as transformers saves them.

Each folder has config.json and model.safetensors (FP32), and expected.golden: a batch, and the
logits, loss and gradients that PyTorch and transformers compute in double precision, except where
transformers itself computes in float. families/rope.json has rotary frequencies of every scaling.
Weights come from the counter-based formula of make_llama_golden.py. README.md gives the layout.
"""

import json

import numpy as np
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import make_llama_golden as llama

SHAPE = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 72,
         "max_position_embeddings": 64, "attn_implementation": "eager", "pad_token_id": None,
         "bos_token_id": 1, "eos_token_id": 2}


def models():
    yield "mistral", transformers.MistralForCausalLM(transformers.MistralConfig(
        **SHAPE, head_dim=16, sliding_window=12, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}))
    yield "qwen2", transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=9, max_window_layers=1,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1000.0,
                         "original_max_position_embeddings": 16}))


    yield "gemma3", transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        **{**SHAPE, "num_hidden_layers": 3}, head_dim=16, sliding_window=7,
        query_pre_attn_scalar=20,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 4.0,
                                            "rope_theta": 2000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}))


    yield "mixtral", transformers.MixtralForCausalLM(transformers.MixtralConfig(
        **SHAPE, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=None,
        rms_norm_eps=1e-5, output_router_logits=True, router_aux_loss_coef=0.5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}))
    yield "qwen3_moe", transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **{**SHAPE, "intermediate_size": 64}, head_dim=16, moe_intermediate_size=24, num_experts=8,
        num_experts_per_tok=3, norm_topk_prob=True, output_router_logits=True,
        router_aux_loss_coef=0.25, rope_parameters={"rope_type": "default", "rope_theta": 500.0}))


def fill_weights(model):
    with torch.no_grad():
        for stream, (name, parameter) in enumerate(sorted(model.named_parameters()), start=1):
            weight = llama.make_weight(name, tuple(parameter.shape), stream)
            if name.endswith("bias") or ("norm" in name and "Gemma3" in type(model).__name__):
                weight = weight - 1
            parameter.copy_(torch.from_numpy(weight))


def compute(model, tokens, targets):
    """Logits and loss; gradients include a load-balancing loss, which the loss does not."""
    model.config._experts_implementation = "eager"
    model.zero_grad()
    output = model(input_ids=torch.from_numpy(tokens).long(), use_cache=False)
    logits = output.logits.double().reshape(-1, output.logits.shape[-1])
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets).long().reshape(-1))
    balance = getattr(output, "aux_loss", None)
    total = loss if balance is None else loss + model.config.router_aux_loss_coef * balance
    total.backward()
    return logits.detach(), loss.item()


def gradients(model):
    """By the names of the file, which has each expert's matrices apart."""
    is_mixtral = "Mixtral" in type(model).__name__
    for key, parameter in sorted(model.named_parameters()):
        block = key.replace(".mlp.", ".block_sparse_moe.") if is_mixtral else key
        names = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
        if key.endswith("experts.gate_up_proj"):
            for expert, gradient in enumerate(parameter.grad):
                gate, up = gradient.chunk(2)
                prefix = block.removesuffix("gate_up_proj") + f"{expert}."
                yield prefix + names[0] + ".weight", gate
                yield prefix + names[1] + ".weight", up
        elif key.endswith("experts.down_proj"):
            for expert, gradient in enumerate(parameter.grad):
                yield block.removesuffix("down_proj") + f"{expert}.{names[2]}.weight", gradient
        else:
            yield block, parameter.grad


def make_folder(name, model):
    folder = llama.FOLDER / "families" / name
    model = model.eval().float()
    fill_weights(model)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = model.double()
    tokens, targets = llama.make_batch(SHAPE["vocab_size"])
    logits, loss = compute(model, tokens, targets)
    as_float = lambda tensor: tensor.detach().numpy().astype(np.float32)
    tensors = [("tokens", tokens), ("targets", targets), ("logits", as_float(logits))]
    tensors += [("gradient:" + key, as_float(gradient)) for key, gradient in gradients(model)]
    values = {"batch": llama.BATCH, "sequence_length": llama.SEQUENCE_LENGTH, "loss": loss}
    llama.write_golden(folder / "expected.golden", values, tensors)
    print(f"{name}: loss {loss:.9f}")


def make_rope():
    cases = []
    for head_dim, theta, parameters, length in [
            (16, 500.0, {"rope_type": "linear", "factor": 2.0}, 64),
            (16, 10000.0, {"rope_type": "dynamic", "factor": 2.0}, 64),
            (16, 10000.0, {"rope_type": "dynamic", "factor": 2.0}, 150),
            (64, 1000000.0, {"rope_type": "yarn", "factor": 4.0,
                             "original_max_position_embeddings": 32768}, 131072),
            (16, 1000.0, {"rope_type": "yarn", "factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0,
                          "original_max_position_embeddings": 128, "truncate": False}, 64),
            (32, 10000.0, {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0,
                           "mscale_all_dim": 0.8, "original_max_position_embeddings": 4096}, 64),
            (32, 10000.0, {"rope_type": "yarn", "factor": 40.0, "attention_factor": 1.25,
                           "original_max_position_embeddings": 4096}, 64)]:
        config = transformers.LlamaConfig(
            hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim,
            max_position_embeddings=64, rope_parameters={**parameters, "rope_theta": theta})
        kind = parameters["rope_type"]
        frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
        cases.append({"head_dim": head_dim, "rope_theta": theta, "max_position_embeddings": 64,
                      "rope_scaling": parameters, "length": length, "magnitude": magnitude,
                      "frequencies": [float(value) for value in frequencies]})
    path = llama.FOLDER / "families" / "rope.json"
    path.write_text(json.dumps(cases, indent=1) + "\n")
    print(f"{path.name}: {len(cases)} cases, transformers {transformers.__version__}")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name, model in models():
        make_folder(name, model)
    make_rope()


if __name__ == "__main__":
    main()

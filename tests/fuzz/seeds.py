#!/usr/bin/env python3
"""Writes the initial inputs of fuzzing, one folder per target: seeds.py FOLDER"""

import base64
import gzip
import json
import struct
import sys
from pathlib import Path


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def megatron(code, lengths, pointers, documents, version=1):
    return (b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, code, len(lengths), len(documents))
            + struct.pack(f"<{len(lengths)}i{len(pointers)}q{len(documents)}q",
                          *lengths, *pointers, *documents))


def llm_c(magic, version, tokens, form):
    return struct.pack("<256i", magic, version, len(tokens), *[0] * 253) + \
        struct.pack(f"<{len(tokens)}{form}", *tokens)


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def tokenizer(pre_tokenizer, merges, **more):
    words = {letter: token for token, letter in enumerate("abBĠĊ1Ã©")}
    for left, right in merges:
        words[left + right] = len(words)
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": len(words), "content": "<|end|>", "special": True,
                              "normalized": False, "lstrip": False, "rstrip": False,
                              "single_word": False}],
            "normalizer": None, "pre_tokenizer": pre_tokenizer, "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False,
                      "ignore_merges": False, "vocab": words,
                      "merges": [f"{left} {right}" for left, right in merges]}, **more}


def sentencepiece(pieces, trainer, normalizer):
    """A model of pieces (text, score, type); the other messages are fields of small integers."""
    def field(number, value):
        return bytes([number << 3 | 2, len(value)]) + value

    def integers(fields):
        keys = [[number << 3] if number < 16 else [number << 3 & 127 | 128, number >> 4] for number in fields]
        return b"".join(bytes([*key, value]) for key, value in zip(keys, fields.values()))
    return b"".join(field(1, field(1, text.encode()) + struct.pack("<Bf", 2 << 3 | 5, score) + integers({3: kind}))
                    for text, score, kind in pieces) + field(2, integers(trainer)) + field(3, integers(normalizer))


PIECES = [("<unk>", 0, 2), ("<s>", 0, 3), ("<0x01>", 0, 6), ("\u2581", -1, 1), ("a", -2, 1), ("B", -3, 1),
          ("\u2581a", -0.5, 1), ("aB", -0.5, 1), ("\n", 0, 4)]
CHARACTERS = {
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}}
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": True}
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPLIT = {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False},
    {"type": "Digits", "individual_digits": True}, {**BYTE_LEVEL, "use_regex": False}]}
LLAMA = {"model_type": "llama", "vocab_size": 256, "num_hidden_layers": 2, "hidden_size": 64,
         "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
         "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
         "max_position_embeddings": 8192, "hidden_act": "silu", "attention_bias": False,
         "bos_token_id": 1, "eos_token_id": [2, 3], "torch_dtype": "bfloat16"}
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}
GPT2 = {"model_type": "gpt2", "vocab_size": 256, "n_layer": 2, "n_embd": 64, "n_head": 4,
        "n_inner": None, "n_positions": 128, "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new", "bos_token_id": 0, "eos_token_id": 0}
MANIFEST = {"format": 1, "octavo": "1.0.0", "step": 7, "time": 1700000000, "model": "llama_tiny",
            "recipe": "bf16", "optimizer": "adamw", "ranks": 2, "tensor_parallel": 1, "zero": 1,
            "validation_loss": 2.5, "libraries": "NVIDIA H200, CUDA 13.0",
            "numbers": {"optimizer.steps": 7},
            "files": [{"name": "rank-00000.safetensors", "bytes": 64, "crc32c": "0123abcd"}]}

CONFIGS = [LLAMA, {**LLAMA, "rope_scaling": ROPE}, GPT2,
           {**LLAMA, "model_type": "qwen3", "head_dim": 16,
            "rope_parameters": {**ROPE, "rope_theta": 1e6},
            "layer_types": ["full_attention"] * 2},
           {**LLAMA, "eos_token_id": None, "quantization_config": {"bits": 4}}]
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
           "sliding_window": None, "router_aux_loss_coef": 0.02}
GEMMA = {**LLAMA, "model_type": "gemma3_text", "head_dim": 16, "tie_word_embeddings": True,
         "hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 1e4, "sliding_window": 64,
         "sliding_window_pattern": 2, "query_pre_attn_scalar": 16}
ADAPTERS = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "models/a", "r": 8,
            "lora_alpha": 16.0, "target_modules": ["q_proj", "v_proj"], "bias": "none", "use_dora": False,
            "rank_pattern": {}, "modules_to_save": None, "init_lora_weights": True}
TEMPLATE = {"begin": "<s>", "behind": "\n", "trims_content": True,
            "system": {"before": "S", "end": "."}, "user": {"before": "U", "end": "."},
            "assistant": {"before": "A", "end": ";", "prefix": " "}}
CHAT = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "one?"},
                     {"role": "assistant", "content": "two", "reasoning_content": "why", "train": True}]}
SHARE = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
ALPACA = {"instruction": "a", "input": "b", "output": "c", "system": "d"}
# A Zstandard frame with one block of three bytes.
ZSTD = bytes.fromhex("28b52ffd2003190000616263")


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


SEEDS = {
    "adapter-config": [ADAPTERS, {**ADAPTERS, "target_modules": "all-linear", "lora_alpha": 1e-3}],
    "chat-template": [TEMPLATE, {**TEMPLATE, "has_reasoning": True, "default_system": "d"},
                      {"user": {"before": "U"}, "assistant": {"end": ";", "trims_content": True},
                       "system_separator": "\n\n", "alternates": True, "special_tokens": ["<s>"]}],
    "chats": [lines(CHAT, CHAT), lines(SHARE, ALPACA), json.dumps([ALPACA, {"prompt": "p", "completion": "c"}]),
              lines(CHAT, {"prompt": CHAT["messages"][:2], "completion": CHAT["messages"][2:]})],
    "compressed": [b"plain text\n", gzip.compress(b"one\ntwo\n" * 9, mtime=0) * 2, ZSTD, ZSTD * 2,
                   b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + bytes(4) + ZSTD,
                   # Blocks of one repeated byte.
                   bytes.fromhex("28b52ffd00580235" "0c610b000062")],
    "plan": [*CONFIGS, MIXTRAL, GEMMA, {**LLAMA, "hidden_size": 8192, "vocab_size": 128256}],
    "config": [*CONFIGS, MIXTRAL, GEMMA],
    "flags": ['name = "a text"\ncount = 1_000\nrate = 1e-3\non = true\nnames = ["a", \'b\']\n',
              'name = """\nsome\\u00e9 \\\n  lines"""\ncount = 0x1f\nrate = inf # a comment\n',
              "[section]\nname = 1979-05-27T07:32:00Z\n[[list]]\na.b = { c = [1, [2, 3.5]] }\n"],
    "gemm-plans": ["card=NVIDIA_H200 multiprocessors=132 cublaslt=130100 m=8192 n=6144 k=4096 a=E4M3 b=E4M3 "
                   "result=bf16 scales_a=tensor scales_b=tensor transpose_a=0 transpose_b=1 adds=0 "
                   f"fast_accumulation=1 alignment=256 microseconds=251.3 algorithm={66:0128x}"],
    "json": ['{"a": [1, -2.5e-3, true, false, null], "b": {"c": "\\u00e9\\ud83d\\ude00\\n"}}',
             "[[[[]]], 0, 123456789012345678901234567890, 1E400]", '"gr\u00fc\u00df\U0001f600"'],
    "json-lines": ['{"text": "one"}\n\n{"id": 7, "text": "t\\u0077o\\n", "more": [{"text": 1}]}\r\n',
                   '{"text": ""}\n{"text": "\\ud83d\\ude00 gr\u00fc\u00df"}'],
    "manifest": [json.dumps(MANIFEST)[:-1], json.dumps({**MANIFEST, "files": []})[:-1]],
    "megatron-index": [megatron(8, [3, 0, 5], [0, 6, 6], [0, 1, 3]), megatron(4, [2], [0], [0, 1]),
                       megatron(5, [1], [0], [1]), megatron(8, [], [], []),
                       megatron(7, [1], [0], [1]), megatron(1, [4, -1], [0, 4], [0, 2], 2)],
    "safetensors": [safetensors({}),
                    safetensors({"__metadata__": {"format": "pt"}, "a": tensor("F32", [1, 2], 0, 8),
                                 "b": tensor("BF16", [], 8, 10), "c": tensor("F4", [0, 3], 10, 10)},
                                bytes(10)),
                    safetensors({"a": tensor("F64", [2 ** 62, 4], 0, 0)}),
                    safetensors({"a": tensor("U8", [4], 0, 4)}, bytes(4), 2 ** 64 - 1),
                    safetensors(b'{"a":' * 40, bytes(3))],
    "sentencepiece": [sentencepiece(PIECES, {3: 2, 35: 1}, {3: 1, 4: 0}), sentencepiece(PIECES, {}, {})],
    "tiktoken": [b"".join(b"%s %d\n" % (base64.b64encode(word), rank) for rank, word in enumerate(
        [bytes([byte]) for byte in range(256)] + [b"aB", b"aB 1", b"\xc3\xa9"]))],
    "token-file": [llm_c(20240520, 1, [50256, 1, 2], "H"), llm_c(20240801, 7, [40000, 1, 2], "I"),
                   llm_c(20240520, 2, [1], "H"), struct.pack("<4H", 50256, 5, 6, 7),
                   struct.pack("<64I", *range(64)), b"MMIDIDX\0\0"],
    "tokenizer-json": [tokenizer(BYTE_LEVEL, [("a", "b"), ("ab", "B")]),
                       tokenizer(SPLIT, [("\u00c3", "\u00a9")], normalizer={"type": "NFC"}),
                       tokenizer(None, [("a", "b"), ("ab", "B")], **CHARACTERS),
                       tokenizer(METASPACE, [("a", "b")], **{**CHARACTERS, "normalizer": None}),
                       tokenizer(SPLIT, [], post_processor={"type": "TemplateProcessing"})],
}


def main(folder):
    for target, seeds in SEEDS.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds):
            if isinstance(seed, dict):
                seed = json.dumps(seed, ensure_ascii=False)
            (folder / target / f"seed-{number}").write_bytes(
                seed.encode() if isinstance(seed, str) else seed)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    main(Path(sys.argv[1]))

"""Tokens and decoded texts, against tokenizers and tiktoken.

Tokenizers laid out as GPT-2's, Llama 3's and Qwen's, trained here on this repository's pages and
Python's own modules, and Llama 3's file, of llama-models. Texts: these files, thousands of short random
texts, and long ones with the names of special tokens, once as text and once as tokens.
"""
import importlib.machinery
import importlib.util
import os
import random
import struct
from importlib.metadata import files
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import support

ROOT = Path(__file__).resolve().parents[2]
LOADER = importlib.machinery.SourceFileLoader("tokenizers_run", str(ROOT / "benchmarks/tokenizers/run"))
existing = importlib.util.module_from_spec(importlib.util.spec_from_loader("tokenizers_run", LOADER))
LOADER.exec_module(existing)
SHORT_TEXTS = 5000


def byte_level(pattern=None):
    if pattern is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


LAYOUTS = {
    "gpt2": (byte_level(), None),
    "llama3": (byte_level(existing.LLAMA3), None),
    "qwen": (byte_level(existing.LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")), normalizers.NFC()),
}


def real_texts():
    paths = sorted((ROOT / "docs").glob("*.md")) + sorted(Path(os.__file__).parent.glob("*.py"))
    return {path.name: path.read_bytes().decode(errors="ignore") for path in paths}


def train(name, texts, work):
    pre_tokenizer, normalizer = LAYOUTS[name]
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(texts.values(), trainers.BpeTrainer(
        vocab_size=8000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>", "<|im_start|>"])
    tokenizer.save(str(work / f"{name}.json"))
    return work / f"{name}.json", tokenizer.decode


def llama3_file():
    path = next(path for path in files("llama-models") if path.name == "tokenizer.model"
                and "llama3" in str(path))
    return Path(path.locate())


def encoded(probe, path, texts, special):
    """(tokens, decoded text) of each text."""
    data = b"".join(struct.pack("<I", len(text)) + text for text in (text.encode() for text in texts))
    out = support.call(probe, "tokens", path, "special" if special else "text", input=data)
    at = 0
    while at < len(out):
        count, = struct.unpack_from("<I", out, at)
        tokens = list(struct.unpack_from(f"<{count}i", out, at + 4))
        at += 4 + 4 * count
        size, = struct.unpack_from("<I", out, at)
        yield tokens, out[at + 4:at + 4 + size]
        at += 4 + size


def compare(report, probe, name, path, texts):
    encode, special_names = existing.reference(path)
    if path.suffix == ".json":
        tokenizer = Tokenizer.from_file(str(path))
        decode = lambda tokens: tokenizer.decode(tokens, skip_special_tokens=False).encode()
    else:
        decode = None
    random_texts = existing.random_texts(special_names)
    rng, mixed = random.Random(2), "".join(random_texts.values())
    for _ in range(SHORT_TEXTS):
        begin = rng.randrange(len(mixed))
        texts = texts | {f"random {begin}": mixed[begin:begin + rng.randint(0, 60)]}
    texts = texts | random_texts
    for special in (False, True):
        differences, count = [], 0
        for (title, text), (tokens, decoded) in zip(texts.items(),
                                                    encoded(probe, path, texts.values(), special)):
            expected = encode(text, special)
            count += len(expected)
            if tokens != expected:
                differences.append(f"{name}, {title}: {existing.first_difference(tokens, expected)}")
            elif decoded != (decode(tokens) if decode else text.encode()):
                differences.append(f"{name}, {title}: the decoded text differs")
        report.add(f"{name}, special names as {'tokens' if special else 'text'}, {count:,} tokens",
                   len(texts), differences)


def check(report, programs, work):
    texts = real_texts()
    paths = {f"tokenizers, {name}": train(name, texts, work)[0] for name in LAYOUTS}
    paths["tiktoken, Llama 3"] = llama3_file()
    for name, path in paths.items():
        compare(report, programs / "against_peers_probe", name, path, texts)


if __name__ == "__main__":
    support.main(check)

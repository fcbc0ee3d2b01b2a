#!/usr/bin/env python3
"""Writes the folder tokenizers next to this file.

Small tokenizers of byte pairs, laid out as those of GPT-2, Llama 3, Qwen and SmolLM2, trained on the
texts below by the package tokenizers, and one tiktoken file; expected.json has the texts and
what both packages encode them to, with the names of special tokens as text and as tokens.
characters.json has the same for BPE of characters, laid out as the tokenizers of Llama 2, Mistral
and Gemma, and for white space around added tokens, with the texts that the tokens decode to;
sentencepiece.model is a model of the package sentencepiece.
"""

import base64
import io
import json
import random
from pathlib import Path

import sentencepiece
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import trainers

FOLDER = Path(__file__).parent / "tokenizers"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEXTS = [
    "The rain in Spain stays mainly in the plain; the grain in the train doesn't.",
    "We've 1234567 things, they'RE there, I'LL say it'\u017f 3.14159 or \u0663\u0664\u0665 \u00b2\u2167!",
    "  leading, double  and trailing spaces   \n\n\n\tTab\r\nline \r\r\n  \n end  ",
    "Der schnelle braune Fuchs springt \u00fcber den faulen Hund, gro\u00df und \u00e4u\u00dferst h\u00fcbsch.",
    "\u0421\u044a\u0435\u0448\u044c \u0436\u0435 \u0435\u0449\u0451 \u044d\u0442\u0438\u0445 "
    "\u043c\u044f\u0433\u043a\u0438\u0445 \u0444\u0440\u0430\u043d\u0446\u0443\u0437\u0441\u043a\u0438\u0445 "
    "\u0431\u0443\u043b\u043e\u043a, \u0434\u0430 \u0432\u044b\u043f\u0435\u0439 \u0447\u0430\u044e.",
    "\u3044\u308d\u306f\u306b\u307b\u3078\u3068 \u3061\u308a\u306c\u308b\u3092\u3001\u4eca\u65e5\u306f"
    "\u4e16\u754c\u3002\u4f60\u597d\uff0c\u4e16\u754c\uff01 \uc548\ub155\ud558\uc138\uc694",
    "caf\u00e9 na\u00efve \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2603\ufe0f "
    "\u00a0\u2003\u3000\u0085\u180e\u200b\x1c\x0b\x0c x\u180e y",
    "for (int i = 0; i < 10; ++i) {\n\t\tsum[i] += a->b(c, \"d\"); // !!!???\n}\n",
    "",
    " ",
    "a",
    "in the plain in the plain in the plain in the plain" * 3,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "<|begin|>A text<|end|><|end|>\n<tool> of <|begi n|> both</tool><|end|",
]


def train(name, pre_tokenizer, normalizer=None, **settings):
    tokenizer = Tokenizer(models.BPE(**settings))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    special = [] if name == "llama3" else ["<|begin|>", "<|end|>"]
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=380, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    return tokenizer


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split(pattern):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(False)])


def make_all():
    gpt2 = train("gpt2", byte_level(True))
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    llama3 = train("llama3", split(LLAMA3), ignore_merges=True)
    begin = llama3.token_to_id("<|begin|>")
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing("<|begin|> $A", special_tokens=[("<|begin|>", begin)])])
    qwen = train("qwen", split(QWEN), normalizers.NFC())
    qwen.add_tokens(["<tool>", "</tool>"])
    smollm2 = train("smollm2", pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level(True)]))
    return {"gpt2": gpt2, "llama3": llama3, "qwen": qwen, "smollm2": smollm2}


def encoded(tokenizer, specials_are_text, texts):
    tokenizer.encode_special_tokens = specials_are_text
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def write(name, tokenizer):
    layout = json.loads(tokenizer.to_str())
    if name == "gpt2":  # as older versions write it
        layout["model"]["merges"] = [" ".join(pair) for pair in layout["model"]["merges"]]
        del layout["model"]["type"]
    (FOLDER / f"{name}.json").write_text(json.dumps(layout, separators=(",", ":")) + "\n")


MARK = "\u2581"
SPLIT_WORDS = pre_tokenizers.Metaspace(MARK, "always", True)
DECODERS = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
STRIP = decoders.Strip(" ", 1, 0)


def character_texts():
    """Texts, and random strings of pieces that these tokenizers treat differently."""
    draw = random.Random(1)
    pieces = [" ", "  ", "     ", "\n", "\n\n", "\t", "\u00a0", MARK, MARK * 2, "<s>", "</s>", "<tag>",
              "<0x0A>", "<unk>", "a", "th", "the", " the", "Sp", "ain", "in", "\u00e9", "\u4f60", "\u00df",
              "\U0001f600", "\u0449", "\u3000", "1", "12", ".", "\x00", "\x7f", "rain", " plain"]
    drawn = ["".join(draw.choices(pieces, k=draw.randint(1, 24))) for _ in range(24)]
    return TEXTS + ["a ", "  a", " \n", "<s>", "<s> a", "a <s> </s>  b", MARK + "a", "the <tag>  the"] + drawn


def characters(trained_with, normalizer, pre_tokenizer, decoder, added):
    """BPE of characters with byte fallback, of fewer characters than the texts have."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", MARK)
    trained.pre_tokenizer = trained_with
    trained.train_from_iterator(TEXTS[:9], trainers.BpeTrainer(
        vocab_size=160, limit_alphabet=50, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    tokenizer = Tokenizer(models.BPE(
        vocab={text: place for place, text in enumerate(tokens)}, unk_token="<unk>", fuse_unk=True,
        merges=[tuple(pair) for pair in model["merges"]], byte_fallback=True))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence(decoder)
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in tokens[:3]])
    tokenizer.add_tokens(added)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def make_characters():
    prefix = train("prefix", pre_tokenizers.ByteLevel(add_prefix_space=True))
    prefix.add_special_tokens([AddedToken("<s>", lstrip=True), AddedToken("</s>", rstrip=True)])
    prefix.add_tokens([AddedToken("<tag>", lstrip=True, rstrip=True, normalized=True)])
    to_mark = normalizers.Replace(" ", MARK)
    return {
        "llama2": characters(SPLIT_WORDS, normalizers.Sequence([normalizers.Prepend(MARK), to_mark]), None,
                             [*DECODERS, STRIP], [AddedToken("<tag>", normalized=True)]),
        "mistral": characters(SPLIT_WORDS, None, pre_tokenizers.Metaspace(MARK, "first", False),
                              [*DECODERS, STRIP], [AddedToken("<tag>", rstrip=True, normalized=False)]),
        # Its tokens have spaces within, as none of its words was split.
        "gemma": characters(None, to_mark, pre_tokenizers.Split(" ", "merged_with_previous", False), DECODERS,
                            [AddedToken(text, normalized=False) for text in ("\n\n", MARK * 2, "<tag>")]),
        "words": characters(SPLIT_WORDS, None, SPLIT_WORDS, [*DECODERS, STRIP], ["<tag>"]),
        "prefix": prefix,
    }


def make_sentencepiece():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in TEXTS for line in text.split("\n") if "\x00" not in line),
        model_writer=model, model_type="bpe", vocab_size=440, byte_fallback=True, character_coverage=0.98,
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        allow_whitespace_only_pieces=True, control_symbols=["[INST]"], user_defined_symbols=["<tag>", "\n\n"],
        minloglevel=2)
    (FOLDER / "sentencepiece.model").write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def write_characters():
    texts = character_texts()
    model = make_sentencepiece()
    tokens = {"sentencepiece": {"text": [model.encode(text) for text in texts]}}
    decoded = {"sentencepiece": [model.decode(ids) for ids in tokens["sentencepiece"]["text"]]}
    for name, tokenizer in make_characters().items():
        write(name, tokenizer)
        tokens[name] = {"text": encoded(tokenizer, True, texts), "special": encoded(tokenizer, False, texts)}
        decoded[name] = [tokenizer.decode(ids, skip_special_tokens=False) for ids in tokens[name]["special"]]
    (FOLDER / "characters.json").write_text(
        json.dumps({"texts": texts, "tokens": tokens, "decoded": decoded}, separators=(",", ":")) + "\n")


def make_tiktoken(llama3):
    """The tokens of a tokenizer.json with ignore_merges, whose ids are their ranks."""
    vocabulary = json.loads(llama3.to_str())["model"]["vocab"]
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    ranks = {bytes(byte_of[c] for c in text): token for text, token in vocabulary.items()}
    lines = sorted((rank, base64.b64encode(token).decode()) for token, rank in ranks.items())
    (FOLDER / "tiny.tiktoken").write_text("".join(f"{t} {rank}\n" for rank, t in lines))
    special = {"<|begin|>": len(ranks), "<|end|>": len(ranks) + 1}
    return tiktoken.Encoding("tiny", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens=special)


def main():
    FOLDER.mkdir(exist_ok=True)
    tokenizers = make_all()
    tokens = {}
    for name, tokenizer in tokenizers.items():
        write(name, tokenizer)
        tokens[name] = {"text": encoded(tokenizer, True, TEXTS), "special": encoded(tokenizer, False, TEXTS)}
    tiny = make_tiktoken(tokenizers["llama3"])
    tokens["tiktoken"] = {"text": [tiny.encode_ordinary(text) for text in TEXTS],
                          "special": [tiny.encode(t, allowed_special="all") for t in TEXTS]}
    (FOLDER / "expected.json").write_text(
        json.dumps({"pattern": LLAMA3, "texts": TEXTS, "tokens": tokens}, separators=(",", ":"))
        + "\n")
    write_characters()


if __name__ == "__main__":
    main()

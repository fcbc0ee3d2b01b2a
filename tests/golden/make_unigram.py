#!/usr/bin/env python3
"""Writes tokenizers/unigram.model, unigram.json and unigram_expected.json next to this file.

A Unigram model of the package sentencepiece, with a map of characters, joined spaces, byte fallback
and user-defined pieces; and its pieces as a Unigram model of the package tokenizers, whose scores
are added in double precision. The expected tokens and decoded texts are those of the two packages.
"""

import io
import json
import tempfile

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from make_tokenizers import DECODERS, FOLDER, MARK, STRIP, TEXTS, character_texts

# From code points to code points; the longest match counts.
RULES = [("3000", "20"), ("A0", "20"), ("A", "20"), ("D", ""), ("65 301", "E9"), ("FF21", "41"),
         ("FB01", "66 69"), ("A8", "20 308"), ("20 20 21", "21"), ("31 32", "33 20 20"), ("1F600", "3A 29")]


def make_model():
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.write("".join(f"{before}\t{after}\n" for before, after in RULES))
        rules.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(line for text in TEXTS for line in text.split("\n") if "\x00" not in line),
            model_writer=model, model_type="unigram", vocab_size=400, byte_fallback=True,
            character_coverage=0.98, normalization_rule_tsv=rules.name, control_symbols=["[INST]"],
            user_defined_symbols=["<tag>", "=="], hard_vocab_limit=False, minloglevel=2)
    return model.getvalue()


def make_json(processor):
    """The same pieces, without the map of characters, which split into words."""
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    vocabulary = [(piece, processor.get_score(i)) for i, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, processor.unk_id(), byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace("\n", " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK, "always", True)
    tokenizer.decoder = decoders.Sequence([*DECODERS, STRIP])
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>", "[INST]")])
    return tokenizer


def texts():
    more = ["aaaaaaa 0000000 ......... aaaaa", "e\u0301 \uff21\ufb01 \u00a8 x  ! 12 12  12", "\u3000 \n a \r b\n", MARK,
            MARK + " " + MARK, "a <tag>==<tag> == a", "  ==  ", "[INST] a", " \u0301e", "\U0001f600 \U0001f601"]
    return [text for text in character_texts() + more if "\x00" not in text and "<0x" not in text]


def main():
    model = make_model()
    (FOLDER / "unigram.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = make_json(processor)
    (FOLDER / "unigram.json").write_text(
        json.dumps(json.loads(tokenizer.to_str()), separators=(",", ":")) + "\n")
    expected = {"texts": texts(), "model": [], "json": [], "decoded": [], "decoded_json": []}
    for text in texts():
        expected["model"].append(processor.encode(text))
        expected["decoded"].append(processor.decode(expected["model"][-1]))
        expected["json"].append(tokenizer.encode(text, add_special_tokens=False).ids)
        expected["decoded_json"].append(tokenizer.decode(expected["json"][-1], skip_special_tokens=False))
    (FOLDER / "unigram_expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

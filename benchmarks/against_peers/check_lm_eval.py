"""lm_eval on local tasks against `evaluate`: accuracies of questions with endings, and bits per byte of a text.

The model has random weights, large enough that endings differ, and its tokens are bytes.
"""
import json
import random
import shutil
from pathlib import Path

import lm_eval
import torch
import transformers
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import support

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS, LENGTH, WINDOWS = 300, 256, 40
BOUND = 1e-5  # of the bits per byte


def byte_characters():
    """The characters by which a byte-level tokenizer of transformers writes bytes 0 to 255."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def make_model(folder):
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        num_hidden_layers=4, hidden_size=128, intermediate_size=384, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, vocab_size=256, rms_norm_eps=1e-5, rope_theta=10000.0, max_position_embeddings=LENGTH,
        initializer_range=0.2)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    characters = byte_characters()
    tokenizer = Tokenizer(models.BPE(vocab={character: byte for byte, character in enumerate(characters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    # The token before a text in lm_eval: a newline.
    return model, transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=characters[10],
                                                       eos_token=characters[10], pad_token=characters[0])


def words_of(text):
    return [word for word in text.split() if len(word) < 20]


def make_questions(path):
    """Questions of 2 to 5 endings, which include other bytes than ASCII."""
    rng = random.Random(3)
    words = words_of((ROOT / "docs" / "design.md").read_text()) + ["naïve", "größer", "日本語", "…"]
    lines = []
    for _ in range(QUESTIONS):
        endings = [" ".join(rng.choices(words, k=rng.randint(1, 6))) for _ in range(rng.randint(2, 5))]
        lines.append({"ctx": " ".join(rng.choices(words, k=rng.randint(1, 12))), "endings": endings,
                      "label": rng.randrange(len(endings))})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def task(name, file, **settings):
    return {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"validation": str(file)}},
            "validation_split": "validation", **settings}


def lm_eval_results(model, tokenizer, work):
    mean = [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in ("acc", "acc_norm")]
    bits = [{"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}]
    tasks = [task("local_questions", work / "questions.jsonl", output_type="multiple_choice", doc_to_text="{{ctx}}",
                  doc_to_choice="{{endings}}", doc_to_target="{{label}}", metric_list=mean),
             task("local_text", work / "text.jsonl", output_type="loglikelihood_rolling", doc_to_text="",
                  doc_to_target="{{text}}", metric_list=bits)]
    peer = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8, max_length=LENGTH)
    return lm_eval.simple_evaluate(peer, tasks=tasks, bootstrap_iters=0, verbosity="ERROR")["results"]


def check(report, programs, work):
    shutil.rmtree(work)
    work.mkdir()
    model, tokenizer = make_model(work / "base")
    make_questions(work / "questions.jsonl")
    # A newline and whole windows: lm_eval gives the tokens of an incomplete last window more context.
    text = "\n" + (ROOT / "docs" / "trainer.md").read_text().encode("ascii", "ignore").decode()[:LENGTH * WINDOWS]
    assert len(text) == 1 + LENGTH * WINDOWS
    (work / "text.txt").write_text(text)
    (work / "text.jsonl").write_text(json.dumps({"text": text[1:]}) + "\n")
    support.call(programs / "evaluate", "--model", f"hf:{work}/base", "--precision", "fp32", "--tokenizer", "bytes",
                 "--hellaswag", work / "questions.jsonl", "--data", work / "text.txt", "--seq-len", LENGTH, "--batch", 4,
                 "--json", work / "results.json")
    own = json.loads((work / "results.json").read_text())
    theirs = lm_eval_results(model, tokenizer, work)
    for metric, other in (("accuracy", "acc"), ("accuracy_by_characters", "acc_norm")):
        ours, peers = own["hellaswag"][metric], theirs["local_questions"][f"{other},none"]
        report.add(f"{other} of local questions, {peers:.3f}", QUESTIONS,
                   [] if round(ours * QUESTIONS) == round(peers * QUESTIONS) else [f"{ours}, not {peers}"])
    ours, peers = own["perplexity"]["bits_per_byte"], theirs["local_text"]["bits_per_byte,none"]
    relative_error = abs(ours / peers - 1)
    report.add(f"bits per byte of a local text, differing by {relative_error:.0e}", LENGTH * WINDOWS,
               [] if relative_error <= BOUND else [f"{ours}, not {peers}"])


if __name__ == "__main__":
    support.main(check)

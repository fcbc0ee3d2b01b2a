"""Adapters merged into weights, against peft: adapters that Octavo trained, and adapters that peft made."""
import shutil
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import support

ROOT = Path(__file__).resolve().parents[2]
BOUND = 1e-6  # of the largest weight of a tensor
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def train(programs, text, *flags):
    support.call(programs / "train_llama", "--precision", "fp32", "--data", text, "--batch", 1, "--seq-len", 32,
                 "--sample", 0, "--no-out", "--warmup", 0, "--evaluate-every", 0, "--threads", 1, *flags)


def merged(base, adapters):
    model = transformers.LlamaForCausalLM.from_pretrained(base)
    return peft.PeftModel.from_pretrained(model, adapters).merge_and_unload().state_dict()


def compare(report, subject, folder, expected):
    found = load_file(folder / "model.safetensors")
    differences = [f"no tensor {name}" for name in expected if name not in found]
    largest = 0.0
    for name, tensor in found.items():
        relative_error = float((tensor - expected[name]).abs().max() / expected[name].abs().max())
        largest = max(largest, relative_error)
        if not relative_error <= BOUND:
            differences.append(f"{name} differs by {relative_error:.1e}")
    report.add(f"{subject}, differing by at most {largest:.0e}", len(found), differences)


def check(report, programs, work):
    shutil.rmtree(work)
    work.mkdir()
    text = work / "text.txt"
    text.write_bytes(b"".join(path.read_bytes() for path in sorted((ROOT / "docs").glob("*.md"))))
    base = work / "base"
    train(programs, text, "--model", "llama_tiny", "--steps", 1, "--save-hf", base)
    for rank, alpha, targets in ((1, 1, ["q_proj"]), (4, 9, TARGETS), (8, 2.5, TARGETS[:4]),
                                 (3, 7, ["gate_proj", "down_proj"])):
        name = f"rank {rank}, alpha {alpha}, {len(targets)} layers"
        own = work / f"own{rank}"
        lora = ["--model", f"hf:{base}", "--lora", rank, "--lora-alpha", alpha,
                "--lora-targets", ",".join(targets), "--save-hf"]
        train(programs, text, "--steps", 10, "--learning-rate", 0.01, *lora, own,
              "--save-adapters", f"{own}.adapters")
        compare(report, f"adapters of Octavo, {name}", own, merged(base, f"{own}.adapters"))
        model = peft.get_peft_model(transformers.LlamaForCausalLM.from_pretrained(base), peft.LoraConfig(
            r=rank, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM"))
        made = work / f"made{rank}"
        model.save_pretrained(made)
        file = made / "adapter_model.safetensors"
        torch.manual_seed(rank)
        save_file({key: 0.05 * torch.randn_like(tensor) for key, tensor in load_file(file).items()}, file,
                  {"format": "pt"})
        # A rate at which no FP32 weight changes.
        train(programs, text, "--steps", 1, "--learning-rate", 1e-30, *lora, f"{made}.hf",
              "--load-adapters", made)
        compare(report, f"adapters of peft, {name}", Path(f"{made}.hf"), merged(base, made))


if __name__ == "__main__":
    support.main(check)

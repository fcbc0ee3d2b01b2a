"""PyTorch's FSDP on two processes (gloo) against --zero 3 on two ranks: 20 steps and the weights after them.

Both start with the same weights. Each step takes all sequences of the text, so their order does not
matter. Octavo draws anew for each epoch where the first one begins: the place is found by the loss and
the gradient norm, because two places can have equal losses.
"""
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed
import transformers
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import support

ROOT = Path(__file__).resolve().parents[2]
STEPS, RANKS, BATCH, MICRO_BATCHES, LENGTH, RATE = 20, 2, 2, 2, 32, 1e-3
SEQUENCES = RANKS * BATCH * MICRO_BATCHES
BOUND, WEIGHT_BOUND = 1e-5, 1e-3


def loss_of(model, windows):
    logits = model(windows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())


def windows_at(text, offset):
    return torch.stack([text[offset + i * LENGTH:offset + (i + 1) * LENGTH + 1] for i in range(SEQUENCES)])


def backward(model, optimizer, windows):
    """Returns the norm of the gradients, which replace earlier ones."""
    optimizer.zero_grad()  # not the model's, whose parameters are those of all processes after a forward
    loss_of(model, windows).backward()
    return float(torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()]).full_tensor())


def peer(work):
    """One process of FSDP; the first writes its losses, gradient norms and weights."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model = transformers.LlamaForCausalLM.from_pretrained(work / "base", attn_implementation="eager")
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": vectors, "weight_decay": 0.0}], lr=RATE, betas=(0.9, 0.95))
    text = torch.tensor(list((work / "text.txt").read_bytes()))
    steps = []
    for loss, norm in json.loads((work / "steps.json").read_text()):
        with torch.no_grad():
            losses = [float(loss_of(model, windows_at(text, offset))) for offset in range(LENGTH)]
        nearest = sorted(range(LENGTH), key=lambda i: abs(losses[i] - loss))[:3]
        norms = {offset: backward(model, optimizer, windows_at(text, offset)[rank::RANKS]) for offset in nearest}
        offset = min(nearest, key=lambda i: abs(losses[i] / loss - 1) + abs(norms[i] / norm - 1))
        steps.append((losses[offset], backward(model, optimizer, windows_at(text, offset)[rank::RANKS])))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    weights = {name: weight.full_tensor() for name, weight in model.state_dict().items()}
    if rank == 0:
        torch.save((steps, weights), work / "peer.pt")
    torch.distributed.destroy_process_group()


def check(report, programs, work):
    if shutil.which("mpirun") is None:
        raise support.SkipCheck("mpirun is not installed")
    shutil.rmtree(work)
    work.mkdir()
    text = work / "text.txt"
    text.write_bytes((ROOT / "docs" / "design.md").read_bytes()[:LENGTH * (SEQUENCES + 1)])
    other = work / "validation.txt"
    other.write_bytes((ROOT / "docs" / "trainer.md").read_bytes()[:1000])
    common = ["--precision", "fp32", "--data", text, "--validation-data", other, "--batch", BATCH,
              "--seq-len", LENGTH, "--micro-batches", MICRO_BATCHES, "--sample", 0, "--warmup", 0, "--evaluate-every", 0,
              "--threads", 1, "--schedule", "constant", "--learning-rate", RATE]
    support.call(programs / "train_llama", *common, "--steps", 1, "--no-out", "--save-hf", work / "base")
    support.call("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", RANKS, programs / "train_llama",
                 *common, "--model", f"hf:{work}/base", "--zero", 3, "--steps", STEPS, "--out", work / "run",
                 "--save-hf", work / "trained")
    records = map(json.loads, (work / "run" / "metrics.jsonl").read_text().splitlines())
    steps = [(record["loss"], record["gradient_norm"]) for record in records if record["event"] == "step"]
    (work / "steps.json").write_text(json.dumps(steps))
    subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), __file__,
                    "peer", str(work)], check=True)
    their_steps, weights = torch.load(work / "peer.pt")
    for subject, ours, theirs in zip(("losses", "gradient norms"), zip(*steps), zip(*their_steps)):
        relative_errors = [abs(our / their - 1) for our, their in zip(ours, theirs)]
        report.add(f"{subject} of {STEPS} steps, differing by at most {max(relative_errors):.0e}", STEPS,
                   [f"step {i + 1}: {ours[i]}, not {theirs[i]}" for i in range(STEPS) if not relative_errors[i] <= BOUND])
    found = load_file(work / "trained" / "model.safetensors")
    relative_errors = {name: float((tensor - weights[name]).norm() / weights[name].norm())
             for name, tensor in found.items()}
    report.add(f"weights after {STEPS} steps, differing by at most {max(relative_errors.values()):.0e}", len(found),
               [f"{name} differs by {error:.1e}" for name, error in relative_errors.items() if not error <= WEIGHT_BOUND])


if __name__ == "__main__":
    if sys.argv[1] == "peer":
        peer(Path(sys.argv[2]))
    else:
        support.main(check)

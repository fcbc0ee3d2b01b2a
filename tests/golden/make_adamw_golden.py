#!/usr/bin/env python3
"""Writes llama_adamw.golden and qwen3_adamw.golden next to this file.

Twenty training steps of a small model with PyTorch's AdamW on the CPU: the learning rate warms up
and decays, matrices decay and vectors do not, gradients are clipped in some steps and not in
others, and the number of ignored targets differs from step to step. Model, weights and tokens are
made as in make_llama_golden.py; everything is computed in double precision except where
transformers goes to float.

README.md gives the file layout.
"""

import numpy as np
import torch
import transformers

import make_llama_golden as llama

STEPS = 20
WARMUP = 4
SNAPSHOTS = (1, 6, 20)
BATCH = 4
SEQUENCE_LENGTH = 16
FINAL_FRACTION = 0.1


def make_llama():
    settings = {"layers": 2, "hidden": 16, "ffn": 40, "heads": 4, "kv_heads": 2, "head_dim": 8,
                "vocabulary": 32, "norm_epsilon": 1e-5, "rope_theta": 500.0, "llama3_rope": 0,
                "rope_factor": 1.0, "rope_low": 1.0, "rope_high": 4.0, "rope_original_length": 0,
                "tied_embeddings": 0, "qk_norm": 0}
    rope = llama.rope_arguments(settings["rope_theta"], None, 64)
    config = transformers.LlamaConfig(**llama.shape_arguments(settings), **rope)
    optimizer = {"learning_rate": 0.004, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-3,
                 "weight_decay": 0.2, "max_norm": 4.75}
    return settings, optimizer, transformers.LlamaForCausalLM(config)


def make_qwen3():
    settings = {"layers": 1, "hidden": 24, "ffn": 32, "heads": 3, "kv_heads": 1, "head_dim": 8,
                "vocabulary": 40, "norm_epsilon": 1e-6, "rope_theta": 100.0, "llama3_rope": 0,
                "rope_factor": 1.0, "rope_low": 1.0, "rope_high": 4.0, "rope_original_length": 0,
                "tied_embeddings": 1, "qk_norm": 1}
    rope = llama.rope_arguments(settings["rope_theta"], None, 64)
    config = transformers.Qwen3Config(**llama.shape_arguments(settings), **rope)
    optimizer = {"learning_rate": 0.01, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-3,
                 "weight_decay": 0.5, "max_norm": 1.52}
    return settings, optimizer, transformers.Qwen3ForCausalLM(config)


def as_floats(optimizer):
    """The settings, rounded to float32 as in the library."""
    return {key: float(np.float32(value)) for key, value in optimizer.items()}


def make_batches(vocabulary):
    """Tokens and the tokens that follow them, [STEPS, BATCH, SEQUENCE_LENGTH]; ignored ones are
    below 0: none in every fourth step, else a share that grows, and once a whole sequence."""
    count = STEPS * BATCH * (SEQUENCE_LENGTH + 1)
    text = (llama.random_words(0, count) % np.uint64(vocabulary)).astype(np.int32)
    text = text.reshape(STEPS, BATCH, SEQUENCE_LENGTH + 1)
    tokens, targets = text[:, :, :-1].copy(), text[:, :, 1:].copy()
    chance = 0.5 + 0.5 * llama.symmetric_uniform(1000, targets.size).reshape(targets.shape)
    for step in range(STEPS):
        share = 0.7 * step / STEPS if step % 4 != 3 else 0.0
        targets[step][chance[step] < share] = -100 if step % 2 == 0 else -1
    targets[9, 0] = -1
    return tokens, targets


def make_optimizer(model, settings):
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() > 1],
               "weight_decay": settings["weight_decay"]},
              {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings["learning_rate"], eps=settings["epsilon"],
                             betas=(settings["beta1"], settings["beta2"]))


def make_schedule(optimizer, rate):
    """A linear warm-up that ends at `rate` in step WARMUP, then a cosine down to its fraction."""
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0 / WARMUP, 1.0, WARMUP - 1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS - WARMUP,
                                                        FINAL_FRACTION * rate)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [WARMUP - 1])


def train(model, tokens, targets, settings):
    """Yields the learning rate, loss and gradient norm of each step after it was taken."""
    optimizer = make_optimizer(model, settings)
    schedule = make_schedule(optimizer, settings["learning_rate"])
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = model(input_ids=torch.from_numpy(tokens[step]).long(), use_cache=False).logits
        flat = logits.double().reshape(-1, logits.shape[-1])
        expected = torch.from_numpy(targets[step]).long().reshape(-1).clamp(min=-1)
        loss = torch.nn.functional.cross_entropy(flat, expected, ignore_index=-1)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings["max_norm"])
        rate = schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()
        yield rate, loss.item(), norm.item()


def snapshot(model, prefix):
    return [(f"{prefix}:{name}", parameter.detach().numpy().astype(np.float32))
            for name, parameter in sorted(model.named_parameters())]


def make_golden(path, settings, optimizer, model):
    model = model.eval()
    llama.fill_weights(model)
    model = model.double()
    optimizer = as_floats(optimizer)
    tokens, targets = make_batches(settings["vocabulary"])
    weights = snapshot(model, "weight")
    curves = []
    for number, figures in enumerate(train(model, tokens, targets, optimizer), start=1):
        curves.append(figures)
        if number in SNAPSHOTS:
            weights += snapshot(model, f"step{number}")
    rates, losses, norms = (np.array(curve, dtype=np.float32) for curve in zip(*curves))
    clipped = int(np.sum(norms > optimizer["max_norm"]))
    assert STEPS // 4 <= clipped <= 3 * STEPS // 4, f"{clipped} steps clipped: choose max_norm anew"
    assert np.all(np.abs(norms / optimizer["max_norm"] - 1.0) > 1e-3), "a norm is at the bound"
    values = {**settings, **optimizer, "batch": BATCH, "sequence_length": SEQUENCE_LENGTH,
              "steps": STEPS, "warmup": WARMUP, "final_fraction": FINAL_FRACTION}
    curves = [("learning_rates", rates), ("losses", losses), ("gradient_norms", norms)]
    llama.write_golden(path, values, [("tokens", tokens), ("targets", targets)] + curves + weights)
    print(f"{path.name}: loss {losses[0]:.6f} to {losses[-1]:.6f}, norms {norms.min():.3f} to "
          f"{norms.max():.3f}, {clipped} of {STEPS} steps clipped, {path.stat().st_size} bytes, "
          f"torch {torch.__version__}, transformers {transformers.__version__}")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    make_golden(llama.FOLDER / "llama_adamw.golden", *make_llama())
    make_golden(llama.FOLDER / "qwen3_adamw.golden", *make_qwen3())


if __name__ == "__main__":
    main()

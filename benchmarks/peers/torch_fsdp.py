#!/usr/bin/env python3
"""Runs torch_llama.py on several GPUs of one host: PyTorch's FSDP2 (fully_shard), and torchao's float8
with weights gathered in FP8. Measures the same as train_step with several ranks.

    torchrun --nproc-per-node 2 benchmarks/peers/torch_fsdp.py --precision fp8-tensorwise \\
      --micro-batches 4 [--zero 3]

Without --zero 3, weights are kept between the micro-batches of a step and gradients are reduced once,
after the last: the fastest mode of FSDP2. Rank 0 prints; tokens/s are those of all ranks.
"""
import functools
import os
import sys

import torch
import torch.distributed
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import torch_llama


class Whole(nn.Module):
    """The model and its loss as one module, so that FSDP's root contains embedding, norm and head."""

    def __init__(self, llama):
        super().__init__()
        self.llama = llama
        self.loss = torch.compile(llama.loss)

    def forward(self, tokens, targets, cosine, sine):
        return self.loss(self.llama(tokens, cosine, sine), targets)


class Trainer:
    def __init__(self, options, gathers_again):
        config = torch_llama.MODELS[options.model]
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            llama = torch_llama.Llama(config)
        torch.set_default_dtype(torch.float32)
        torch_llama.initialize(llama, config)
        self.is_fp8 = options.precision != "bf16"
        if self.is_fp8:
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training
            convert_to_float8_training(
                llama.blocks, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for block in llama.blocks:
            block.compile()
            fully_shard(block, mp_policy=policy, reshard_after_forward=gathers_again)
        self.gathers_again = gathers_again
        self.model = Whole(llama)
        fully_shard(self.model, mp_policy=policy, reshard_after_forward=False)
        self.cosine, self.sine = torch_llama.rope_table(config, options.seq_len)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=torch_llama.LEARNING_RATE,
                                           betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        torch.manual_seed(1 + torch.distributed.get_rank())
        shape = (2, options.micro_batches, options.batch, options.seq_len)
        self.tokens, self.targets = torch.randint(0, config.vocabulary, shape, device="cuda")

    def step(self):
        total = torch.zeros((), device="cuda")
        for i, (tokens, targets) in enumerate(zip(self.tokens, self.targets)):
            is_last = i == len(self.tokens) - 1
            if not self.gathers_again:
                self.model.set_requires_gradient_sync(is_last)
                self.model.set_reshard_after_backward(is_last)
            loss = self.model(tokens, targets, self.cosine, self.sine) / len(self.tokens)
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.is_fp8:
            from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp
            precompute_float8_dynamic_scale_for_fsdp(self.model)
        return total


def main():
    gathers_again = False
    if "--zero" in sys.argv:
        place = sys.argv.index("--zero")
        if sys.argv[place + 1:place + 2] not in (["2"], ["3"]):
            sys.exit("--zero: FSDP2 has the stages 2 and 3")
        gathers_again = sys.argv[place + 1] == "3"
        del sys.argv[place:place + 2]
    options = torch_llama.parse_arguments(__doc__, torch_llama.MODELS)
    if options.precision == "fp8-rowwise":
        sys.exit("torchao gathers weights in float8 with tensorwise scales only")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
    ranks = torch.distributed.get_world_size()
    torch_llama.choose_attention(options.attention)
    torch.manual_seed(0)
    seconds, losses, warmup = torch_llama.measure(
        options, functools.partial(Trainer, gathers_again=gathers_again))
    if torch.distributed.get_rank() == 0:
        result = torch_llama.result_of(options, torch_llama.MODELS[options.model], seconds, losses,
                                       warmup)
        result |= {"who": "fsdp2", "ranks": ranks, "zero": 3 if gathers_again else 2,
                   "tokens_per_second": ranks * result["tokens_per_second"]}
        print(f"FSDP2 on {ranks} GPUs, ZeRO-{result['zero']}, torch {result['torch']}, torchao "
              f"{result['torchao']}; {warmup:.0f} s of compilation and warm-up")
        torch_llama.print_line(result)
        if options.json:
            torch_llama.append_json(options.json, result)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

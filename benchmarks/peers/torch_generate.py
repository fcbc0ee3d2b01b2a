#!/usr/bin/env python3
"""Measures the tokens/s at which transformers generates one sequence, in BF16 with random weights,
as generate_benchmark does for Octavo.

    benchmarks/peers/torch_generate.py [--models smollm2_135m llama3_8b] [--length 1024] [--tokens 128]
        [--ways eager compiled]

eager calls `generate` with default settings; compiled uses a cache of fixed size, for which transformers
compiles the step with torch.compile. Decoding is greedy. Prints one line per model and way: the median
of --repeats texts, without the first text of each way, during which it compiles.
"""
import argparse
import statistics
import time

import torch
import transformers

SHAPES = {
    # Source: config.json of HuggingFaceTB/SmolLM2-135M and of meta-llama/Meta-Llama-3-8B.
    "smollm2_135m": dict(num_hidden_layers=30, hidden_size=576, intermediate_size=1536, num_attention_heads=9,
                         num_key_value_heads=3, vocab_size=49152, rope_theta=100000.0, tie_word_embeddings=True),
    "llama3_8b": dict(num_hidden_layers=32, hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
                      num_key_value_heads=8, vocab_size=128256, rope_theta=500000.0, tie_word_embeddings=False),
}
WAYS = {"eager": {}, "compiled": {"cache_implementation": "static"}}


def seconds_of(model, prompt, tokens, settings):
    """Generates `tokens` tokens after the prompt."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, min_new_tokens=tokens,
                   do_sample=False, pad_token_id=0, **settings)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}\n")
    print(f"{'model':<14}{'way':<10}{'token ms':>10}{'tokens/s':>10}")
    for name in options.models:
        config = transformers.LlamaConfig(**SHAPES[name], max_position_embeddings=8192)
        with torch.device("cuda"):
            torch.set_default_dtype(torch.bfloat16)
            model = transformers.LlamaForCausalLM(config).eval()
            torch.set_default_dtype(torch.float32)
        prompt = torch.ones((1, options.length), dtype=torch.long, device="cuda")
        for way in options.ways:
            # The time of a short text is that of the prompt, for the most part: what is more is of tokens.
            few = options.tokens // 4
            seconds_of(model, prompt, options.tokens, WAYS[way])
            seconds_of(model, prompt, few, WAYS[way])
            a_token = [(seconds_of(model, prompt, options.tokens, WAYS[way]) -
                        seconds_of(model, prompt, few, WAYS[way])) / (options.tokens - few)
                       for _ in range(options.repeats)]
            middle = statistics.median(a_token)
            print(f"{name:<14}{way:<10}{middle * 1e3:>10.3f}{1 / middle:>10.1f}", flush=True)
        del model
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

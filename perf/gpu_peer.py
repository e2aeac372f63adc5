#!/usr/bin/env python3
"""transformers on the GPU, on an OPT-6.7b of random float16 weights, and what PyTorch's copy and product reach:
gpu_peer.py [--prompt N] [--context N] [--batches A,B,..]. A line of JSON; ends with 77 where there is no PyTorch."""

import argparse
import json
import sys
import time

ROUNDS = 5


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def timed(torch, action) -> float:
    """Median seconds of a few calls after one that warms up."""
    action()
    seconds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        action()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return median(seconds)


def copy_gb_per_s(torch) -> float:
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / timed(torch, lambda: target.copy_(source)) / 1e9


def matmul_tflop_per_s(torch) -> float:
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    return 2 * 8192**3 / timed(torch, lambda: a @ b) / 1e12


def passes(torch, prompt: int, context: int, batches: list[int]) -> list[dict]:
    import transformers

    config = transformers.OPTConfig(hidden_size=4096, ffn_dim=16384, num_hidden_layers=32, num_attention_heads=32,
                                    word_embed_proj_dim=4096)
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        model = transformers.OPTForCausalLM(config).eval()
    rows = []
    for batch in batches:
        tokens = torch.randint(4, 50000, (batch, context), device="cuda")
        past = model(input_ids=tokens, use_cache=True, logits_to_keep=1).past_key_values
        step = lambda: model(input_ids=tokens[:, :1], past_key_values=past, use_cache=True, logits_to_keep=1)
        rows.append({"name": f"decode {batch}", "tokens_per_s": batch / timed(torch, step)})
        del past
    tokens = torch.randint(4, 50000, (1, prompt), device="cuda")
    prefill = lambda: model(input_ids=tokens, use_cache=True, logits_to_keep=1)
    # OPT has 2048 positions and needs two more rows of its table than tokens.
    rows.append({"name": f"prefill {prompt}", "tokens_per_s": prompt / timed(torch, prefill)})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batches", default="1,8,64")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("no PyTorch here", file=sys.stderr)
        return 77
    if not torch.cuda.is_available():
        print("PyTorch sees no GPU here", file=sys.stderr)
        return 77
    torch.set_grad_enabled(False)
    figures = {"copy_gb_per_s": copy_gb_per_s(torch), "matmul_tflop_per_s": matmul_tflop_per_s(torch), "passes": []}
    try:
        batches = [int(batch) for batch in arguments.batches.split(",")]
        figures["passes"] = passes(torch, arguments.prompt, arguments.context, batches)
    except ImportError:
        print("no transformers here", file=sys.stderr)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())

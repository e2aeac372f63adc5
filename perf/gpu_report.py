#!/usr/bin/env python3
"""The raw figures of perf/gpu.sh as the page perf/results/GPU.md: gpu_report.py FOLDER GPU STATUS..."""

import json
import os
import subprocess
import sys
import time

NOT_RUN = "not run"


def read(folder: str, name: str) -> dict | None:
    path = os.path.join(folder, name + ".json")
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def verdict(value: float, target: float, most: bool = False) -> str:
    met = value <= target if most else value >= target
    return f"{'met' if met else 'missed'} ({target})"


def median(values: list[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def plain_gb_per_s(swap: dict) -> float:
    return median(swap["link"]["bytes_per_s_by_rank_and_round"][0]["plain"]) / 1e9


def link_rows(folder: str) -> list[list[str]]:
    rows = []
    for page in ("4MiB", "16MiB", "64MiB", "256MiB"):
        swap = read(folder, f"link-{page}")
        if swap is None:
            rows.append([page] + [NOT_RUN] * 5)
            continue
        fetch, link = swap["fetch_fraction"]["median"], swap["link_fraction"]["median"]
        rows.append([page, f"{plain_gb_per_s(swap):.1f}", f"{fetch:.3f}", f"{swap['gb_per_s_per_rank']['median']:.1f}",
                     f"{link:.3f}", verdict(link, 0.98)])
    return rows


def swap_rows(folder: str) -> list[list[str]]:
    rows = []
    for size, name in (("OPT-1.3b", "swap-1.3b"), ("the same, --verify-swap every", "verified"),
                       ("the same, --coded on", "coded"), ("OPT-6.7b", "swap-6.7b"), ("Llama-3.1-8B", "swap-8b"),
                       ("OPT-13b", "swap-13b")):
        swap = read(folder, name)
        if swap is None:
            rows.append([size] + [NOT_RUN] * 9)
            continue
        response, bound = swap["response_s"]["median"], swap["bound_s"]["median"]
        load, compute = swap["load_s"]["median"], swap["exec_s"]["median"]
        page = swap["page_bytes"] / 1e9 / plain_gb_per_s(swap)
        limit = (response - page) / (bound - page)  # the target: 1.05 x the bound without its page, and the page
        rows.append([size, f"{swap['shard_bytes'] / 1e9:.2f}", f"{1e3 * load:.1f}", f"{1e3 * compute:.1f}",
                     f"{1e3 * response:.1f}", f"{swap['shard_bytes'] / 1e9 / response:.1f}", f"{1e3 * bound:.1f}",
                     f"{limit:.3f}", verdict(limit, 1.05, most=True),
                     f"{1e3 * (response - compute):.1f}, {1e3 * (response - max(load, compute)):.1f}"])
    return rows


def forward_rows(folder: str, name: str = "forward", target: float = 0.85,
                 prefill: float = 0.65) -> list[list[str]]:
    forward, peer = read(folder, name), read(folder, "peer") if name == "forward" else None
    names = ["decode 1", "decode 8", "decode 64", "prefill 2048"]
    theirs = {row["name"]: row["tokens_per_s"] for row in (peer or {}).get("passes", [])}
    beside = lambda name: f"{theirs[name]:.0f}" if name in theirs else NOT_RUN
    if forward is None:
        return [[name] + [NOT_RUN] * 7 + [beside(name)] for name in names]
    rows = []
    for row, run in zip(names, forward["decode"] + [forward["prefill"]]):
        reached = {"decode 1": verdict(run["of_plain_read_with_cache"], target), "decode 64": verdict(run["of_bound"], 0.7),
                   "prefill 2048": verdict(run["of_gemm_peak"], prefill)}.get(row, "")
        rows.append([row, f"{run['tokens_per_s']:.0f}", f"{1e3 * run['pass_s']:.2f}", f"{1e6 * run['prepare_s']:.0f}, {1e6 * run['enqueue_s']:.0f}",
                     f"{run['of_plain_read_with_cache']:.3f}", f"{run['of_gemm_peak']:.3f}", f"{run['of_bound']:.3f}",
                     reached, beside(row)])
    return rows


def bounds(folder: str) -> str:
    forward, peer = read(folder, "forward"), read(folder, "peer")
    ours = (f"copy within device memory {forward['read_bytes_per_s'] / 1e9:.0f} GB/s, bytes read and written; a product of "
            f"4096 by 8192 x 8192 {forward['peak_flops_per_s'] / 1e12:.0f} TFLOP/s" if forward else f"forward: {NOT_RUN}")
    other = (f"PyTorch's: {peer['copy_gb_per_s']:.0f} GB/s, {peer['matmul_tflop_per_s']:.0f} TFLOP/s (8192 cubed)" if peer
             else f"PyTorch's: {NOT_RUN}")
    return f"Bounds of this run: {ours}. {other}.\n"


def commit() -> str:
    """REVISION, for a copy of the tree that has no history, or what git says, where there is git."""
    try:
        done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
        told = done.stdout.strip()
    except FileNotFoundError:
        told = ""
    return os.environ.get("REVISION") or told or "an unknown commit"


def main() -> None:
    folder, gpu, parts = sys.argv[1], sys.argv[2], sys.argv[3:]
    print(f"# {gpu}\n")
    print(f"Made by perf/gpu.sh on {time.strftime('%Y-%m-%d', time.gmtime())} at {commit()}; columns, bounds and targets:")
    print("perf/README.md, \"GPU\". OPT models with random weights, float16, one rank.\n")
    print("```\n" + "\n".join(parts) + "\n```\n")
    print("## Link: two OPT-1.3b, one of them resident\n")
    print(table(["page", "plain GB/s", "fetch ÷ plain", "swap GB/s", "swap ÷ plain", "target"], link_rows(folder)))
    print("## First token of a model that is gone\n")
    print(table(["model", "GB", "load ms", "compute ms", "response ms", "GB a s of response", "bound ms", "÷ bound", "target",
                 "unhidden ms: all, beyond the longer of load and compute"], swap_rows(folder)))
    print("Published, whole switches: Computron 24 GB in 1.35 s; vLLM within a process 4.1 and 11.7 GB/s a GPU.\n")
    print("## Resident models\n")
    print(bounds(folder))
    head = ["pass", "tokens/s", "ms", "host, µs: until the launch, until all is enqueued", "of copy rate, with cache", "of GEMM peak", "of bound",
            "target"]
    print("### OPT-6.7b, float16\n")
    print(table(head + ["transformers, tokens/s"], forward_rows(folder)))
    for title, name, target, prefill in (
            ("Llama-3.1-8B, bfloat16", "forward-8b", 0.85, 0.65),
            ("Qwen3-30B-A3B, 6 of its 48 layers, bfloat16", "forward-experts", 0.85, 0.5),
            ("OPT-6.7b, int8 in groups of 32, of its own bytes", "forward-int8", 0.85, 0.65),
            ("OPT-6.7b, int4 in groups of 32, of its own bytes", "forward-int4", 0.7, 0.65)):
        print(f"### {title}\n")
        print(table(head, [row[:-1] for row in forward_rows(folder, name, target, prefill)]))


if __name__ == "__main__":
    main()

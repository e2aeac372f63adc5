#!/usr/bin/env python3
"""Measures a shape with every engine in turn: measure.py SHAPE FOLDER OUT.csv.

A round runs every engine once, each in a process of its own, and begins with another one than the round before. Takes
PROGRAM, THREADS, LENGTH, TOKENS, BATCHES, ROUNDS, QUIET, RETRIES and ENGINES from the environment (run.sh says what
they are). Fails if engines of one type do not compute the same model.
"""

import csv
import glob
import json
import os
import resource
import statistics
import subprocess
import sys
import time

from engines import groups
from shapes import engines, prompts

THREADS = int(os.environ["THREADS"])
LENGTH = int(os.environ["LENGTH"])
TOKENS = int(os.environ["TOKENS"])
BATCHES = [int(batch) for batch in os.environ["BATCHES"].split()]
ROUNDS = int(os.environ["ROUNDS"])
QUIET_S = float(os.environ["QUIET"])
RETRIES = int(os.environ["RETRIES"])
LIMIT_S = float(os.environ["LIMIT"])
HERE = os.path.dirname(os.path.abspath(__file__))
READ_S = 1.0
# Beyond this many cores taken by other processes a run is made again, if there are retries left.
DISTURBED_CORES = 0.1
# Greedy tokens must agree until the reference's lead over the second best is smaller than this.
SAFE_MARGIN = 1e-3


def busy_s() -> float:
    """Seconds of all cores that were not idle, since the machine started."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def wait_for_memory(needed_bytes: float) -> None:
    """So that a run beside other people's takes nobody's memory; LIMIT_S at most."""
    until = time.monotonic() + LIMIT_S
    while available_bytes() < needed_bytes:
        if time.monotonic() > until:
            raise subprocess.TimeoutExpired("waiting for memory", LIMIT_S)
        time.sleep(1)


def available_bytes() -> float:
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(1024 * float(line.split()[1]) for line in file if line.startswith("MemAvailable"))


def own_s() -> float:
    """Seconds of cores that processes started from here have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_for_quiet() -> None:
    """Until nothing has run for a second, or QUIET_S seconds at most."""
    until = time.monotonic() + QUIET_S
    while time.monotonic() < until:
        before = busy_s()
        time.sleep(1)
        if busy_s() - before < DISTURBED_CORES:
            return


def run(command: list[str], log: str) -> tuple[str, float]:
    """Standard output, and cores that other processes took meanwhile. TimeoutExpired after LIMIT_S."""
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS), "TRANSFORMERS_OFFLINE": "1"}
    began, busy, own = time.monotonic(), busy_s(), own_s()
    with open(log, "w", encoding="utf-8") as errors:
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True,
                                 timeout=LIMIT_S, check=False)  # fmt: skip
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}, see {log}")
    return process.stdout, max(0.0, busy_s() - busy - own_s() + own) / (time.monotonic() - began)


def request(shape: str, name: str, prompt: list[int], count: int) -> str:
    body = {"model": shape, "prompt": prompt, "max_tokens": count, "ignore_eos": True, "return_token_ids": True}
    # Due at once when all lines have been read: otherwise the first prompts of a batch start without the others.
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "arrival": READ_S, "body": body})


def write_requests(path: str, shape: str, batch: int) -> None:
    """Group after group: with --max-seqs BATCH one follows the other."""
    with open(path, "w", encoding="utf-8") as file:
        for group, count in enumerate(groups(TOKENS)):
            for i, prompt in enumerate(prompts(shape, batch, group, LENGTH)):
                file.write(request(shape, f"{group} {i}", prompt, count) + "\n")


def times_of(trace: str, batch: int) -> dict:
    """A step is counted from rank 0's beginning to decide on it until rank 0 has what it gave."""
    with open(trace, encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    rows = [e["args"]["rows"] for e in events if e["name"] == "step"]
    expected = [r for count in groups(TOKENS) for r in [batch * LENGTH, *[batch] * (count - 1)]]
    assert rows == expected, f"{trace}: steps of {rows} rows, expected {expected}"
    sent = [e["ts"] / 1e6 for e in events if e["name"] == "decide and send"]
    done = [(e["ts"] + e["dur"]) / 1e6 for e in events if e["name"] == "take reports"]
    steps = [after - before for before, after in zip(sent, sent[1:] + done[-1:])]
    first, *_ = timed = range(groups(TOKENS)[0], sum(groups(TOKENS)[:2]))
    waits = [e for e in events if e["name"] == "wait for page" and e["ts"] / 1e6 > sent[first]]
    assert not waits, f"{trace}: the model was not resident, page {waits[0]['args']['page']} was waited for"
    return {"prefill_s": [steps[first], steps[-1]], "step_s": [steps[i] for i in timed[1:]]}


def tokens_of(results: str) -> list[list[int]]:
    tokens = {}
    with open(results, encoding="utf-8") as file:
        for line in map(json.loads, file):
            tokens[line["custom_id"]] = line["response"]["body"]["choices"][0]["token_ids"]
    return [tokens[f"1 {i}"] for i in range(len(tokens) // len(groups(TOKENS)))]


def computron(dtype: str, shape: str, folder: str) -> tuple[list[dict], float]:
    """The program as it is served, one rank. The larger disturbance of its runs, one a batch."""
    model, raw, measured, others = f"{folder}/{dtype}.h5", f"{folder}/computron", [], 0.0
    memory = int(1.1 * os.path.getsize(model)) + (1 << 29)
    for batch in BATCHES:
        write_requests(f"{raw}.requests", shape, batch)
        for old in glob.glob(f"{glob.escape(raw)}.results*"):  # of a run that was killed, too: it would be resumed
            os.remove(old)
        _, disturbed = run(["mpirun", "-n", "1", os.environ["PROGRAM"], "serve", "--model", f"{shape}={model}",
                            "--threads", str(THREADS), "--max-seqs", str(batch), "--device-memory", str(memory),
                            "--requests", f"{raw}.requests", "--output", f"{raw}.results", "--trace", f"{raw}.trace",
                            "--replay", "--quiet"], f"{raw}.log")  # fmt: skip
        measured.append({"batch": batch, "tokens": tokens_of(f"{raw}.results")} | times_of(f"{raw}.trace", batch))
        others = max(others, disturbed)
    return measured, others


def peer(name: str, dtype: str, shape: str, folder: str) -> tuple[list[dict], float]:
    out, others = run([sys.executable, f"{HERE}/engines.py", name, dtype, shape, folder, str(LENGTH), str(TOKENS),
                       str(THREADS), *map(str, BATCHES)], f"{folder}/{name}.log")  # fmt: skip
    return [json.loads(line) for line in out.splitlines()], others


def needed_bytes(name: str, dtype: str, folder: str) -> float:
    """Weights (this program: in the pool and on the host), caches and working memory, and 2 GiB for others."""
    copies = (2 if name == "computron" else 1) * (2 if dtype == "float32" else 1)
    return copies * os.path.getsize(f"{folder}/hf/model.safetensors") + 3 * (1 << 30)


def attempt(name: str, dtype: str, shape: str, folder: str) -> tuple[list[dict], float]:
    """Nothing, and disturbed beyond measure, if it took more than LIMIT_S."""
    try:
        wait_for_memory(needed_bytes(name, dtype, folder))
        wait_for_quiet()
        return computron(dtype, shape, folder) if name == "computron" else peer(name, dtype, shape, folder)
    except subprocess.TimeoutExpired:
        return [], float("inf")


def least_disturbed(name: str, dtype: str, shape: str, folder: str) -> tuple[list[dict], float]:
    best = attempt(name, dtype, shape, folder)
    for _ in range(RETRIES):
        if best[1] <= DISTURBED_CORES:
            break
        best = min(best, attempt(name, dtype, shape, folder), key=lambda run_: run_[1])
    return best


def leading(pairs) -> int:
    """How many at the beginning are true."""
    return next((i for i, true in enumerate(pairs) if not true), len(pairs))


def check(shape: str, tokens: dict, references: dict) -> None:
    """Says how far every engine follows transformers in float32, and fails where a float32 one leaves it too early."""
    for (name, dtype, batch), got in tokens.items():
        if batch not in references:
            continue
        reference = references[batch]
        must = [leading([margin >= SAFE_MARGIN for margin in margins]) for margins in reference["margins"]]
        agree = [leading([a == b for a, b in zip(*pair)]) for pair in zip(reference["tokens"], got)]
        print(f"measure.py: {shape}, batch {batch}: {name} {dtype} follows transformers for {sum(agree)} of "
              f"{batch * TOKENS} tokens, {sum(must)} before the first lead below {SAFE_MARGIN}",
              file=sys.stderr)  # fmt: skip
        if dtype == "float32" and name != "llama.cpp":  # whose cache is float16
            assert all(a >= m for a, m in zip(agree, must)), f"{shape}: {name} {dtype} computes another model"


def rounds(shape: str, folder: str, writer) -> None:
    wanted = os.environ["ENGINES"].split()
    candidates = [engine for engine in engines(shape) if {engine[0], ":".join(engine)} & {*wanted}]
    tokens, references = {}, {}
    for number in range(ROUNDS):
        start = number * 2 % len(candidates)
        for name, dtype in candidates[start:] + candidates[:start]:
            measured, others = least_disturbed(name, dtype, shape, folder)
            print(f"measure.py: {shape}, round {number + 1}: {name} {dtype}, others took {others:.2f} cores",
                  file=sys.stderr, flush=True)  # fmt: skip
            for one in measured:
                writer(number, name, dtype, one, others)
                tokens[name, dtype, one["batch"]] = one["tokens"]
                if "margins" in one and dtype == "float32":
                    references[one["batch"]] = one
    check(shape, tokens, references)


def rates(one: dict) -> dict:
    """Tokens a second: the faster group of prompts; decoding at the steps' lower quartile, and over all of them."""
    batch, steps = one["batch"], one["step_s"]
    return {
        "prefill_tokens_per_s": batch * LENGTH / min(one["prefill_s"]),
        "decode_tokens_per_s": batch / statistics.quantiles(steps, n=4)[0],
        "decode_tokens_per_s_all_steps": batch * len(steps) / sum(steps),
    }


def main() -> None:
    shape, folder, out = sys.argv[1:]
    with open(out, "w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)

        def write(number: int, name: str, dtype: str, one: dict, others: float) -> None:
            found = rates(one)
            if file.tell() == 0:
                lines.writerow(["shape", "batch", "engine", "type", "round", *found, "others_cores"])
            lines.writerow([shape, one["batch"], name, dtype, number + 1, *(f"{rate:.3f}" for rate in found.values()),
                            f"{others:.3f}"])  # fmt: skip
            file.flush()

        rounds(shape, folder, write)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What jobs/scaling-study.sh computes: models, requests, the long-form CSV of a study's runs, and its table.

  layers CONFIG TIMES              config.json with so many times the layers
  requests CONFIG COUNT MODELS...  COUNT requests for each model, mixed
  decode CONFIG COUNT MODEL        COUNT sequences that generate side by side
  pool SWAP.json                   device memory for three models of eight
  csv RUNS LINK COMMIT MESHES...   a row a run and metric, so far; others are compared with the first mesh
  table STUDY.csv                  as people know it: time, speed-up, efficiency, link, % of bound, check

A mesh is TPxPP, or TPxPPxN: N groups of that.
"""
import csv
import json
import math
import os
import platform
import random
import re
import statistics
import sys
import time

COLUMNS = ["study", "mesh", "ranks", "tp", "pp", "groups", "repeat", "metric", "value", "unit", "bound", "check", "host",
           "commit", "date"]
MODELS, RESIDENT = 8, 3
PROMPT, GENERATED, DECODED = 8, 4, 33
# Computron's published means (arXiv 2306.13835, table 1): OPT-13B, four A100, seconds to load a model by tp and pp.
PUBLISHED = {"1x1": 1.350, "2x1": 0.732, "4x1": 0.689, "1x2": 0.858, "1x4": 0.645, "2x2": 0.423}
PUBLISHED_HOST = "Computron, 4 x A100 (published)"


def read(path):
    with open(path) as file:
        return json.load(file)


def layers(config, times):
    made = read(config)
    made["num_hidden_layers"] *= int(times)
    print(json.dumps(made, indent=2))


def request(number, model, prompt, tokens):
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "return_token_ids": True}
    return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body})


def requests(config, count, *models):
    draw = random.Random(1)
    order = [model for model in models for _ in range(int(count))]
    draw.shuffle(order)
    vocabulary = read(config)["vocab_size"]
    for number, model in enumerate(order):
        print(request(number, model, [draw.randrange(3, vocabulary) for _ in range(PROMPT)], GENERATED))


def decode(config, count, model):
    draw = random.Random(2)
    vocabulary = read(config)["vocab_size"]
    for number in range(int(count)):
        print(request(number, model, [draw.randrange(3, vocabulary) for _ in range(PROMPT)], DECODED))


def pool(swap):
    """A shard, and as much again as a sixteenth of it or four pages for a cache, three times."""
    run = read(swap)
    page = run["page_bytes"]
    pages = math.ceil(run["shard_bytes"] / page)
    print(RESIDENT * (pages + max(4, pages // 16)) * page)


def shape(mesh):
    """tp, pp and groups."""
    sizes = [int(size) for size in mesh.split("x")]
    return sizes if len(sizes) == 3 else [*sizes, 1]


def mesh_of_a_group(mesh):
    return "x".join(mesh.split("x")[:2])


def link_rate(run, link):
    """Of a rank, bytes a second: the emulated one, or what plain copies on all ranks at once gave (medians)."""
    if link != "own":
        return float(link) * 1e9
    return min(statistics.median(rank["plain"]) for rank in run["link"]["bytes_per_s_by_rank_and_round"])


def equal_in_stages(ranks, tp):
    """Whether the tensor-parallel ranks of each stage, which follow one another, have moved the same bytes."""
    return all(rank["bytes"] == ranks[place - place % tp]["bytes"] for place, rank in enumerate(ranks))


def swap_rows(run, link, rate):
    """A row a swapped request: how long the slowest rank's link was busy; the bound: its bytes at the link's rate."""
    for repeat, one in enumerate(run["requests"], 1):
        slowest = max(one["ranks"], key=lambda rank: rank["busy_s"])
        check = "ok" if equal_in_stages(one["ranks"], run["mesh"]["tp"]) else "bytes"
        most = max(rank["bytes"] for rank in one["ranks"])
        yield repeat, "time", slowest["busy_s"], "s", most / rate, check
        yield repeat, "link", slowest["bytes"] / slowest["busy_s"] / 1e9, "GB/s", rate / 1e9, check
        yield repeat, "response", one["response_s"], "s", one["bound_s"], check


def answers(path):
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    choices = {line["custom_id"]: line["response"]["body"].get("choices") for line in lines}
    return {key: value and [choice["token_ids"] for choice in value] for key, value in choices.items()}


def check_of(run, results, base, base_mesh):
    failed = run["requests"]["total"] - run["requests"]["ok"]
    if failed:
        return f"{failed} requests failed"
    if base is None:
        return "ok"
    mine, others = answers(results), answers(base)
    different = sum(mine[key] != others.get(key) for key in mine)
    return "ok" if not different and len(mine) == len(others) else f"{different} answers differ from those of {base_mesh}"


def mixed_rows(run, rate, check, repeat):
    """The bound: a rank's link and its cores each have this much to do, whatever goes on beside it."""
    swaps = run["swaps"]
    bound = max(swaps["gb_per_s_per_rank"] * swaps["busy_s"] * 1e9 / rate, run["steps"]["compute_s"])
    yield repeat, "time", run["wall_s"], "s", bound, check
    yield repeat, "link", swaps["gb_per_s_per_rank"], "GB/s", rate / 1e9, check
    yield repeat, "throughput", run["tokens"]["generated_per_s"], "tokens/s", None, check
    yield repeat, "swaps", swaps["count"], "", MODELS, check


def decode_rows(run, check, repeat):
    """A token of every sequence: what is behind the first one. No bound: the ranks share this machine's memory."""
    step = (run["latency_s"]["mean"] - run["ttft_s"]["mean"]) / (DECODED - 1)
    yield repeat, "time", step, "s", None, check
    yield repeat, "throughput", run["requests"]["ok"] / step, "tokens/s", None, check


def rows_of(folder, name, link, base_mesh):
    study, mesh, repeat = name.split(".")
    run = read(os.path.join(folder, name + ".json"))
    if study.startswith("swap"):
        return swap_rows(run, link, link_rate(run, link))
    base = os.path.join(folder, f"{study}.{base_mesh}.{repeat}.jsonl") if study.endswith("strong") else None
    check = check_of(run, os.path.join(folder, name + ".jsonl"), base, base_mesh)
    if study.startswith("decode"):
        return decode_rows(run, check, int(repeat))
    kind = study.split("-")[1]
    rate = link_rate(read(os.path.join(folder, f"swap-{kind}.{mesh_of_a_group(mesh)}.1.json")), link)
    return mixed_rows(run, rate, check, int(repeat))


def describe_links(link):
    return "as they are" if link == "own" else f"emulated links, {link} GB/s a rank"


def machine(devices):
    """GPUs that runs had, the processor, and of a Slurm job its nodes and number."""
    gpus = sorted({re.sub(r"^cuda \d+: ", "", device) for device in devices if device.startswith("cuda")})
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    cores = f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores a node"
    nodes, job = (os.environ.get(name) for name in ("SLURM_JOB_NUM_NODES", "SLURM_JOB_ID"))
    return "; ".join(gpus + [cores] + ([f"{nodes} node{'' if nodes == '1' else 's'}, Slurm job {job}"] if job else []))


def write_csv(folder, link, commit, *meshes):
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    names = [name[:-5] for name in os.listdir(folder) if name.endswith(".json")]
    devices = {read(os.path.join(folder, name + ".json"))["device"] for name in names}
    print(f"# title: Scaling study\n# machine: {machine(devices)}\n# links: {describe_links(link)}")
    out = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    out.writeheader()

    def put(study, mesh, host, fields):
        repeat, metric, value, unit, bound, check = fields
        tp, pp, groups = shape(mesh)
        out.writerow({"study": study, "mesh": mesh, "ranks": tp * pp * groups, "tp": tp, "pp": pp, "groups": groups,
                      "repeat": repeat, "metric": metric, "value": f"{value:.6g}", "unit": unit,
                      "bound": "" if bound is None else f"{bound:.6g}", "check": check, "host": host, "commit": commit,
                      "date": date})

    def place(name):
        study, mesh, repeat = name.split(".")
        return ("swap", "mixed", "decode").index(study.split("-")[0]), study, meshes.index(mesh), int(repeat)

    for name in sorted(names, key=place):
        for fields in rows_of(folder, name, link, meshes[0]):
            put(*name.split(".")[:2], platform.node(), fields)
    swapped = {name.split(".")[1] for name in names if name.startswith("swap-strong")}
    for mesh in sorted(swapped & PUBLISHED.keys()):
        put("swap-strong", mesh, PUBLISHED_HOST, (1, "time", PUBLISHED[mesh], "s", None, ""))


def read_rows(path):
    with open(path) as file:
        comments, rest = [], []
        for line in file:
            (comments if line.startswith("#") else rest).append(line)
    return comments, list(csv.DictReader(rest))


def median_of(rows, metric, column="value"):
    values = [float(row[column]) for row in rows if row["metric"] == metric and row[column]]
    return statistics.median(values) if values else None


def table_line(mesh, cell, first, first_ranks):
    times = [float(row["value"]) for row in cell if row["metric"] == "time"]
    middle, ranks = statistics.median(times), int(cell[0]["ranks"])
    bound, rate = median_of(cell, "time", "bound"), median_of(cell, "link")
    bad = next((row["check"] for row in cell if row["check"] not in ("ok", "")), "ok")
    weak = "weak" in cell[0]["study"]
    ratio = first / middle
    more = ranks / first_ranks
    speed_up, efficiency = (ratio * more, ratio) if weak else (ratio, ratio / more)
    tp, pp, groups = shape(mesh)
    return "{:>6} {:>6} {:>4} {:>4} {:>11.5f} {:>19} {:>9.2f} {:>11.2f} {:>10} {:>11}  {}".format(
        ranks, groups, tp, pp, middle, f"{min(times):.5f}-{max(times):.5f}", speed_up, efficiency,
        "-" if rate is None else f"{rate:.3f}", "-" if bound is None else f"{100 * bound / middle:.1f}", bad)


def table(path):
    comments, rows = read_rows(path)
    print("".join(comments), end="")
    host = rows[0]["host"]
    for study in dict.fromkeys(row["study"] for row in rows):
        cells = {}
        for row in rows:
            if row["study"] == study and row["host"] == host:
                cells.setdefault(row["mesh"], []).append(row)
        base = next(iter(cells.values()))
        first, first_ranks = median_of(base, "time"), int(base[0]["ranks"])
        print(f"\n# {study}: medians of {max(int(row['repeat']) for row in rows if row['study'] == study)}"
              f" (least-most); weak: n times the work on n ranks" if "weak" in study else
              f"\n# {study}: medians of {max(int(row['repeat']) for row in rows if row['study'] == study)} (least-most)")
        print("# ranks groups   tp   pp      time s          least-most  speed-up  efficiency  link GB/s  % of bound"
              "  check")
        for mesh in sorted(cells, key=lambda m: (int(cells[m][0]["ranks"]), shape(m)[::-1])):
            print(table_line(mesh, cells[mesh], first, first_ranks))


if __name__ == "__main__":
    commands = {"layers": layers, "requests": requests, "decode": decode, "pool": pool, "csv": write_csv, "table": table}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])

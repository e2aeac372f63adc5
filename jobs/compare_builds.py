#!/usr/bin/env python3
"""Compares two builds of Computron by what people and scripts depend on.

  . jobs/mpi-env.sh; jobs/compare_builds.py OLD/computron NEW/computron

Each program converts and makes the same models and serves the same requests (completions, chats, embeddings, classes
and lines that are refused) under every policy and on several meshes, resident and swapping. Compared are the options of
every subcommand, the bytes of result lines, the paths of keys in the metrics file, the words of the status file, the
names of trace events, exit codes with what is said first, and, where both folders hold tests, the scheduler's steps in
2,300 random jobs (sched_random_test). Ends with 0 when all are equal, and otherwise with 1 and each difference. An option that
the new program need not have is named by --gone OPTION.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FAMILIES = ROOT / "tests/fixtures/families"
TRAINED = ROOT / "inputs/trained"
COMMANDS = [["serve"], ["merge"], ["convert"], ["init"], ["inspect"], ["plan"], ["postmortem"], ["workload"], ["report"],
            ["bench"], ["bench", "forward"], ["bench", "load"], ["bench", "step"], ["bench", "swap"], ["bench", "workload"], []]
# tp, pp, further options: a pool that holds every model, and one that holds about two of the small ones
ROOMY, SCARCE = ["--device-memory", "64MiB"], ["--device-memory", "2MiB", "--page-size", "128KiB", "--max-seqs", "8"]
RUNS = [(1, 1, ROOMY), (1, 1, SCARCE), (2, 1, SCARCE), (1, 2, SCARCE + ["--policy", "throughput"]),
        (2, 2, SCARCE + ["--policy", "fifo"]), (1, 2, ROOMY + ["--seed", "5", "--share-prefixes"])]
REFUSED = [["serve"], ["serve", "--model", "a=/nowhere.h5", "--requests", "/nowhere", "--output", "/tmp/o"],
           ["serve", "--policy", "best"], ["inspect", "/nowhere.h5"], ["merge", "--output", "/tmp/x", "/nowhere"],
           ["init", "/nowhere/x.h5", "--arch", "opt"], ["bench", "swap", "--tp", "0"]]


def run(command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, **options)


def options_of(program, command):
    text = run([program, *command, "--help"]).stdout
    return sorted(set(re.findall(r"(?m)^\s+(?:-\w,)?(--[a-z][a-z0-9-]*)", text)))


def requests():
    lines = (ROOT / "inputs/quickstart.jsonl").read_text().splitlines()
    body = {"model": "base", "prompt": "The", "max_tokens": 9, "logprobs": 3, "echo": True}
    more = [("/v1/completions", body), ("/v1/completions", {**body, "n": 2, "temperature": 1.2, "top_p": 0.8, "seed": 7}),
            ("/v1/completions", {**body, "prompt": ["A", "The end"], "stop": ["e"]}),
            ("/v1/completions", {"model": "nobody", "prompt": "x"}), ("/v1/completions", {**body, "max_tokens": -1}),
            ("/v1/embeddings", {"model": "bert", "input": [[101, 2023, 2003, 102], [101, 102]]}),
            ("/v1/embeddings", {"model": "bert", "input": [101, 102], "encoding_format": "base64"}),
            ("/v1/embeddings", {"model": "bert", "input": [101, 2023, 102], "dimensions": 5, "truncate_prompt_tokens": 2}),
            ("/classify", {"model": "bert", "input": [101, 7, 102, 9, 102], "token_type_ids": [0, 0, 0, 1, 1]}),
            ("/classify", {"model": "vit", "image": str(FAMILIES / "vit/image.png")})]
    lines += [json.dumps({"custom_id": f"more-{i}", "method": "POST", "url": url, "body": body})
              for i, (url, body) in enumerate(more)]
    return "\n".join(lines + ["{", '{"custom_id": "a"}', "", "[1]"]) + "\n"


def paths(value, at=""):
    """Of keys: the same for all elements of a list. Models' ids and numbered keys count as they are."""
    if isinstance(value, dict):
        return set().union({at}, *(paths(v, f"{at}/{k}") for k, v in value.items()))
    if isinstance(value, list):
        return set().union({at}, *(paths(v, at + "[]") for v in value))
    return {at}


def serve(program, folder, models, index, tp, pp, more):
    out = folder / f"results-{index}.jsonl"
    files = {name: folder / f"{name}-{index}.json" for name in ("metrics", "trace", "status")}
    done = run(["mpirun", "-n", tp * pp, program, "serve", *models, "--tp", tp, "--pp", pp, "--device", "cpu", *more,
                "--quiet", "--requests", folder / "requests.jsonl", "--output", out]
               + [part for name, file in files.items() for part in (f"--{name}", file)])
    if done.returncode != 0:
        sys.exit(f"{program}: serving on tp {tp} x pp {pp} ended with {done.returncode}:\n{done.stderr}")
    events = json.loads(files["trace"].read_text())["traceEvents"]
    return {"results": sorted(out.read_text().splitlines()),
            "metrics keys": sorted(paths(json.loads(files["metrics"].read_text()))),
            "status words": sorted(set(re.findall(r"[a-z]{3,}", files["status"].read_text()))),
            "trace names": sorted({re.sub(r"\d+", "#", event["name"]) for event in events}
                                  | {key for event in events for key in event.get("args", {})})}


def look(program, folder):
    program = pathlib.Path(program).resolve()
    found = {("options", " ".join(command)): options_of(program, command) for command in COMMANDS}
    models, inspected = [], {}
    for name, source in [(n, TRAINED / n) for n in ("base", "manual", "python", "licence")] + [
            (n, FAMILIES / n) for n in ("bert", "vit")]:
        file = folder / f"{name}.h5"
        if run([program, "convert", source, file]).returncode != 0:
            sys.exit(f"{program}: cannot convert {source}")
        models += ["--model", f"{name}={file}"]
        inspected[name] = run([program, "inspect", file.name, "--json"], cwd=folder).stdout
    found["inspect", ""] = sorted(inspected.items())
    (folder / "requests.jsonl").write_text(requests())
    for index, (tp, pp, more) in enumerate(RUNS):
        for what, value in serve(program, folder, models, index, tp, pp, more).items():
            found[what, f"tp {tp} x pp {pp} {' '.join(more)}"] = value
    # Whether a run has an event of a kind can depend on time: all runs together have them all.
    traces = [key for key in found if key[0] == "trace names"]
    found["trace names", "all runs"] = sorted(set().union(*(found.pop(key) for key in traces)))
    for command in REFUSED:
        done = run([program, *command])
        said = [line for line in done.stderr.splitlines() if "last events" not in line]
        found["refusal", " ".join(command)] = [str(done.returncode), *said[:1]]
    return found


def step_streams(program):
    test = pathlib.Path(program).resolve().parent / "sched_random_test"
    if not test.exists():
        return []
    said = run([test, "--gtest_also_run_disabled_tests", "--gtest_filter=*PrintsADigestOfEachStepStream*"]).stdout
    return re.findall(r"(?m)^step stream (?:of many models )?\d+ [0-9a-f]+$", said)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old"), parser.add_argument("new")
    parser.add_argument("--gone", action="append", default=[], help="an option that the new program need not have")
    arguments = parser.parse_args()
    streams = [step_streams(program) for program in (arguments.old, arguments.new)]
    if all(streams):
        print(f"{sum(a != b for a, b in zip(*streams))} of {len(streams[1])} step streams differ")
    else:
        print("step streams are not compared: one of the folders has no sched_random_test that prints them")
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        old, new = look(arguments.old, pathlib.Path(a)), look(arguments.new, pathlib.Path(b))
        differences = 0
        for (what, where), before in old.items():
            plain = [[str(line).replace(str(folder), "") for line in lines]
                     for folder, lines in ((a, before), (b, new[what, where]))]
            gone = [line for line in plain[0] if line not in plain[1] and line not in arguments.gone]
            come = [line for line in plain[1] if line not in plain[0]]
            if gone or come:
                differences += 1
                print(f"{what} of {where or 'computron'}:")
                for mark, lines in (("-", gone), ("+", come)):
                    for line in lines[:10]:
                        print(f"  {mark} {line[:300]}")
    print(f"{len(old)} comparisons, {differences} different")
    sys.exit(1 if differences or (all(streams) and streams[0] != streams[1]) else 0)


if __name__ == "__main__":
    main()

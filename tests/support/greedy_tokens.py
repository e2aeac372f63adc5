#!/usr/bin/env python3
"""Serves every decoder family with two builds of Computron, for two processors, say, and compares what they choose.

  greedy_tokens.py FAMILIES OUT "COMMAND" "COMMAND"

FAMILIES holds the checkpoints NAME.h5 that ctest's convert_families made; a COMMAND starts ranks of a program: "mpirun -n 2
build/release/computron". Results are kept in OUT as 0.jsonl and 1.jsonl. Tokens must be the same, but behind a choice by
less than MARGIN of the log-probability, which may fall either way. Says how many log-probabilities are the same double,
and by how much the others differ. Ends with 0 if tokens are the same, otherwise 1.
"""
import argparse
import json
import pathlib
import subprocess
import sys

MARGIN = 1e-3
TOKENS = 16
ENCODERS = ("bert", "distilbert", "roberta", "xlm-roberta", "modernbert", "vit")


def is_decoder(name):
    return "." not in name and not any(name == e or name == e + "-base" for e in ENCODERS)


def request(name, i):
    prompt = [(7 * k * k + 11 * k + 13 * i) % 100 + 4 for k in range(5 + 9 * i)]
    return {"custom_id": f"{name}.{i}", "method": "POST", "url": "/v1/completions",
            "body": {"model": name, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "logprobs": 2,
                     "ignore_eos": True}}


def serve(command, families, names, requests, output):
    for old in output.parent.glob(output.name + "*"):
        old.unlink()
    models = [word for name in names for word in ("--model", f"{name}={families / (name + '.h5')}")]
    done = subprocess.run(command.split() + ["serve", *models, "--tp", "2", "--device", "cpu", "--device-memory", "2MiB",
                                             "--page-size", "64KiB", "--requests", str(requests), "--output", str(output)],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}: ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    return {line["custom_id"]: line["response"]["body"]["choices"][0] for line in lines}


def first_difference(name, ours, theirs):
    """None, or what differs where the choice was clear."""
    for k, (a, b) in enumerate(zip(ours["token_ids"], theirs["token_ids"])):
        best = sorted(ours["logprobs"]["top_logprobs"][k].values())
        if best[-1] - best[0] < MARGIN:
            return None
        if a != b:
            return f"{name}: token {k} is {a} and {b}, best log-probabilities {best}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("commands", nargs=2)
    arguments = parser.parse_args()
    names = sorted(file.stem for file in arguments.families.glob("*.h5") if is_decoder(file.stem))
    if not names:
        sys.exit(f"no checkpoints in {arguments.families}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    requests = arguments.out / "requests.jsonl"
    requests.write_text("".join(json.dumps(request(name, i)) + "\n" for i in range(3) for name in names))
    first, second = (serve(command, arguments.families, names, requests, arguments.out / f"{i}.jsonl")
                     for i, command in enumerate(arguments.commands))
    differences = [text for name in first if (text := first_difference(name, first[name], second[name]))]
    whole = [name for name in first if first[name]["token_ids"] == second[name]["token_ids"]]
    pairs = [pair for name in whole
             for pair in zip(first[name]["logprobs"]["token_logprobs"], second[name]["logprobs"]["token_logprobs"])]
    equal = sum(a == b for a, b in pairs)
    families = {name.rsplit(".", 1)[0] for name in whole if first[name] != second[name]}
    print(f"{len(names)} families, {len(first)} requests of {TOKENS} tokens: {len(whole)} with the same tokens, "
          f"{len(differences)} that differ at a clear choice")
    print(f"log-probabilities of those: {equal} of {len(pairs)} the same, the others by at most "
          f"{max(abs(a - b) for a, b in pairs):.1e}; in all of {len(names) - len(families)} families the same")
    print(*differences, sep="\n", end="")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""Tables to request lines and result lines to tables: parquet_test.py jobs/parquet.py. Exits with 77 without pyarrow."""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    print("parquet_test: SKIPPED: no pyarrow")
    sys.exit(77)

SCRIPT = sys.argv[1]


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)


def expect(found, expected):
    if found != expected:
        sys.exit(f"found {found!r}, expected {expected!r}")


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    table = {"custom_id": ["a", None], "prompt": ["x", "y"], "stop": [["s"], None], "arrival": [0.5, None]}
    pyarrow.parquet.write_table(pyarrow.table(table), folder / "in.parquet")
    made = run("requests", folder / "in.parquet", "--model", "m", "--set", "max_tokens=4", "--output", folder / "r.jsonl")
    expect(made.returncode, 0)
    lines = [json.loads(line) for line in (folder / "r.jsonl").read_text().splitlines()]
    common = {"method": "POST", "url": "/v1/completions"}
    expect(lines, [
        {"custom_id": "a", "arrival": 0.5, "body": {"model": "m", "max_tokens": 4, "prompt": "x", "stop": ["s"]}, **common},
        {"custom_id": "row-1", "body": {"model": "m", "max_tokens": 4, "prompt": "y"}, **common}])
    refused = run("requests", folder / "in.parquet", "--output", folder / "r.jsonl")
    expect(refused.returncode, 1)
    expect("row 0: it has no column 'model'" in refused.stderr, True)

    choice = {"text": "hi", "finish_reason": "stop"}
    body = {"choices": [choice], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}
    results = [{"custom_id": "a", "response": {"status_code": 200, "body": body}, "error": None},
               {"custom_id": "v", "response": {"status_code": 200, "body": {"data": [{"embedding": [1, 0.5]}]}}},
               {"custom_id": "c", "response": None, "error": {"code": "invalid_json", "message": "m"}}]
    (folder / "out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in results))
    expect(run("results", folder / "out.jsonl", "--output", folder / "out.parquet").returncode, 0)
    rows = pyarrow.parquet.read_table(folder / "out.parquet").to_pylist()
    expect([row["custom_id"] for row in rows], ["a", "v", "c"])
    expect((rows[0]["text"], rows[0]["completion_tokens"], rows[0]["embedding"]), ("hi", 3, None))
    expect((rows[1]["embedding"], rows[2]["error_code"]), ([1, 0.5], "invalid_json"))
    (folder / "out.jsonl").write_text("no JSON\n")
    expect("line 1: " in run("results", folder / "out.jsonl", "--output", folder / "out.parquet").stderr, True)

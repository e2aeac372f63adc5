#!/usr/bin/env python3
"""Parquet tables to request lines, and result lines to Parquet tables.

  jobs/parquet.py requests prompts.parquet --model chat --output requests.jsonl [--url /v1/completions] [--set max_tokens=64]
  jobs/parquet.py results results.jsonl --output results.parquet

`requests` writes a line for each row. A column `custom_id` names the lines (else row-0, row-1, ...), `arrival` and `deadline`
belong to the line, and each other column is a field of its body, but for empty values. --set FIELD=JSON is a field that
all bodies get, unless the row has it. `results` writes a row for each line: custom_id, status, error_code, error_message,
text, finish_reason, prompt_tokens, completion_tokens, and embedding where any line has one; of several choices or inputs
the first. Needs pyarrow. Errors name the file and the row.
"""
import argparse
import json
import sys

try:
    import pyarrow
    import pyarrow.parquet
except ImportError:
    sys.exit("parquet.py: needs pyarrow (pip install pyarrow)")

LINE_FIELDS = ("custom_id", "arrival", "deadline")
ROWS_AT_ONCE = 4096


def field_of(text):
    """FIELD=JSON; what is no JSON is a text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"'{text}' is not FIELD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def line_of(row, number, args):
    fields = {name: value for name, value in row.items() if value is not None}
    body = {"model": args.model} if args.model else {}
    body.update(args.set)
    body.update({name: value for name, value in fields.items() if name not in LINE_FIELDS})
    if "model" not in body:
        raise ValueError("it has no column 'model', and --model is not given")
    line = {"custom_id": str(fields.get("custom_id", f"row-{number}")), "method": "POST", "url": args.url, "body": body}
    line.update({name: fields[name] for name in ("arrival", "deadline") if name in fields})
    return json.dumps(line, ensure_ascii=False)


def write_requests(args):
    number = 0
    with open(args.output, "w", encoding="utf-8") as out:
        for batch in pyarrow.parquet.ParquetFile(args.input).iter_batches(ROWS_AT_ONCE):
            for row in batch.to_pylist():
                try:
                    out.write(line_of(row, number, args) + "\n")
                except (TypeError, ValueError) as fault:
                    raise ValueError(f"row {number}: {fault}") from fault
                number += 1
    return number


def row_of(line):
    """A result line, of any endpoint."""
    response = line.get("response") or {}
    body = response.get("body") or {}
    error = line.get("error") or body.get("error") or {}
    choice = (body.get("choices") or [{}])[0]
    data = body.get("data") or []
    data = data[0] if data and isinstance(data[0], dict) else {}
    usage = body.get("usage") or {}
    embedding = data.get("embedding")
    return {
        "custom_id": line.get("custom_id"),
        "status": response.get("status_code"),
        "error_code": error.get("code"),
        "error_message": error.get("message"),
        "text": choice.get("text", (choice.get("message") or {}).get("content")),
        "finish_reason": choice.get("finish_reason"),
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "embedding": embedding if isinstance(embedding, list) else None,
    }


SCHEMA = [("custom_id", pyarrow.string()), ("status", pyarrow.int32()), ("error_code", pyarrow.string()),
          ("error_message", pyarrow.string()), ("text", pyarrow.string()), ("finish_reason", pyarrow.string()),
          ("prompt_tokens", pyarrow.int64()), ("completion_tokens", pyarrow.int64()),
          ("embedding", pyarrow.list_(pyarrow.float32()))]


def write_results(args):
    number, rows, schema = 0, [], pyarrow.schema(SCHEMA)
    with open(args.input, encoding="utf-8") as lines, pyarrow.parquet.ParquetWriter(args.output, schema) as out:
        def flush():
            out.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
            rows.clear()

        for text in lines:
            number += 1
            try:
                rows.append(row_of(json.loads(text)))
            except (AttributeError, ValueError) as fault:
                raise ValueError(f"line {number}: {fault}") from fault
            if len(rows) == ROWS_AT_ONCE:
                flush()
        flush()
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    requests = commands.add_parser("requests", help="a Parquet table to request lines")
    requests.add_argument("--model", help="of rows that have no column 'model'")
    requests.add_argument("--url", default="/v1/completions")
    requests.add_argument("--set", type=field_of, action="append", default=[], metavar="FIELD=VALUE")
    requests.set_defaults(run=write_requests)
    results = commands.add_parser("results", help="result lines to a Parquet table")
    results.set_defaults(run=write_results)
    for command in (requests, results):
        command.add_argument("input")
        command.add_argument("--output", required=True)
    args = parser.parse_args()
    try:
        count = args.run(args)
    except (OSError, ValueError, pyarrow.ArrowException) as fault:
        sys.exit(f"parquet.py: {args.input}: {fault}")
    print(f"{args.output}: {count} rows", file=sys.stderr)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The table, the targets and who wins, from the CSVs of measure.py: table.py CSV..."""

import csv
import statistics
import sys

from shapes import ENGINES, TITLES

CT2, LLAMA = ("ctranslate2", "float32"), ("llama.cpp", "bfloat16")
LLAMA_Q8, LLAMA_Q4 = ("llama.cpp", "q8_0"), ("llama.cpp", "q4_0")
OURS_F32, OURS_BF16 = ("computron", "float32"), ("computron", "bfloat16")
OURS_INT8, OURS_INT4 = ("computron", "int8"), ("computron", "int4")
# What of ours stands beside a type of another engine's. The others multiply codes by activations of 8 bits.
BESIDE = {"float32": OURS_F32, "bfloat16": OURS_BF16, "int8": OURS_INT8, "q8_0": OURS_INT8, "q4_0": OURS_INT4}
# The least ratio of every phase; decode's by batch where it differs, or where it alone has one.
PLAIN_TARGETS = [(OURS_BF16, CT2, 1.5), (OURS_F32, CT2, 1.0), (OURS_BF16, LLAMA, 1.0)]
DECODE_TARGETS = [
    (OURS_BF16, LLAMA, {1: 1.05}), (OURS_INT8, LLAMA_Q8, {1: 1.05, 8: 1.5}), (OURS_INT4, LLAMA_Q4, {1: 1.05, 8: 1.5}),
]  # fmt: skip
# With more than this taken by other processes in the median, no target is judged.
DISTURBED_CORES = 0.1
PHASES = {"prefill": "prefill_tokens_per_s", "decode": "decode_tokens_per_s"}

# {(shape, batch): {(engine, type): {phase: {round: rate}}}}
Rates = dict[tuple[str, int], dict[tuple[str, str], dict[str, dict[int, float]]]]


def read(paths: list[str]) -> tuple[Rates, list[float]]:
    rates, others = {}, []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for row in csv.DictReader(file):
                case = rates.setdefault((row["shape"], int(row["batch"])), {})
                phases = case.setdefault((row["engine"], row["type"]), {phase: {} for phase in PHASES})
                for phase, column in PHASES.items():
                    phases[phase][int(row["round"])] = float(row[column])
                others.append(float(row["others_cores"]))
    return rates, others


def ratio(case: dict, engine: tuple[str, str], to: tuple[str, str], phase: str) -> float | None:
    """Median over the rounds of one rate by the other of the same round."""
    if engine not in case or to not in case:
        return None
    upper, lower = case[engine][phase], case[to][phase]
    found = [upper[number] / lower[number] for number in upper.keys() & lower.keys()]
    return statistics.median(found) if found else None


def spread(by_round: dict[int, float]) -> str:
    rates = by_round.values()
    digits = 0 if min(rates) >= 100 else 1
    return f"{statistics.median(rates):.{digits}f} ({min(rates):.{digits}f}–{max(rates):.{digits}f})"


def plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def print_table(rates: Rates) -> None:
    print("| model | batch | engine | type | prefill tokens/s | decode tokens/s | prefill ÷ CTranslate2 f32 | "
          "decode ÷ CTranslate2 f32 | prefill ÷ llama.cpp bf16 | decode ÷ llama.cpp bf16 |")  # fmt: skip
    print("|---" * 10 + "|")
    for (shape, batch), case in rates.items():
        for engine in (engine for engine in ENGINES if engine in case):
            phases = case[engine]
            ratios = [plain(ratio(case, engine, to, phase)) for to in (CT2, LLAMA) for phase in PHASES]
            cells = [TITLES[shape], str(batch), *engine, *map(spread, phases.values()), *ratios]
            print(f"| {' | '.join(cells)} |")


def targets(batch: int):
    """(ours, theirs, least, of which phases)"""
    for ours, theirs, least in PLAIN_TARGETS:
        yield ours, theirs, least, [*PHASES]
    for ours, theirs, least in DECODE_TARGETS:
        if batch in least:
            yield ours, theirs, least[batch], ["decode"]


def print_targets(rates: Rates, disturbed: bool) -> None:
    print("| target | model | batch | prefill | decode | |\n|---|---|---|---|---|---|")
    for (shape, batch), case in rates.items():
        for ours, theirs, least, phases in targets(batch):
            found = {phase: ratio(case, ours, theirs, phase) for phase in PHASES}
            if None in found.values():
                continue
            missed = [phase for phase in phases if found[phase] < least]
            verdict = f"missed: {', '.join(missed)}" if missed else "met"
            verdict += ", but disturbed" if disturbed else ""
            of = "" if len(phases) == len(PHASES) else f"{phases[0]}, "
            target = f"{of}{ours[1]} ≥ {least} × {' '.join(theirs)}"
            print(f"| {target} | {TITLES[shape]} | {batch} | {plain(found['prefill'])} | {plain(found['decode'])} | "
                  f"{verdict} |")  # fmt: skip


def print_winners(rates: Rates) -> None:
    """A line for every place where another engine is faster than ours beside it."""
    lines = []
    for (shape, batch), case in rates.items():
        for engine in (engine for engine in ENGINES if engine in case and engine[0] != "computron"):
            for phase in PHASES:
                value = ratio(case, engine, BESIDE[engine[1]], phase)
                if value is not None and value > 1:
                    lines.append(f"* {TITLES[shape]}, batch {batch}, {phase}: {' '.join(engine)} wins, "
                                 f"{value:.2f} × this program's {BESIDE[engine[1]][1]}.")  # fmt: skip
    print("\n".join(lines) if lines else "Nowhere.")


def main() -> None:
    rates, others = read(sys.argv[1:])
    print_table(rates)
    print(f"\nOther processes took {statistics.median(others):.2f} cores while an engine ran (median; least "
          f"{min(others):.2f}, most {max(others):.2f}).")  # fmt: skip
    print("\n## Targets\n")
    print_targets(rates, statistics.median(others) > DISTURBED_CORES)
    print("\n## Where another one wins\n")
    print_winners(rates)


if __name__ == "__main__":
    main()

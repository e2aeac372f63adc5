#!/usr/bin/env python3
"""What int4 costs a trained model at best: its weights rounded in float64 and multiplied in float32 by PyTorch, by the
rule of `convert --dtype int4` and by others beside it (perf/README.md, "Perplexity"). Prints a table.

  perf/perplexity_bound.py [FOLDER ...]      (inputs/trained/{base,licence,manual,python})

Needs torch and transformers. A minute a folder on a quiet core.
"""

import json
import sys

import numpy
import torch
from transformers import AutoModelForCausalLM

GROUP = 32
HELD_OUT = "inputs/trained/held_out/tokens.json"
FOLDERS = [f"inputs/trained/{name}" for name in ("base", "licence", "manual", "python")]
OF_CONVERT = (8, 7.75, 7.25, 7, 8.25, 8.5, 8.75, 9)  # kInt4Divisors of base/quantise.h


def rounded(scale, dtype):
    return scale.float().to(dtype).double()


def peaks(groups):
    """The value of largest magnitude of each group, with its sign."""
    return groups.gather(-1, groups.abs().argmax(-1, keepdim=True))


def decoded(groups, scale, rounding=torch.round):
    divisor = torch.where(scale == 0, torch.ones_like(scale), scale)
    return rounding(groups / divisor).clamp(-8, 7) * scale


def by_rule(scale_dtype, rounding=torch.round):
    return lambda groups: decoded(groups, rounded(peaks(groups) / -8, scale_dtype), rounding)


def ties_up(x):
    """As llama.cpp's q4_0."""
    return torch.trunc(x + 8.5) - 8


def of_least_error(divisors):
    """Of the scales that are the peak ÷ one of these divisors the first with the least sum of squared errors."""

    def rule(groups):
        best, least = None, None
        for divisor in divisors:
            values = decoded(groups, rounded(peaks(groups) / -divisor, torch.bfloat16))
            error = ((values - groups) ** 2).sum(-1, keepdim=True)
            better = error < (error + 1 if least is None else least)
            best = values if best is None else torch.where(better, values, best)
            least = error if least is None else torch.minimum(error, least)
        return best

    return rule


RULES = {
    "convert": of_least_error(OF_CONVERT),
    "peak ÷ 5.5, 5.6, ... 9.5": of_least_error(numpy.arange(5.5, 9.6, 0.1)),
    "peak ÷ 8": by_rule(torch.bfloat16),
    "peak ÷ 8, float64 scales": by_rule(torch.float64),
    "peak ÷ 8, f16 scales": by_rule(torch.float16),
    "peak ÷ 8, f16 scales, ties up (q4_0)": by_rule(torch.float16, ties_up),
}


def losses(model, rows):
    """[rows, tokens - 1], in nats."""
    parts = []
    for batch in rows.split(16):
        logits = model(batch).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
        parts.append(loss.view(len(batch), -1))
    return torch.cat(parts).double()


def quantised(weight, rule):
    return rule(weight.double().view(len(weight), -1, GROUP)).view_as(weight).float()


def cost(more):
    """Of [rows, tokens] nats more: per cent of perplexity, and its standard error over rows."""
    by_row = more.mean(1).numpy()
    error = by_row.std(ddof=1) / numpy.sqrt(len(by_row))
    return f"+{numpy.expm1(more.mean().item()) * 100:.2f} ± {error * 100:.2f}"


def main() -> None:
    torch.set_grad_enabled(False)
    with open(HELD_OUT, encoding="utf-8") as file:
        rows = torch.tensor([row for kind in json.load(file).values() for row in kind])
    print(f"| model | float32 | {' | '.join(f'{rule} %' for rule in RULES)} |\n|---|---|{'---|' * len(RULES)}")
    for folder in sys.argv[1:] or FOLDERS:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        plain = losses(model, rows)
        weights = [p for name, p in model.named_parameters() if name.endswith("_proj.weight")]
        originals = [weight.clone() for weight in weights]
        cells = []
        for rule in RULES.values():
            for weight, original in zip(weights, originals):
                weight.copy_(quantised(original, rule))
            cells.append(cost(losses(model, rows) - plain))
        print(f"| {folder.split('/')[-1]} | {plain.mean().exp():.3f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

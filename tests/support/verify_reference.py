#!/usr/bin/env python3
"""Holds the reference model of the tests against transformers' OPTForCausalLM (float32, CPU).

For developers, after a change of reference_model.cpp; no test needs it. In a virtual environment with torch,
transformers, h5py and numpy:

    ninja -C BUILD dump_logits computron
    BUILD/computron init /tmp/tiny.h5 --config CONFIG.json --seed 1
    python tests/support/verify_reference.py BUILD/dump_logits /tmp/tiny.h5 [--tokens 40]

Builds the transformers model with the weights of the Computron checkpoint and compares the logits at every position.
Exits with 1 if the largest difference exceeds 1e-4 times the largest logit, or if fewer than all of the top-1 tokens
whose margin exceeds 1e-3 agree.
"""

import argparse
import json
import subprocess
import sys

import h5py
import numpy
import torch
from transformers import OPTConfig, OPTForCausalLM

PARTS = {
    "self_attn_layer_norm": "attention_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.out_proj": "attention.output",
    "final_layer_norm": "mlp_norm",
    "fc1": "mlp.up",
    "fc2": "mlp.down",
}


def canonical_name(name: str) -> str:
    """Our name of a tensor that transformers calls `name`."""
    name = name.removeprefix("model.decoder.")
    if name.startswith("layers."):
        _, number, rest = name.split(".", 2)
        part, kind = rest.rsplit(".", 1)
        return f"layers.{number}.{PARTS[part]}.{kind}"
    return {
        "embed_tokens.weight": "embedding.tokens.weight",
        "embed_positions.weight": "embedding.positions.weight",
        "final_layer_norm.weight": "final_norm.weight",
        "final_layer_norm.bias": "final_norm.bias",
        "lm_head.weight": "embedding.tokens.weight",  # tied
    }[name]


def opt_config(ours: dict) -> OPTConfig:
    return OPTConfig(
        vocab_size=ours["vocab"],
        hidden_size=ours["hidden"],
        word_embed_proj_dim=ours["hidden"],
        num_hidden_layers=ours["layers"],
        ffn_dim=ours["ffn"],
        num_attention_heads=ours["heads"],
        max_position_embeddings=ours["max_positions"],
        do_layer_norm_before=ours["norm_position"] == "pre",
        dropout=0.0,
        attn_implementation="eager",
    )


def load(path: str) -> OPTForCausalLM:
    with h5py.File(path, "r") as file:
        text = file.attrs["config"]
        model = OPTForCausalLM(opt_config(json.loads(text)))
        state = {}
        for name, parameter in model.state_dict().items():
            stored = file["tensors"][canonical_name(name)]
            values = numpy.asarray(stored[...], dtype=numpy.float32)
            if stored.attrs.get("transposed", 0):
                values = values.T
            assert values.shape == tuple(parameter.shape), f"{name}: {values.shape}, not {tuple(parameter.shape)}"
            state[name] = torch.from_numpy(numpy.ascontiguousarray(values))
    model.load_state_dict(state)
    return model.float().eval()


def main() -> int:
    parser = argparse.ArgumentParser(description="Holds the reference model of the tests against transformers.")
    parser.add_argument("dump_logits")
    parser.add_argument("checkpoint")
    parser.add_argument("--tokens", type=int, default=40)
    arguments = parser.parse_args()

    model = load(arguments.checkpoint)
    tokens = numpy.random.default_rng(1).integers(0, model.config.vocab_size, arguments.tokens)
    with torch.no_grad():
        theirs = model(torch.from_numpy(tokens)[None]).logits[0].double().numpy()
    text = subprocess.run(
        [arguments.dump_logits, arguments.checkpoint, *map(str, tokens)], check=True, capture_output=True, text=True
    ).stdout
    ours = numpy.loadtxt(text.splitlines(), ndmin=2)

    difference = numpy.abs(ours - theirs).max()
    largest = numpy.abs(theirs).max()
    ranked = numpy.sort(ours, axis=1)
    clear = ranked[:, -1] - ranked[:, -2] > 1e-3
    agree = ours.argmax(axis=1) == theirs.argmax(axis=1)
    print(f"{len(tokens)} positions: largest difference {difference:.2e} (largest logit {largest:.2f}); "
          f"top-1 agrees at {agree[clear].sum()} of {clear.sum()} clear positions")
    return 0 if difference <= 1e-4 * largest and agree[clear].all() else 1


if __name__ == "__main__":
    sys.exit(main())

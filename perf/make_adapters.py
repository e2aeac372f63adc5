#!/usr/bin/env python3
"""Makes Hugging Face folders of LoRA adapters for a Llama, as PEFT saves them: make_adapters.py CONFIG RANK FOLDER...

CONFIG: the model's config.json. Matrices of attention and MLP of every layer, bfloat16, small random values, other ones
in each folder. Needs nothing but Python itself.
"""

import json
import os
import random
import struct
import sys


def tensors(config: dict, rank: int) -> dict[str, list[int]]:
    """Shapes by name, as PEFT stores them."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    linear = {"self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
              "self_attn.o_proj": (hidden, queries), "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden),
              "mlp.down_proj": (hidden, ffn)}
    shapes = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (out, inner) in linear.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}.lora_"
            shapes |= {prefix + "A.weight": [rank, inner], prefix + "B.weight": [out, rank]}
    return shapes


def write(folder: str, shapes: dict[str, list[int]], rank: int, seed: int) -> None:
    os.makedirs(folder, exist_ok=True)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "lora_dropout": 0.0,
                "target_modules": sorted({name.split(".")[-3] for name in shapes})}
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump(settings, file)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in sorted(shapes.items()):
        begin, end = end, end + 2 * shape[0] * shape[1]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    noise = bytearray(random.Random(seed).randbytes(end))
    noise[1::2] = bytes(value & 0x80 | 0x3C for value in noise[1::2])  # ±0.008 to ±0.03
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + noise)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        config = json.load(file)
    rank = int(sys.argv[2])
    shapes = tensors(config, rank)
    for seed, folder in enumerate(sys.argv[3:]):
        write(folder, shapes, rank, seed)


main()

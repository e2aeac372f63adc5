#!/usr/bin/env python3
"""Makes a Hugging Face folder of an OPT model: make_folder.py FOLDER HIDDEN LAYERS DTYPE [sparse].

DTYPE: F32, F16 or BF16. Two shards and their index. sparse: all zeros, files that take no room. Needs nothing but Python itself. The values are the same
random MiB over and over, without infinities and NaN; how fast files are converted does not depend on them.
"""

import json
import os
import random
import struct
import sys

BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def tensors(hidden: int, layers: int) -> dict[str, list[int]]:
    """Shapes by name, as transformers' OPTForCausalLM stores them."""
    vocab, positions, ffn = 50272, 2050, 4 * hidden
    shapes = {"model.decoder.embed_tokens.weight": [vocab, hidden], "model.decoder.embed_positions.weight": [positions, hidden]}
    linear = {"self_attn.k_proj": [hidden, hidden], "self_attn.v_proj": [hidden, hidden],
              "self_attn.q_proj": [hidden, hidden], "self_attn.out_proj": [hidden, hidden],
              "fc1": [ffn, hidden], "fc2": [hidden, ffn]}
    norms = [f"model.decoder.layers.{i}.{norm}" for i in range(layers) for norm in ("self_attn_layer_norm", "final_layer_norm")]
    for norm in [*norms, "model.decoder.final_layer_norm"]:
        shapes |= {f"{norm}.weight": [hidden], f"{norm}.bias": [hidden]}
    for i in range(layers):
        for name, shape in linear.items():
            shapes |= {f"model.decoder.layers.{i}.{name}.weight": shape, f"model.decoder.layers.{i}.{name}.bias": shape[:1]}
    return shapes


def size(shape: list[int], dtype: str) -> int:
    count = BYTES[dtype]
    for extent in shape:
        count *= extent
    return count


def values(dtype: str) -> bytes:
    """A MiB of elements whose exponents are small."""
    noise = bytearray(random.Random(1).randbytes(1 << 20))
    for i in range(BYTES[dtype] - 1, len(noise), BYTES[dtype]):
        noise[i] &= 0xBF
    return bytes(noise)


def write_file(path: str, shapes: dict[str, list[int]], dtype: str, sparse: bool) -> None:
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in sorted(shapes.items()):
        begin, end = end, end + size(shape, dtype)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    piece = values(dtype)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if sparse:
            file.truncate(file.tell() + end)
        while end > 0 and not sparse:
            file.write(piece[:end])
            end -= min(end, len(piece))


def main() -> None:
    folder, hidden, layers, dtype = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    os.makedirs(folder, exist_ok=True)
    shapes = tensors(hidden, layers)
    shards, total, at = ({}, {}), sum(size(shape, dtype) for shape in shapes.values()), 0
    for name, shape in shapes.items():
        shards[2 * at >= total][name] = shape
        at += size(shape, dtype)
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name, shard in zip(names, shards):
        write_file(f"{folder}/{name}", shard, dtype, sparse="sparse" in sys.argv[5:])
    weight_map = {tensor: name for name, shard in zip(names, shards) for tensor in shard}
    with open(f"{folder}/model.safetensors.index.json", "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file)
    config = {"model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": hidden, "word_embed_proj_dim": hidden,
              "num_hidden_layers": layers, "num_attention_heads": hidden // 64, "ffn_dim": 4 * hidden}
    with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)


if __name__ == "__main__":
    main()

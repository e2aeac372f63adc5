#!/usr/bin/env python3
"""Makes a random model of a shape and what each engine reads: make_models.py SHAPE FOLDER PROGRAM.

FOLDER gets hf/ (bfloat16), the same weights as float32.h5, bfloat16.h5, int8.h5, int4.h5, ctranslate2/ and, but for OPT,
float32.gguf, bfloat16.gguf, q8_0.gguf and q4_0.gguf. CTranslate2 keeps bfloat16 and makes float32 and int8 of it when it
loads; every weight is one that bfloat16 holds exactly, so all engines of one plain type have the same. Of codes ours are in
groups of 32, as llama.cpp's are, and the head is quantised with the rest, as its `--pure` does. What is already there is
kept.
"""

import json
import os
import subprocess
import sys

import gguf
import numpy
import torch
import transformers
from ctranslate2.converters import TransformersConverter
from safetensors import safe_open
from safetensors.torch import save_file

from shapes import CONFIGS


def parameter(name: str, shape: torch.Size) -> torch.Tensor:
    """Deviation 0.02 as transformers initialises; biases and norms random too, so that losing one shows."""
    if len(shape) == 1 and name.endswith("weight"):
        return 1 + 0.1 * torch.randn(shape)
    return 0.02 * torch.randn(shape)


def make_folder(shape: str, folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    config = CONFIGS[shape] | {"dtype": "bfloat16"}
    with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    torch.manual_seed(1)
    tensors = {name: parameter(name, tensor.shape).bfloat16() for name, tensor in model.named_parameters()}
    save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})


class Vocabulary:
    """In place of a tokenizer: the token of id 7 is "7"."""

    bos_token, eos_token, unk_token = "1", "2", "0"

    def __init__(self, size: int):
        self.size = size

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in range(self.size)}

    def __len__(self) -> int:
        return self.size


class Converter(TransformersConverter):
    def load_tokenizer(self, tokenizer_class, model_name_or_path, **kwargs):
        del tokenizer_class, kwargs
        with open(f"{model_name_or_path}/config.json", encoding="utf-8") as file:
            return Vocabulary(json.load(file)["vocab_size"])


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp rotates neighbours, transformers the halves of a head: rows of q and k are put in its order."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


LLAMA_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "model.layers.": "blk.",
}  # fmt: skip
GPT2_NAMES = {
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "transformer.h.": "blk.",
}  # fmt: skip


def gguf_tensor(shape: str, name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    config = CONFIGS[shape]
    if shape == "gpt2" and any(part in name for part in ("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        tensor = tensor.T  # stored [in, out]
    if name.endswith("q_proj.weight"):
        tensor = interleaved(tensor, config["num_attention_heads"])
    if name.endswith("k_proj.weight"):
        tensor = interleaved(tensor, config["num_key_value_heads"])
    for theirs, ours in (GPT2_NAMES if shape == "gpt2" else LLAMA_NAMES).items():
        name = name.replace(theirs, ours)
    return name, tensor


def gguf_header(shape: str, path: str) -> gguf.GGUFWriter:
    config, writer = CONFIGS[shape], gguf.GGUFWriter(path, shape)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    if shape == "gpt2":
        writer.add_context_length(config["n_positions"])
        writer.add_embedding_length(config["n_embd"])
        writer.add_block_count(config["n_layer"])
        writer.add_feed_forward_length(4 * config["n_embd"])
        writer.add_head_count(config["n_head"])
        writer.add_layer_norm_eps(1e-5)
        return writer
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    return writer


GGUF_TYPES = {
    "float32": gguf.GGMLQuantizationType.F32,
    "bfloat16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}


def write_gguf(shape: str, folder: str, dtype: str) -> None:
    """As llama.cpp's own converter: matrices in `dtype`, vectors and positions in float32."""
    path = f"{folder}/{dtype}.gguf"
    writer = gguf_header(shape, f"{path}.partial")
    with safe_open(f"{folder}/hf/model.safetensors", "pt") as file:
        for key in file.keys():
            name, tensor = gguf_tensor(shape, key, file.get_tensor(key))
            of = GGUF_TYPES["float32" if tensor.dim() == 1 or name == "position_embd.weight" else dtype]
            data = numpy.ascontiguousarray(tensor.float().numpy())
            writer.add_tensor(name, gguf.quants.quantize(data, of), raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(f"{path}.partial", path)


OUR_TYPES = {
    "float32": ["f32"],
    "bfloat16": ["bf16"],
    "int8": ["int8", "--quantize-head"],
    "int4": ["int4", "--quantize-head"],
}


def main() -> None:
    shape, folder, program = sys.argv[1:]
    hf = f"{folder}/hf"
    if not os.path.exists(f"{hf}/model.safetensors"):
        make_folder(shape, hf)
    for dtype, options in OUR_TYPES.items():
        if not os.path.exists(f"{folder}/{dtype}.h5"):
            subprocess.run([program, "convert", hf, f"{folder}/{dtype}.h5", "--dtype", *options], check=True)
    if not os.path.exists(f"{folder}/ctranslate2/model.bin"):
        Converter(hf, low_cpu_mem_usage=True).convert(f"{folder}/ctranslate2", quantization="bfloat16", force=True)
    for dtype in GGUF_TYPES if shape != "opt" else []:
        if not os.path.exists(f"{folder}/{dtype}.gguf"):
            write_gguf(shape, folder, dtype)


if __name__ == "__main__":
    main()

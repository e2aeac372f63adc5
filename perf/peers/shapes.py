"""What is measured: shapes of models, prompts, and who computes which of them in which type."""

import random

# As transformers' configurations have them. Weights are random; GPT-2 small, Llama 3.2 1B without the scaling of its
# rotary embedding, and OPT-1.3b.
CONFIGS = {
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_positions": 1024,
        "n_embd": 768, "n_layer": 12, "n_head": 12,
    },
    "llama": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256,
        "max_position_embeddings": 8192, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "tie_word_embeddings": True,
    },
    "opt": {
        "model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": 50272, "max_position_embeddings": 2048,
        "hidden_size": 2048, "word_embed_proj_dim": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
        "ffn_dim": 8192, "do_layer_norm_before": True, "activation_function": "relu",
    },
}  # fmt: skip
TITLES = {"gpt2": "GPT-2 small", "llama": "Llama 3.2 1B", "opt": "OPT-1.3b"}

# In the order of the tables. The first of CTranslate2 and the second of llama.cpp are what the targets name.
ENGINES = [
    ("computron", "float32"), ("computron", "bfloat16"), ("computron", "int8"), ("computron", "int4"),
    ("ctranslate2", "float32"), ("ctranslate2", "int8"),
    ("llama.cpp", "float32"), ("llama.cpp", "bfloat16"), ("llama.cpp", "q8_0"), ("llama.cpp", "q4_0"),
    ("transformers", "float32"), ("transformers", "bfloat16"),
]  # fmt: skip


def engines(shape: str) -> list[tuple[str, str]]:
    """llama.cpp has no OPT."""
    return [engine for engine in ENGINES if engine[0] != "llama.cpp" or shape != "opt"]


def prompts(shape: str, batch: int, group: int, length: int) -> list[list[int]]:
    """`batch` prompts of `length` random tokens; group 0 warms up. No two groups have a prompt in common."""
    draw = random.Random(f"{shape} {batch} {group}")
    return [[draw.randrange(3, CONFIGS[shape]["vocab_size"]) for _ in range(length)] for _ in range(batch)]

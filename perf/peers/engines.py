#!/usr/bin/env python3
"""Measures another engine in a process of its own: engines.py ENGINE TYPE SHAPE FOLDER LENGTH TOKENS THREADS BATCH...

Of each batch a few tokens are generated greedily to warm up, then TOKENS, then the first token of other prompts.
Prints a line of JSON a batch: {batch, prefill_s: [], step_s: [], tokens}, prefill_s to the first token of each group of
prompts, step_s from token to token. Where the engine is transformers, `margins` too: by how much the token drawn led
the next.
"""

import json
import sys
import time

from shapes import CONFIGS, prompts

# Groups of prompts, and tokens generated of each: warm-up, timed, prompts only.
WARM_UP_TOKENS = 4


def groups(tokens: int) -> list[int]:
    return [WARM_UP_TOKENS, tokens, 1]



class Transformers:
    """Its own generate() does the same around these calls, and more."""

    def __init__(self, dtype: str, shape: str, folder: str, threads: int):
        import torch
        import transformers

        del shape
        self.torch = torch
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.model = load(f"{folder}/hf", dtype=getattr(torch, dtype)).eval()

    def generate(self, batch: list[list[int]], count: int) -> dict:
        inputs, past, tokens, margins, times = self.torch.tensor(batch), None, [], [], [time.perf_counter()]
        for _ in range(count):
            out = self.model(input_ids=inputs, past_key_values=past, use_cache=True, logits_to_keep=1)
            past, best = out.past_key_values, out.logits[:, -1].topk(2)
            inputs = best.indices[:, :1]
            tokens.append(inputs[:, 0].tolist())
            times.append(time.perf_counter())
            margins.append((best.values[:, 0] - best.values[:, 1]).tolist())
        return measured(times, tokens) | {"margins": turned(margins)}


class CTranslate2:
    def __init__(self, dtype: str, shape: str, folder: str, threads: int):
        import ctranslate2

        del shape
        self.generator = ctranslate2.Generator(f"{folder}/ctranslate2", compute_type=dtype, intra_threads=threads)

    def generate(self, batch: list[list[int]], count: int) -> dict:
        tokens, times = [[0] * len(batch) for _ in range(count)], [time.perf_counter()] + [0.0] * count

        def drawn(result) -> bool:
            tokens[result.step][result.batch_id] = result.token_id
            times[1 + result.step] = time.perf_counter()
            return False

        words = [[str(token) for token in prompt] for prompt in batch]
        self.generator.generate_batch(words, max_length=count, min_length=count, beam_size=1, sampling_topk=1,
                                      include_prompt_in_result=False, callback=drawn)  # fmt: skip
        return measured(times, tokens)


class LlamaCpp:
    """Every sequence has a cache of its own, as its server has by default; the cache is float16, its default."""

    def __init__(self, dtype: str, shape: str, folder: str, threads: int):
        import llama_cpp
        import numpy

        self.numpy, self.api, self.threads = numpy, llama_cpp, threads
        self.vocabulary = CONFIGS[shape]["vocab_size"]
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.quiet, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(f"{folder}/{dtype}.gguf".encode(), params)
        assert self.model, f"{folder}/{dtype}.gguf: llama.cpp does not load it"

    def context(self, sequences: int, length: int):
        params = self.api.llama_context_default_params()
        params.n_ctx = sequences * ((length + 255) // 256 * 256)
        params.n_seq_max = sequences
        params.n_batch = max(params.n_batch, sequences * length)
        params.n_threads = params.n_threads_batch = self.threads
        context = self.api.llama_init_from_model(self.model, params)
        assert context, "llama.cpp makes no context"
        return context

    def decode(self, context, work, inputs: list[list[int]], at: int) -> list[int]:
        """Computes the tokens of every sequence from position `at` on; the best token after each sequence."""
        last, n = [], 0
        for sequence, tokens in enumerate(inputs):
            for offset, token in enumerate(tokens):
                work.token[n], work.pos[n], work.n_seq_id[n], work.seq_id[n][0] = token, at + offset, 1, sequence
                work.logits[n] = offset + 1 == len(tokens)
                n += 1
            last.append(n - 1)
        work.n_tokens = n
        assert self.api.llama_decode(context, work) == 0, "llama.cpp: llama_decode failed"
        return [self.best(context, i) for i in last]

    def best(self, context, i: int) -> int:
        logits = self.api.llama_get_logits_ith(context, i)
        return int(self.numpy.ctypeslib.as_array(logits, shape=(self.vocabulary,)).argmax())

    def generate(self, batch: list[list[int]], count: int) -> dict:
        length = len(batch[0])
        context = self.context(len(batch), length + count)
        work = self.api.llama_batch_init(len(batch) * length, 0, 1)
        inputs, at, tokens, times = batch, 0, [], [time.perf_counter()]
        for _ in range(count):
            best = self.decode(context, work, inputs, at)
            at += len(inputs[0])
            inputs = [[token] for token in best]
            tokens.append(best)
            times.append(time.perf_counter())
        self.api.llama_batch_free(work)
        self.api.llama_free(context)
        return measured(times, tokens)


def turned(rows: list[list]) -> list[list]:
    """[step][sequence] to [sequence][step]."""
    return [list(column) for column in zip(*rows)]


def measured(times: list[float], tokens: list[list[int]]) -> dict:
    steps = [after - before for before, after in zip(times, times[1:])]
    return {"prefill_s": steps[:1], "step_s": steps[1:], "tokens": turned(tokens)}


def generate_all(engine, shape: str, batch: int, length: int, tokens: int) -> dict:
    _, timed, more = [
        engine.generate(prompts(shape, batch, group, length), count) for group, count in enumerate(groups(tokens))
    ]
    timed["prefill_s"] += more["prefill_s"]
    return timed


ENGINES = {"transformers": Transformers, "ctranslate2": CTranslate2, "llama.cpp": LlamaCpp}


def main() -> None:
    name, dtype, shape, folder = sys.argv[1:5]
    length, count, threads, *batches = map(int, sys.argv[5:])
    engine = ENGINES[name](dtype, shape, folder, threads)
    for batch in batches:
        print(json.dumps({"batch": batch} | generate_all(engine, shape, batch, length, count)), flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Trains the four tiny models of inputs/trained: make_trained.py WORK [--steps N].

A base is trained on manual pages, Python code and licences together, and three variants of it on one kind each. All
text is what Debian packages put on a machine; README.md in inputs/trained names them. WORK keeps rendered pages and
checkpoints, so that a run that was cut off goes on where it was. Needs torch, transformers, tokenizers and man-db.
Random numbers are seeded: the same texts and libraries give the same models, but for what the CPU's kernels round.
"""

import argparse
import collections
import concurrent.futures
import ctypes
import glob
import gzip
import hashlib
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import textwrap
import time

import numpy
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn import functional

KINDS = ("manual", "python", "licence")
MANUAL_PACKAGES = ("manpages", "manpages-dev")
PYTHON_FOLDER = "/usr/lib/python3.11"
# Tables, texts and other people's packages rather than code of the library itself.
NOT_PYTHON = ("test", "tests", "encodings", "pydoc_data", "dist-packages", "site-packages", "__pycache__")
LICENCE_FOLDER = "/usr/share/common-licenses"
JOINTS = frozenset("a all and any are as at be but by for from have if in is it may must not of on or other shall such "
                   "that the these this to under use which will with without you your".split())  # fmt: skip
PARAGRAPH_REPEATS = 3  # licences are copied from package to package; of a paragraph no more copies than this are kept
HELD_OUT_SHARE = 40  # one file in so many is never trained on; of licences single paragraphs
HELD_OUT_CHARACTERS = 24_000  # of a kind, at most
HELD_OUT_CHARACTERS_A_FILE = 3_000
HELD_OUT_ROWS = 16

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trained")
END = "<|endoftext|>"  # ends a text, and begins every context
VOCABULARY = 2048
CONTEXT = 256
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SHAPE = {
    "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "hidden_size": 128, "intermediate_size": 384,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": True,
    "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.02,
}  # fmt: skip

BATCH = 16  # rows of CONTEXT tokens
MATRIX_RATE, OTHER_RATE = 0.02, 5e-3  # of Muon, and of AdamW for the embedding and the norms
VARIANT_RATE = 0.5  # of the base's
STEPS = 900
VARIANT_STEPS = 5  # a variant takes one for so many of the base's steps
SEED = 20230911


# Texts


def digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def files_of(package: str) -> list[str]:
    listed = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=False)
    if listed.returncode:
        sys.exit(f"make_trained.py: package {package} is not installed: apt-get install {package}")
    return [name for name in listed.stdout.split("\n") if os.path.isfile(name) and not os.path.islink(name)]


def rendered(page: str) -> str:
    """A manual page as a terminal shows it, without the lines at its head and foot; empty if it only names another."""
    with gzip.open(page, "rt", encoding="utf-8", errors="replace") as file:
        if file.read(4) == ".so ":
            return ""
    command = ["man", "--nh", "--nj", "-E", "ascii", "-l", page]
    environment = os.environ | {"MANWIDTH": "80", "LC_ALL": "C"}
    text = subprocess.run(command, capture_output=True, check=True, env=environment).stdout.decode("ascii", "replace")
    lines = re.sub(".\b", "", text).strip("\n").split("\n")
    return "\n".join(lines[1:-1]).strip("\n") + "\n"


def manual_texts(work: str) -> dict[str, str]:
    kept = f"{work}/manual.json"
    if not os.path.exists(kept):
        pages = [name for package in MANUAL_PACKAGES for name in files_of(package) if "/man/man" in name]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            texts = dict(zip(pages, pool.map(rendered, pages)))
        with open(kept, "w", encoding="utf-8") as file:
            json.dump({name: text for name, text in texts.items() if text}, file)
    with open(kept, encoding="utf-8") as file:
        return json.load(file)


def python_texts() -> dict[str, str]:
    texts = {}
    for name in sorted(glob.glob(f"{PYTHON_FOLDER}/**/*.py", recursive=True)):
        if not set(name.split("/")).intersection(NOT_PYTHON) and 500 < os.path.getsize(name) < 200_000:
            with open(name, encoding="utf-8", errors="replace") as file:
                texts[name] = file.read()
    return texts


def licence_paragraphs(text: str) -> list[str]:
    """The prose of a copyright file: without the fields of Debian's format, its indents, and lists of names."""
    text = re.sub(r"(?m)^\s*\.?$|^[A-Z][A-Za-z-]*:.*$", "", text)
    paragraphs = [textwrap.dedent(part).strip("\n") for part in re.split(r"\n\s*\n", text)]
    return [part for part in paragraphs if is_prose(part)]


def is_prose(text: str) -> bool:
    """Sentences rather than lists of files or names: of a sentence's words many only hold it together."""
    words = re.findall("[a-z]+", text.lower())
    joints = sum(word in JOINTS for word in words)
    return text.isascii() and len(words) >= 12 and joints >= 0.2 * len(words) and len(words) >= 0.12 * len(text)


def plain_words(text: str) -> list[str]:
    return re.findall("[a-z0-9]+", text.lower())


def licence_files() -> list[str]:
    """The common licences, and what the packages that Debian itself maintains say of theirs."""
    command = ["dpkg-query", "--show", "--showformat", "${Package}\t${Maintainer}\n"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    packages = sorted({line.split("\t")[0] for line in lines if "debian.org" in line})
    names = sorted(glob.glob(f"{LICENCE_FOLDER}/*")) + [f"/usr/share/doc/{name}/copyright" for name in packages]
    return [name for name in names if os.path.isfile(name) and not os.path.islink(name)]


def licence_texts() -> dict[str, list[str]]:
    """Paragraphs by file."""
    seen: dict[str, int] = {}
    texts = {}
    for name in licence_files():
        with open(name, encoding="utf-8", errors="replace") as file:
            paragraphs = licence_paragraphs(file.read())
        kept = []
        for paragraph in paragraphs:
            key = " ".join(plain_words(paragraph))
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= PARAGRAPH_REPEATS:
                kept.append(paragraph)
        if kept:
            texts[name] = kept
    return texts


def shingles(text: str) -> set[tuple]:
    words = plain_words(text)
    return {tuple(words[i : i + 8]) for i in range(len(words) - 7)}


def split_licences(texts: dict[str, list[str]]) -> tuple[list[str], str]:
    """(texts to train on, held-out text): paragraphs of which no other one has more than a fifth of the wording."""
    distinct = {" ".join(plain_words(part)): part for parts in texts.values() for part in parts}
    counts = collections.Counter(shingle for part in distinct.values() for shingle in shingles(part))
    held, size = set(), 0
    for key in sorted(distinct, key=digest):
        own = shingles(distinct[key])
        if len(distinct[key]) > 300 and sum(counts[shingle] == 1 for shingle in own) >= 0.8 * len(own):
            if size + len(distinct[key]) > HELD_OUT_CHARACTERS:
                break
            held.add(key)
            size += len(distinct[key]) + 2
    kept = ["\n\n".join(part for part in parts if " ".join(plain_words(part)) not in held) for parts in texts.values()]
    return [text + "\n" for text in kept if len(text) > 200], "\n\n".join(distinct[key] for key in sorted(held)) + "\n"


def cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: text.rindex("\n", 0, characters) + 1]


def split_files(texts: dict[str, str]) -> tuple[list[str], str]:
    """(texts to train on, beginnings of the files held out)."""
    held = sorted((name for name in texts if digest(name) % HELD_OUT_SHARE == 0), key=digest)
    text = "\n".join(cut(texts[name], HELD_OUT_CHARACTERS_A_FILE) for name in held if texts[name].isascii())
    return [text for name, text in texts.items() if name not in held], cut(text, HELD_OUT_CHARACTERS)


def gather(work: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    parts = {
        "manual": split_files(manual_texts(work)),
        "python": split_files(python_texts()),
        "licence": split_licences(licence_texts()),
    }
    for kind, (texts, held) in parts.items():
        print(f"{kind}: {len(texts)} texts, {sum(map(len, texts)) / 1e6:.2f} M characters; {len(held)} held out")
    return {kind: texts for kind, (texts, _) in parts.items()}, {kind: held for kind, (_, held) in parts.items()}


# Tokens


def make_tokenizer(texts: dict[str, list[str]]) -> Tokenizer:
    """Byte-level BPE with the words of Llama 3, trained on as much of every kind."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_WORDS), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    size = min(sum(map(len, kind)) for kind in texts.values())
    tokenizer.train_from_iterator(["".join(texts[kind])[:size] for kind in KINDS], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", pair=f"{END} $A {END} $B", special_tokens=[(END, 0)]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> numpy.ndarray:
    """All texts, each followed by END."""
    pieces = [encoding.ids + [0] for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return numpy.concatenate([numpy.array(piece, dtype=numpy.int64) for piece in pieces])


class Corpus:
    """Draws rows of CONTEXT tokens and one more: END, then text from the beginning of a line on."""

    def __init__(self, tokenizer: Tokenizer, texts: list[str]):
        self.tokens = encode(tokenizer, texts)
        ends_line = numpy.array([tokenizer.decode([i]).endswith("\n") or i == 0 for i in range(VOCABULARY)])
        self.starts = 1 + numpy.flatnonzero(ends_line[self.tokens[: -CONTEXT - 1]])

    def rows(self, count: int, draw: numpy.random.Generator) -> numpy.ndarray:
        starts = draw.choice(self.starts, count)
        rows = self.tokens[starts[:, None] + numpy.arange(CONTEXT)]
        return numpy.concatenate([numpy.zeros((count, 1), dtype=numpy.int64), rows], axis=1)


# Training


def rate(step: int, steps: int) -> float:
    """Of the peak: linear warm-up over a thirtieth of the steps, then a cosine down to a fiftieth."""
    warm_up = max(1, steps // 30)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def optimizers_of(model: torch.nn.Module, share: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices: after 0.3 M tokens the loss was 4.6 nats, with AdamW for all it was 5.8."""
    parts: dict[bool, list] = {True: [], False: []}
    for name, tensor in model.named_parameters():
        parts[tensor.dim() == 2 and "embed" not in name].append(tensor)
    muon = torch.optim.Muon([{"params": parts[True], "peak": share * MATRIX_RATE}], weight_decay=0.01)
    others = [{"params": parts[False], "peak": share * OTHER_RATE}]
    return [muon, torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0, fused=True)]


def loss_of(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Mean negative log-probability of every token but the first of its row, in nats."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


class Checkpoint:
    """What a training run goes on from, in a file of WORK."""

    def __init__(self, path: str, model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]):
        self.path, self.parts, self.step, self.seconds = path, [model, *optimizers], 0, 0.0
        if os.path.exists(path):
            state = torch.load(path)
            self.step, self.seconds = state["step"], state["seconds"]
            for part, values in zip(self.parts, state["parts"]):
                part.load_state_dict(values)

    def save(self, step: int, seconds: float) -> None:
        state = {"parts": [part.state_dict() for part in self.parts], "step": step, "seconds": seconds}
        torch.save(state, f"{self.path}.partial")
        os.replace(f"{self.path}.partial", self.path)


def mixed_rows(corpora: list[Corpus], name: str, step: int) -> torch.Tensor:
    """BATCH rows, as many of each corpus as of the others."""
    draw = numpy.random.default_rng([SEED, digest(name) % 2**32, step])
    counts = [BATCH // len(corpora) + (i < BATCH % len(corpora)) for i in range(len(corpora))]
    return torch.from_numpy(numpy.concatenate([corpus.rows(n, draw) for corpus, n in zip(corpora, counts)]))


def train(name: str, model: torch.nn.Module, corpora: list[Corpus], steps: int, share: float, work: str) -> None:
    optimizers = optimizers_of(model, share)
    checkpoint = Checkpoint(f"{work}/{name}.pt", model, optimizers)
    begin = time.perf_counter() - checkpoint.seconds
    model.train()
    for step in range(checkpoint.step, steps):
        loss = loss_of(model, mixed_rows(corpora, name, step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate(step, steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 50 == 0 or step + 1 == steps:
            seconds = time.perf_counter() - begin
            print(f"{name}: step {step + 1}/{steps}, loss {loss.item():.3f}, {seconds:.0f} s", flush=True)
            checkpoint.save(step + 1, seconds)


def prepare_process() -> None:
    """One thread: with two, on a machine that others use too, a token cost three times the processor time."""
    torch.set_num_threads(1)
    libc, trim_threshold, mmap_threshold = ctypes.CDLL("libc.so.6"), -1, -3
    for parameter in (trim_threshold, mmap_threshold):  # else every large tensor is new pages from the kernel
        libc.mallopt(parameter, 2**30)


def train_variant(kind: str, corpus: Corpus, steps: int, work: str) -> None:
    prepare_process()
    train(kind, trained("base", work), [corpus], steps, VARIANT_RATE, work)


def train_variants(corpora: dict[str, Corpus], steps: int, work: str) -> None:
    """Each in a process of its own, side by side."""
    start = multiprocessing.get_context("spawn").Process
    processes = [start(target=train_variant, args=(kind, corpora[kind], steps, work)) for kind in KINDS]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit("make_trained.py: a variant was not trained; see above")


def trained(name: str, work: str) -> torch.nn.Module:
    model = new_model()
    model.load_state_dict(torch.load(f"{work}/{name}.pt")["parts"][0])
    return model


def new_model() -> torch.nn.Module:
    torch.manual_seed(SEED)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, attn_implementation="sdpa"))


# What is written


def export(name: str, model: torch.nn.Module, tokenizer: Tokenizer) -> None:
    folder = f"{OUT}/{name}"
    model.half().save_pretrained(folder)
    tokenizer.save(f"{folder}/tokenizer.json")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END, "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    with open(f"{folder}/tokenizer_config.json", "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)
        file.write("\n")


def write_held_out(tokenizer: Tokenizer, held: dict[str, str]) -> None:
    """The texts, and as JSON the same as rows of tokens that fill a context: {kind: [[END, ...], ...]}."""
    os.makedirs(f"{OUT}/held_out", exist_ok=True)
    rows = {}
    for kind, text in held.items():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        count = min(HELD_OUT_ROWS, len(ids) // (CONTEXT - 1))
        rows[kind] = [[0] + ids[i * (CONTEXT - 1) : (i + 1) * (CONTEXT - 1)] for i in range(count)]
        with open(f"{OUT}/held_out/{kind}.txt", "w", encoding="utf-8") as file:
            file.write(text)
    with open(f"{OUT}/held_out/tokens.json", "w", encoding="utf-8") as file:
        json.dump(rows, file, separators=(",", ":"))
        file.write("\n")


def perplexity(model: torch.nn.Module, rows: list[list[int]]) -> float:
    with torch.inference_mode():
        tokens = torch.tensor(rows)
        logits = model(input_ids=tokens[:, :-1]).logits
        return math.exp(functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item())


def evaluate() -> None:
    """Of the files as they were written: {model: {kind of held-out text: perplexity}}, as JSON and as a table."""
    with open(f"{OUT}/held_out/tokens.json", encoding="utf-8") as file:
        rows = json.load(file)
    table = {}
    for name in ("base", *KINDS):
        model = transformers.LlamaForCausalLM.from_pretrained(f"{OUT}/{name}", dtype=torch.float32).eval()
        table[name] = {kind: round(perplexity(model, rows[kind]), 4) for kind in KINDS}
    with open(f"{OUT}/held_out/perplexities.json", "w", encoding="utf-8") as file:
        json.dump(table, file, indent=2)
        file.write("\n")
    print("| model | " + " | ".join(KINDS) + " |\n|---|" + "---|" * len(KINDS))
    for name, row in table.items():
        print(f"| {name} | " + " | ".join(f"{row[kind]:.2f}" for kind in KINDS) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("work", help="folder for what can be made again")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the base; a variant takes a fifth as many")
    arguments = parser.parse_args()
    prepare_process()
    os.makedirs(arguments.work, exist_ok=True)

    texts, held = gather(arguments.work)
    tokenizer = make_tokenizer(texts)
    write_held_out(tokenizer, held)
    corpora = {kind: Corpus(tokenizer, texts[kind]) for kind in KINDS}
    for kind, corpus in corpora.items():
        print(f"{kind}: {len(corpus.tokens) / 1e6:.2f} M tokens")

    base = new_model()
    print(f"{sum(tensor.numel() for tensor in base.parameters())} parameters", flush=True)
    train("base", base, list(corpora.values()), arguments.steps, 1.0, arguments.work)
    export("base", base, tokenizer)
    train_variants(corpora, arguments.steps // VARIANT_STEPS, arguments.work)
    for kind in KINDS:
        export(kind, trained(kind, arguments.work), tokenizer)
    evaluate()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Embeddings beside sentence-transformers and CTranslate2; perf/embed.sh calls it.

    embed.py make SHAPE FOLDER PROGRAM                    random weights for all engines, where they are missing
    embed.py texts COUNT MEAN OUT                         texts of words that are a token each
    embed.py requests TEXTS OUT                           a request file of them
    embed.py run ENGINE TYPE SHAPE FOLDER TEXTS OUT.npy   seconds of all texts, as JSON; their embeddings
    embed.py rows RUNS WORK                               a table of the runs, the embeddings compared

THREADS, and of computron PROGRAM and WORK, are taken from the environment. Lengths are lognormal (sigma 0.8) of the mean that is asked for, special tokens counted, between 3 and 512.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy

# Of MiniLM-L6, BGE-base and E5-large, whose weights are random: hidden, layers, heads, inner.
SHAPES = {"minilm": (384, 6, 12, 1536), "base": (768, 12, 12, 3072), "large": (1024, 24, 16, 4096)}
VOCABULARY = 30522
POSITIONS = 512
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TARGETS = {"sentence-transformers": 1.3, "ctranslate2": 1.1}  # times as fast as they are
BATCH_TOKENS = 4096  # of CTranslate2's batches of texts of like lengths


def word(index: int) -> str:
    """Letters alone, so that no pre-tokenizer cuts it."""
    letters = ""
    while index or not letters:
        index, letter = divmod(index, 26)
        letters += chr(ord("a") + letter)
    return letters + "q"


def make_tokenizer():
    import transformers
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    vocab = SPECIALS + [word(i) for i in range(VOCABULARY - len(SPECIALS))]
    tokenizer = Tokenizer(models.WordPiece({t: i for i, t in enumerate(vocab)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=POSITIONS,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"])  # fmt: skip


def make(shape: str, folder: Path, program: str) -> None:
    import ctranslate2
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    hidden, layers, heads, inner = SHAPES[shape]
    if not (folder / "st").exists():
        torch.manual_seed(1)
        model = transformers.BertModel(transformers.BertConfig(
            vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
            intermediate_size=inner, max_position_embeddings=POSITIONS,
            position_embedding_type="absolute"))  # the last of these for CTranslate2's converter  # fmt: skip
        model.save_pretrained(folder / "hf")
        make_tokenizer().save_pretrained(folder / "hf")
        parts = [modules.Transformer(str(folder / "hf")), modules.Pooling(hidden, "mean"), modules.Normalize()]
        SentenceTransformer(modules=parts).save(str(folder / "st"))
    if not (folder / "ctranslate2").exists():
        ctranslate2.converters.TransformersConverter(str(folder / "hf")).convert(str(folder / "ctranslate2"))
    for dtype in ("f32", "bf16"):
        out = folder / f"{dtype}.h5"
        if not out.exists():
            subprocess.run([program, "convert", str(folder / "st"), str(out), "--dtype", dtype], check=True)


def write_texts(count: int, mean: int, out: str) -> None:
    random = numpy.random.default_rng(7)
    shape, scale = random.lognormal(0, 0.8, count), float(mean)
    for _ in range(50):  # what is cut at both ends is made up for
        lengths = (scale * shape).round().clip(3, POSITIONS).astype(int)
        scale *= mean / lengths.mean()
    with open(out, "w", encoding="utf-8") as file:
        for length in lengths:
            words = random.integers(0, VOCABULARY - len(SPECIALS), length - 2)
            file.write(json.dumps(" ".join(word(int(w)) for w in words)) + "\n")
    print(f"{count} texts of {lengths.mean():.1f} tokens in the mean, {numpy.median(lengths):.0f} in the median, "
          f"{numpy.percentile(lengths, 99):.0f} at 99 %, {lengths.max()} at most")  # fmt: skip


def write_requests(texts: list[str], path: Path) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for i, text in enumerate(texts):
            body = {"model": "m", "input": text, "encoding_format": "base64"}
            line = {"custom_id": str(i), "method": "POST", "url": "/v1/embeddings", "body": body}
            file.write(json.dumps(line) + "\n")


def read_texts(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def run_sentence_transformers(dtype: str, folder: Path, texts: list[str], threads: int):
    """Its encode() sorts texts by length; 32 a batch, as by default."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    types = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    model = SentenceTransformer(str(folder / "st"), device="cpu", model_kwargs={"dtype": types[dtype]})
    model.encode(texts[:8])
    start = time.perf_counter()
    vectors = model.encode(texts, batch_size=32)
    return time.perf_counter() - start, vectors


def batches_of(lengths: list[int]) -> list[list[int]]:
    """Indices of texts, longest first, in batches of at most BATCH_TOKENS tokens, padding counted."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(index)
    return batches


def run_ctranslate2(dtype: str, folder: Path, texts: list[str], threads: int):
    """Its encoder, with the same tokenizer before and the mean over tokens behind it."""
    import ctranslate2
    from tokenizers import Tokenizer

    encoder = ctranslate2.Encoder(str(folder / "ctranslate2"), compute_type=dtype, intra_threads=threads)
    tokenizer = Tokenizer.from_file(str(folder / "hf" / "tokenizer.json"))
    encoder.forward_batch([[2, 5, 3]] * 8)
    start = time.perf_counter()
    tokens = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    vectors = [None] * len(texts)
    for batch in batches_of([len(t) for t in tokens]):
        rows = numpy.array(encoder.forward_batch([tokens[i] for i in batch]).last_hidden_state)
        for row, index in zip(rows, batch):
            mean = row[: len(tokens[index])].mean(axis=0)
            vectors[index] = mean / numpy.linalg.norm(mean)
    return time.perf_counter() - start, numpy.stack(vectors)


def run_computron(dtype: str, folder: Path, texts: list[str], threads: int):
    """A job of its own: from the first line read to the last result, of which its metrics say how long it took."""
    work = Path(os.environ["WORK"])
    requests, results, metrics = (work / f"embed.{end}" for end in ("requests", "results", "metrics"))
    write_requests(texts, requests)
    for path in (results, metrics):
        path.unlink(missing_ok=True)
    short = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    command = ["mpirun", "-n", "1", os.environ["PROGRAM"], "serve", "--device", "cpu", "--model",
               f"m={folder}/{short}.h5", "--requests", str(requests), "--output", str(results), "--metrics",
               str(metrics), "--threads", str(threads), "--device-memory", "3GiB"]  # fmt: skip
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return json.loads(metrics.read_text())["wall_s"], read_results(results, len(texts))


def read_results(path: Path, count: int):
    import base64

    vectors = [None] * count
    with open(path, encoding="utf-8") as file:
        for line in map(json.loads, file):
            vector = line["response"]["body"]["data"][0]["embedding"]
            vectors[int(line["custom_id"])] = numpy.frombuffer(base64.b64decode(vector), dtype="<f4")
    return numpy.stack(vectors)


ENGINES = {"computron": run_computron, "sentence-transformers": run_sentence_transformers,
           "ctranslate2": run_ctranslate2}  # fmt: skip


def run(engine: str, dtype: str, shape: str, folder: Path, texts: str, out: str) -> None:
    read = read_texts(texts)
    seconds, vectors = ENGINES[engine](dtype, folder, read, int(os.environ["THREADS"]))
    numpy.save(out, vectors)
    tokens = sum(len(text.split()) + 2 for text in read)
    print(json.dumps({"engine": engine, "type": dtype, "shape": shape, "seconds": seconds, "texts": len(read),
                      "tokens": tokens}))  # fmt: skip


def gemm_flops(shape: str, tokens: int) -> float:
    """Of the matrices of all layers alone: attention's own products are not counted."""
    hidden, layers, _, inner = SHAPES[shape]
    return 2.0 * tokens * layers * (4 * hidden**2 + 2 * hidden * inner)


def worst_cosine(work: Path, shape: str, engine: str) -> float:
    ours, theirs = (numpy.load(work / f"{shape}-{name}.npy") for name in ("computron", engine))
    return float((ours * theirs).sum(axis=1).min())


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g}–{max(values):.3g})"


def rows(runs: str, work: Path) -> None:
    """A row an engine, shape and type, ours first."""
    with open(runs, encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    kinds = {}
    for run_ in found:
        kinds.setdefault((run_["shape"], run_["type"], run_["engine"]), {})[run_["round"]] = run_
    print("| shape | type | engine | s | texts/s | of the GEMM peak | engine's time ÷ computron's | target | least cosine |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (shape, dtype, engine), by_round in kinds.items():
        ours = kinds[shape, dtype, "computron"]
        seconds = [run_["seconds"] for run_ in by_round.values()]
        of_peak = [gemm_flops(shape, r["tokens"]) / r["seconds"] / r["peak_flops_per_s"] for r in by_round.values()]
        ratios = [run_["seconds"] / ours[i]["seconds"] for i, run_ in by_round.items()]
        target = TARGETS.get(engine)
        verdict = "" if target is None else ("met" if statistics.median(ratios) >= target else "missed") + f" ({target})"
        print(f"| {shape} | {dtype} | {engine} | {spread(seconds)} | {by_round[0]['texts'] / statistics.median(seconds):.1f} "
              f"| {statistics.median(of_peak):.3f} | {spread(ratios) if target else ''} | {verdict} "
              f"| {worst_cosine(work, shape, engine):.7f} |")  # fmt: skip


def main() -> None:
    mode, *arguments = sys.argv[1:]
    if mode == "make":
        make(arguments[0], Path(arguments[1]), arguments[2])
    elif mode == "texts":
        write_texts(int(arguments[0]), int(arguments[1]), arguments[2])
    elif mode == "requests":
        write_requests(read_texts(arguments[0]), Path(arguments[1]))
    elif mode == "rows":
        rows(arguments[0], Path(arguments[1]))
    else:
        run(*arguments[:3], Path(arguments[3]), *arguments[4:])


if __name__ == "__main__":
    main()

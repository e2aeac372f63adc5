#!/usr/bin/python3
"""What `computron convert` writes, h5py reads as numbers: h5py_test.py COMPUTRON FIXTURES.

Converts tiny folders of tests/fixtures/families to float32, float16 and bfloat16 and holds names, shapes and values of
the checkpoints against each other, the embedding against the folder's own file, and carried files byte for byte; and
quantised weights, code times scale, against what they were made of, or, of folders of MXFP4 and NVFP4, stored as.
Exits with 77 without h5py (Debian: python3-h5py).
"""

import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy
except ImportError as error:
    print(f"SKIPPED: {error}; Debian's package is python3-h5py")
    sys.exit(77)

EMBEDDINGS = {"opt": "decoder.embed_tokens.weight", "gpt2": "wte.weight", "bert": "bert.embeddings.word_embeddings.weight"}
E2M1 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], "f4")
STEPS = {"f32": 0, "f16": 2**-11, "bf16": 2**-8}  # largest relative error of rounding


def stored_tensor(path: pathlib.Path, name: str) -> numpy.ndarray:
    """A tensor of a safetensors file as float32."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    entry = json.loads(data[8 : 8 + length])[name]
    begin, end = entry["data_offsets"]
    dtype = {"F32": "<f4", "F16": "<f2"}[entry["dtype"]]
    return numpy.frombuffer(data[8 + length + begin : 8 + length + end], dtype).reshape(entry["shape"]).astype("f4")


def convert(program: str, folder: pathlib.Path, output: pathlib.Path, dtype: str, *options: str) -> h5py.File:
    subprocess.run([program, "convert", folder, output, "--dtype", dtype, *options], check=True, stdout=subprocess.DEVNULL)
    return h5py.File(output, "r")


def init(program: str, config: pathlib.Path, output: pathlib.Path, dtype: str) -> h5py.File:
    subprocess.run([program, "init", output, "--config", config, "--dtype", dtype], check=True, stdout=subprocess.DEVNULL)
    return h5py.File(output, "r")


def values_of_codes(dataset: h5py.Dataset) -> numpy.ndarray:
    """What the codes of a quantised weight stand for, before they are scaled."""
    codes, kind = dataset[...], dataset.attrs["codes"].decode()
    assert codes.dtype == ("i1" if kind == "int8" else "u1"), dataset.name
    if kind == "int8":
        return codes.astype("f4")
    if kind in ("int4", "fp4"):  # two a byte, the first in the low half
        halves = numpy.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1).astype("i4")
        return E2M1[halves] if kind == "fp4" else numpy.where(halves < 8, halves, halves - 16).astype("f4")
    return values_of_e4m3(codes)


def values_of_e4m3(codes: numpy.ndarray) -> numpy.ndarray:
    exponent, mantissa = (codes >> 3 & 15).astype("i4"), (codes & 7).astype("f4")
    size = numpy.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return numpy.where(codes < 128, size, -size).astype("f4")


def values_of_scales(dataset: h5py.Dataset) -> numpy.ndarray:
    kind = dataset.attrs["codes"].decode() if "codes" in dataset.attrs else ""
    if kind == "e8m0":
        return numpy.ldexp(numpy.float32(1), dataset[...].astype("i4") - 127)
    if kind == "e4m3":
        return (values_of_e4m3(dataset[...]).astype("f8") * dataset.attrs["factor"]).astype("f4")
    return dataset[...].astype("f4")


def scales_of_values(tensors: h5py.Group, name: str) -> numpy.ndarray:
    """The scale of every value of a quantised weight, in its shape as stored."""
    weight, scales = tensors[name], values_of_scales(tensors[name + ".scales"])
    axis = 0 if weight.attrs["transposed"] else 1
    values = weight.shape[axis] * (2 if axis == 1 and weight.attrs["codes"] in (b"int4", b"fp4") else 1)
    group = int(weight.attrs["group"]) or values
    assert scales.shape[axis] == -(-values // group) and scales.shape[1 - axis] == weight_shape(weight)[1 - axis], name
    return numpy.take(scales, numpy.arange(values) // group, axis=axis)


def weight_shape(dataset: h5py.Dataset) -> tuple[int, int]:
    rows, columns = dataset.shape
    return rows, columns * (2 if dataset.attrs["codes"] in (b"int4", b"fp4") else 1)


def check_quantised(found: h5py.Group, exact: h5py.Group, kind: str) -> int:
    """Every quantised weight within half a step of its values; returns how many there are."""
    quantised = [name for name in found if "group" in found[name].attrs]
    for name in quantised:
        values, codes, scales = exact[name][...].astype("f4"), values_of_codes(found[name]), scales_of_values(found, name)
        assert found[name].attrs["codes"].decode() == kind and codes.shape == values.shape, name
        step = numpy.abs(scales)
        if kind == "fp8":  # three bits of mantissa, multiples of 2^-9 below 2^-6
            step = numpy.maximum(numpy.abs(values) / 8, step / 512)
        # Those of int4 end at -8 and 7, and a scale is at least a ninth of the group's largest value.
        ends = numpy.where(codes == 7, 2.05, numpy.where(codes == -8, 1.05, 0.5001))
        allowed = (ends if kind == "int4" else 0.5001) * step
        assert (numpy.abs(codes * scales - values) <= allowed).all(), f"{name} in {kind}"
    for name in set(exact) - set(quantised):
        assert numpy.array_equal(found[name][...], exact[name][...]), f"{name} in {kind}"
    assert set(found) == set(exact) | {name + ".scales" for name in quantised}, kind
    return len(quantised)


def check_rows(program: str, folder: pathlib.Path, work: pathlib.Path) -> None:
    exact = convert(program, folder, work / "keep.h5", "keep")["tensors"]
    for kind in ("int8", "fp8"):
        found = convert(program, folder, work / f"{kind}.h5", kind, "--group-size", "row")["tensors"]
        count = check_quantised(found, exact, kind)
        assert count > 0, kind
        print(f"{folder.name}: {count} weights in {kind} by row")


def check_groups(program: str, work: pathlib.Path) -> None:
    config = work / "config.json"
    sizes = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300}
    config.write_text(json.dumps({"model_type": "llama", "num_key_value_heads": 2, "max_position_embeddings": 64} | sizes))
    exact = init(program, config, work / "bf16.h5", "bf16")["tensors"]
    for kind in ("int8", "fp8", "int4"):
        count = check_quantised(init(program, config, work / f"{kind}.h5", kind)["tensors"], exact, kind)
        assert count == 2 * 7, kind
        print(f"random weights: {count} in {kind} in groups of 32")


def write_tensors(path: pathlib.Path, tensors: dict[str, tuple[str, numpy.ndarray]]) -> None:
    header, data = {}, b""
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def fp4_weight(kind: str, rows: int, columns: int, random: numpy.random.Generator) -> tuple[dict, numpy.ndarray]:
    """A weight as a folder of this kind stores it, by the ends of its tensors' names, and its values."""
    group = 16 if kind == "nvfp4" else 32
    pairs = random.integers(0, 256, (rows, columns // 2), "u1")
    scales = random.integers(0, 127, (rows, columns // group), "u1")
    codes = E2M1[numpy.stack([pairs & 15, pairs >> 4], axis=-1).reshape(rows, columns)]
    if kind == "mxfp4":
        scale = numpy.ldexp(numpy.float32(1), scales.astype("i4") - 127)
        stored = {"_blocks": ("U8", pairs.reshape(rows, -1, 16)), "_scales": ("U8", scales)}
    else:
        level = random.uniform(100, 1000, 1).astype("f4")
        scale = values_of_e4m3(scales) / level
        stored = {".weight_packed": ("U8", pairs), ".weight_scale": ("F8_E4M3", scales), ".weight_global_scale": ("F32", level)}
    return stored, codes * numpy.repeat(scale, group, axis=1)


def check_fp4(program: str, work: pathlib.Path, kind: str) -> None:
    hidden, ffn, random = 64, 96, numpy.random.default_rng(1)
    weights = {"num_bits": 4, "type": "float", "group_size": 16}
    quantisation = {"quant_method": "mxfp4"} if kind == "mxfp4" else {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {"weights": weights}}}
    config = {"model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": 1, "num_attention_heads": 4,
              "num_key_value_heads": 4, "vocab_size": 10, "max_position_embeddings": 64, "quantization_config": quantisation}
    tensors = {name: ("F32", numpy.ones(shape, "f4")) for name, shape in {
        "embed_tokens.weight": (10, hidden), "lm_head.weight": (10, hidden), "norm.weight": (hidden,),
        "layers.0.input_layernorm.weight": (hidden,), "layers.0.post_attention_layernorm.weight": (hidden,)}.items()}
    expected = {}
    for ours, theirs, rows, columns in [
            *((f"attention.{a}", f"self_attn.{b}_proj", hidden, hidden) for a, b in zip(("query", "key", "value", "output"), "qkvo")),
            ("mlp.gate", "mlp.gate_proj", ffn, hidden), ("mlp.up", "mlp.up_proj", ffn, hidden), ("mlp.down", "mlp.down_proj", hidden, ffn)]:
        stored, expected[f"layers.0.{ours}.weight"] = fp4_weight(kind, rows, columns, random)
        tensors |= {f"layers.0.{theirs}{end}": tensor for end, tensor in stored.items()}
    folder = work / kind
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_tensors(folder / "model.safetensors", {("" if name.startswith("lm_head") else "model.") + name: t for name, t in tensors.items()})
    found = convert(program, folder, work / f"{kind}.h5", "keep")["tensors"]
    for name, values in expected.items():
        actual = values_of_codes(found[name]) * scales_of_values(found, name)
        assert numpy.array_equal(actual.T if found[name].attrs["transposed"] else actual, values), f"{name} in {kind}"
    print(f"random codes: {len(expected)} weights of {kind}")


def check_folder(program: str, folder: pathlib.Path, work: pathlib.Path) -> None:
    files = {dtype: convert(program, folder, work / f"{dtype}.h5", dtype) for dtype in STEPS}
    exact = files["f32"]["tensors"]
    theirs = stored_tensor(folder / "model.safetensors", EMBEDDINGS[folder.name])
    assert numpy.array_equal(exact["embedding.tokens.weight"][...], theirs), f"{folder.name}: embedding"
    for dtype, step in STEPS.items():
        tensors = files[dtype]["tensors"]
        assert json.loads(files[dtype].attrs["config"])["architecture"] == json.loads((folder / "config.json").read_text())["model_type"]
        assert list(tensors) == list(exact), f"{folder.name}: names in {dtype}"
        for name, tensor in tensors.items():
            wanted, found = exact[name][...], tensor[...].astype("f4")
            assert found.shape == wanted.shape and tensor.id.get_type().get_size() == (4 if dtype == "f32" else 2), name
            assert (numpy.abs(found - wanted) <= step * numpy.abs(wanted) + 2**-25).all(), f"{folder.name}: {name} in {dtype}"
        assert bytes(files[dtype]["tokenizer/vocab.json"][...]) == b'{"a": 0}'
    print(f"{folder.name}: {len(exact)} tensors in {', '.join(STEPS)}")


def main() -> None:
    program, fixtures = sys.argv[1], pathlib.Path(sys.argv[2])
    for name in EMBEDDINGS:
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work) / name
            shutil.copytree(fixtures / name, folder)
            (folder / "vocab.json").write_text('{"a": 0}')
            check_folder(program, folder, pathlib.Path(work))
            check_rows(program, folder, pathlib.Path(work))
    with tempfile.TemporaryDirectory() as work:
        check_groups(program, pathlib.Path(work))
        for kind in ("mxfp4", "nvfp4"):
            check_fp4(program, pathlib.Path(work), kind)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""What `computron convert` writes, h5py reads as numbers: h5py_test.py COMPUTRON FIXTURES.

Converts tiny folders of tests/fixtures/families to float32, float16 and bfloat16 and holds names, shapes and values of
the checkpoints against each other, the embedding against the folder's own file, and carried files byte for byte.
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
STEPS = {"f32": 0, "f16": 2**-11, "bf16": 2**-8}  # largest relative error of rounding


def stored_tensor(path: pathlib.Path, name: str) -> numpy.ndarray:
    """A tensor of a safetensors file as float32."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    entry = json.loads(data[8 : 8 + length])[name]
    begin, end = entry["data_offsets"]
    dtype = {"F32": "<f4", "F16": "<f2"}[entry["dtype"]]
    return numpy.frombuffer(data[8 + length + begin : 8 + length + end], dtype).reshape(entry["shape"]).astype("f4")


def convert(program: str, folder: pathlib.Path, output: pathlib.Path, dtype: str) -> h5py.File:
    subprocess.run([program, "convert", folder, output, "--dtype", dtype], check=True, stdout=subprocess.DEVNULL)
    return h5py.File(output, "r")


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


if __name__ == "__main__":
    main()

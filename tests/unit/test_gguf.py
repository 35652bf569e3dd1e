"""Our reader of GGUF files against the package that writes them."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, dequantize, quantize

from penstock.worker.engine.loaders import ModelUnsupported
from penstock.worker.engine.loaders.gguf import read_tensor
from penstock.worker.engine.loaders.gguf_file import GgufFile
from tiny_gguf import write_gguf
from tiny_model import write_tiny_model

KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0"]  # those before and behind Q5_0 are our own


def write_values(path, *, array=None, kind=None):
    """A file with a value of every type that metadata can have, and perhaps one tensor."""
    writer = GGUFWriter(path, "llama")
    for size in (8, 16, 32, 64):
        getattr(writer, f"add_uint{size}")(f"a.uint{size}", 2**size - 1)
        getattr(writer, f"add_int{size}")(f"a.int{size}", -(2 ** (size - 1)))
    writer.add_float32("a.float32", 0.5)
    writer.add_float64("a.float64", 1e300)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "Ġ\n€")
    writer.add_array("a.strings", ["", "zwölf", "Ġthe"])
    writer.add_array("a.integers", [3, -4, 5])
    writer.add_array("a.floats", [0.25, -8.0])
    if array is not None:
        writer.add_tensor("a.weight", quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_equals_that_read_by_the_gguf_package(tmp_path):
    path = write_values(tmp_path / "values.gguf")
    theirs = {key: each.contents() for key, each in GGUFReader(path).fields.items() if not key.startswith("GGUF.")}
    assert len(theirs) == 16
    assert GgufFile(path).fields == theirs


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rows", [1, 300])  # less and more than a slice
def test_values_equal_those_of_the_gguf_package(tmp_path, name, rows):
    kind = GGMLQuantizationType[name]
    array = np.random.default_rng(rows).standard_normal((rows, 1024)).astype(np.float32)
    path = write_values(tmp_path / "values.gguf", array=array, kind=kind)
    [theirs] = GGUFReader(path).tensors
    file = GgufFile(path)
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.full(file.tensors[0].shape, torch.nan, dtype=dtype)
        read_tensor(out, file, file.tensors[0])
        assert torch.equal(out, torch.from_numpy(dequantize(theirs.data, kind).copy()).to(dtype))


def test_a_tensor_can_be_read_into_rows_of_a_larger_one(tmp_path):
    array = np.arange(64, dtype=np.float32).reshape(2, 32)
    file = GgufFile(write_values(tmp_path / "values.gguf", array=array, kind=GGMLQuantizationType.F32))
    whole = torch.zeros(4, 32)
    read_tensor(whole[1:3], file, file.tensors[0])
    assert whole.sum(dim=1).tolist() == [0.0, *array.sum(axis=1), 0.0]


@pytest.mark.parametrize("kept", [4, 40, 3_000])
def test_a_file_truncated_in_its_directory_is_rejected(tmp_path, kept):
    whole = write_gguf(write_tiny_model(tmp_path / "tiny"), tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "short.gguf"
    path.write_bytes(whole[:kept])
    with pytest.raises(ModelUnsupported, match=r"short\.gguf is truncated or damaged; download it again"):
        GgufFile(path)


def test_a_file_truncated_in_its_tensors_is_rejected_when_they_are_read(tmp_path):
    array = np.ones((2, 1024), np.float32)
    whole = write_values(tmp_path / "whole.gguf", array=array, kind=GGMLQuantizationType.Q8_0).read_bytes()
    path = tmp_path / "short.gguf"
    path.write_bytes(whole[:-100])
    file = GgufFile(path)
    with pytest.raises(ModelUnsupported, match=r"short\.gguf cannot be read at tensor a\.weight"):
        read_tensor(torch.empty(2, 1024), file, file.tensors[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\3\4 and more", "is no GGUF file"),
        (b"GGUF\1\0\0\0" + bytes(16), "GGUF version 1; 2 and 3"),
        (b"GGUF\0\0\0\3" + bytes(16), "little-endian"),  # big-endian
    ],
)
def test_an_unknown_gguf_is_rejected_by_name(tmp_path, content, message):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelUnsupported, match=message):
        GgufFile(path)

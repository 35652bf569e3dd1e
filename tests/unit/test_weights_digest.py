"""The digest of a model: equal for equal files on any host, another for any change that may change an answer."""

import os
from dataclasses import replace

import pytest

from penstock.worker.engine.build import build_engine
from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.loaders import weights_digest as subject
from penstock.worker.engine.loaders.weights_digest import CHUNK_BYTES, weights_digest
from penstock.worker.engine.options import EngineOptions
from tiny_model import write_tiny_model


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "penstock" / "digests"


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def test_equal_files_on_two_hosts_have_equal_digests(tmp_path):
    content = os.urandom(1 << 20)
    ours, theirs = written(tmp_path / "a" / "m.gguf", content), written(tmp_path / "b" / "m.gguf", content)
    os.utime(theirs, (0, 0))
    assert weights_digest(ours) == weights_digest(theirs)


@pytest.mark.parametrize("at", [0, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES])
def test_any_changed_byte_changes_the_digest(tmp_path, at):
    content = bytes(2 * CHUNK_BYTES + 1)
    one, other = written(tmp_path / "1.gguf", content), written(tmp_path / "2.gguf", flipped(content, at))
    assert weights_digest(one) != weights_digest(other)


def test_a_file_is_hashed_once_until_it_changes(tmp_path, monkeypatch):
    path, hashed = written(tmp_path / "m.gguf", b"one"), []
    hash_file = subject.file_digest
    monkeypatch.setattr(subject, "file_digest", lambda *file: hashed.append(file) or hash_file(*file))
    first = weights_digest(path)
    assert weights_digest(path) == first
    assert len(hashed) == 1


def test_a_file_replaced_under_its_size_and_time_is_hashed_again(tmp_path):
    path = written(tmp_path / "m.gguf", b"one")
    times = path.stat().st_mtime_ns, path.stat().st_mtime_ns
    os.utime(path, ns=times)
    first = weights_digest(path)
    written(path, b"two")
    os.utime(path, ns=times)
    assert weights_digest(path) != first


def test_a_damaged_cache_entry_is_ignored_and_a_closed_folder_is_no_error(tmp_path, cache, monkeypatch):
    path = written(tmp_path / "m.gguf", b"one")
    first = weights_digest(path)
    [entry] = cache.iterdir()
    entry.write_text("{")
    assert weights_digest(path) == first
    monkeypatch.setenv("XDG_CACHE_HOME", str(written(tmp_path / "file", b"")))
    assert weights_digest(path) == first


def test_a_folder_is_known_by_the_names_and_contents_of_its_weights_and_its_configuration(tmp_path):
    def folder(name, **files):
        for file, content in ({"config.json": b"{}", "a.safetensors": b"1", "README.md": b""} | files).items():
            written(tmp_path / name / file, content)
        return weights_digest(tmp_path / name)

    plain = folder("plain")
    assert folder("other readme", **{"README.md": b"new"}) == plain
    assert folder("other rope", **{"config.json": b'{"rope_theta": 2}'}) != plain
    assert folder("other weights", **{"a.safetensors": b"2"}) != plain
    assert folder("one more shard", **{"b.safetensors": b""}) != plain


def sim_model(path, *, seed=0, **options):
    write_tiny_model(path, seed=seed)
    return build_engine(EngineOptions(engine="sim", model=str(path), **{"kv_blocks": 64, **options}))


def answer_of(engine):
    engine.add(SequenceSpec(seq_id=1, token_ids=[5, 6, 7], max_output_tokens=8))
    results = [engine.step() for _ in range(8)]
    return [token for result in results for token in result.tokens]


def test_models_of_one_name_differ_by_their_weights_and_so_do_simulated_answers(tmp_path):
    (old, old_card), (new, new_card) = (sim_model(tmp_path / str(each) / "tiny", seed=each) for each in range(2))
    assert old_card.name == new_card.name
    assert replace(old_card, weights_digest="") == replace(new_card, weights_digest="")
    assert old_card.digest(16) != new_card.digest(16)
    assert answer_of(old) != answer_of(new)


def test_the_memory_of_a_worker_does_not_change_the_digest(tmp_path):
    _, small = sim_model(tmp_path / "tiny", kv_blocks=8)
    _, large = sim_model(tmp_path / "tiny", kv_blocks=512)
    assert small.context_length < large.context_length
    assert small.digest(16) == large.digest(16)


def test_settings_that_change_the_output_change_the_digest(tmp_path):
    _, card = sim_model(tmp_path / "tiny")
    float32, bfloat16 = (replace(card, output_settings=(("dtype", each),)) for each in ("float32", "bfloat16"))
    assert float32.digest(16) != bfloat16.digest(16)
    assert replace(card, chat_template="new").digest(16) != card.digest(16)

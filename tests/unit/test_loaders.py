import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from naive_loop import naive_logits
from paths import STORIES
from penstock.worker.engine.loaders import ModelUnsupported, load, load_card
from penstock.worker.engine.torch.weights import half_split_rows
from tiny_gguf import write_gguf
from tiny_model import CHAT_TEMPLATE, EOS_ID, write_tiny_model

CPU = torch.device("cpu")
PROMPT = [1, 87, 85, 71, 84, 201, 86, 74, 71]


@pytest.fixture
def folder(tmp_path):
    return write_tiny_model(tmp_path / "tiny")


def logits_of(spec):
    with torch.inference_mode():
        return naive_logits(load(spec, torch.float32, CPU)[0], PROMPT)


def edit(folder, file, **changes):
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def test_a_folders_card_has_the_values_of_its_files(folder):
    card = load_card(folder)
    assert (card.name, card.context_length, card.vocab_size) == ("tiny", 512, 304)
    assert (card.eos_ids, card.bos_id, card.add_bos) == ((EOS_ID, 0), 1, False)
    assert card.chat_template == CHAT_TEMPLATE
    assert card.plain_ids() == range(3, 304)
    assert Tokenizer.from_str(card.tokenizer_json).encode("the water").ids


def test_eos_ids_fall_back_to_the_config(folder):
    (folder / "generation_config.json").unlink()
    assert load_card(folder).eos_ids == (EOS_ID,)


def test_a_separate_template_file_wins_and_a_list_gives_its_default(folder):
    edit(
        folder,
        "tokenizer_config.json",
        chat_template=[{"name": "rag", "template": "a"}, {"name": "default", "template": "b"}],
    )
    assert load_card(folder).chat_template == "b"
    (folder / "chat_template.jinja").write_text("c", encoding="utf-8")
    assert load_card(folder).chat_template == "c"


def test_bos_is_added_where_the_tokenizers_own_post_processor_adds_it(folder):
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    bos = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    assert load_card(folder).add_bos


def test_shards_load_as_one_file_does(folder):
    whole = logits_of(folder)
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, kept in shards.items():
        save_file({name: weights[name] for name in kept}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, kept in shards.items() for name in kept}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert torch.equal(logits_of(folder), whole)
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(ModelUnsupported, match=r"has no model-2\.safetensors"):
        load(folder, torch.float32, CPU)


def test_a_tied_head_is_the_embedding(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors")
    edit(folder, "config.json", tie_word_embeddings=True)
    model, _ = load(folder, torch.float32, CPU)
    assert model.weights.head is model.weights.embedding


def test_qwen2s_biases_are_used(folder):
    plain = logits_of(folder)
    weights = load_file(folder / "model.safetensors")
    rng = np.random.default_rng(1)
    for layer in range(2):
        for name, rows in (("q", 64), ("k", 32), ("v", 32)):
            weights[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = rng.standard_normal(rows).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    edit(folder, "config.json", architectures=["Qwen2ForCausalLM"])
    model, _ = load(folder, torch.float32, CPU)
    assert model.weights.layers[0].qkv_bias.shape == (128,)
    assert not torch.allclose(logits_of(folder), plain, atol=0.1)


def test_a_sliding_window_bounds_the_context(folder):
    edit(folder, "config.json", architectures=["MistralForCausalLM"], sliding_window=128)
    assert load_card(folder).context_length == 128
    edit(folder, "config.json", use_sliding_window=False)
    assert load_card(folder).context_length == 512


def test_llama3_scaling_slows_only_the_slow_rotations(folder):
    plain = load(folder, torch.float32, CPU)[0].weights.inverse_frequencies
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    edit(folder, "config.json", rope_scaling=scaling)
    ratio = load(folder, torch.float32, CPU)[0].weights.inverse_frequencies / plain
    assert ratio[0] == 1.0
    assert ratio[-1] == pytest.approx(1 / 8)
    assert all(before >= after for before, after in pairwise(ratio))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "is a GPT2LMHeadModel; the engine runs LlamaForCausalLM"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "RoPE scaling 'yarn' is not supported"),
        ({"num_hidden_layers": 1}, "has tensors that the engine would ignore"),
        ({"num_hidden_layers": 3}, r"has no tensor model\.layers\.2"),
    ],
)
def test_an_unsupported_model_is_rejected_by_name(folder, changes, message):
    edit(folder, "config.json", **changes)
    with pytest.raises(ModelUnsupported, match=message):
        load(folder, torch.float32, CPU)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, missing):
    (folder / missing).unlink()
    with pytest.raises(ModelUnsupported, match=missing.removeprefix("model")):
        load(folder, torch.float32, CPU)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ModelUnsupported, match="SmolLM2-135M-Instruct"):
        load_card("no-such-model")


def test_a_gguf_file_holds_the_same_model_as_its_folder(folder, tmp_path):
    path = write_gguf(folder, tmp_path / "tiny.gguf")
    assert torch.allclose(logits_of(path), logits_of(folder), atol=1e-4)
    card, folders = load_card(path), load_card(folder)
    assert card.eos_ids == (0, EOS_ID)  # every control token that ends a turn, not the named one alone
    for field in ("name", "context_length", "vocab_size", "bos_id", "add_bos", "chat_template"):
        assert getattr(card, field) == getattr(folders, field)
    ours, theirs = (Tokenizer.from_str(load_card(each).tokenizer_json) for each in (path, folder))
    text = "<|im_start|>the water flows é 🙂 through\n\n  the turbine 123"
    assert ours.encode(text).ids == theirs.encode(text).ids
    assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


def test_a_quantised_file_is_dequantised(folder, tmp_path):
    path = write_gguf(folder, tmp_path / "tiny.gguf", kind=GGMLQuantizationType.Q8_0)
    exact, rounded = logits_of(folder), logits_of(path)
    assert not torch.equal(exact, rounded)
    assert torch.nn.functional.cosine_similarity(exact, rounded, dim=0) > 0.99


def test_an_architecture_with_half_split_pairs_is_not_reordered(folder, tmp_path):
    path = write_gguf(folder, tmp_path / "tiny.gguf", architecture="qwen2")
    assert torch.allclose(logits_of(path), logits_of(folder), atol=1e-4)


def test_frequency_factors_divide(folder, tmp_path):
    factors = np.array([1, 1, 1, 1, 2, 2, 2, 4], np.float32)
    path = write_gguf(folder, tmp_path / "tiny.gguf", extra=[("rope_freqs.weight", factors)])
    plain = load(folder, torch.float32, CPU)[0].weights.inverse_frequencies
    assert torch.allclose(
        plain / load(path, torch.float32, CPU)[0].weights.inverse_frequencies, torch.tensor(factors).double()
    )


def test_an_unknown_gguf_tensor_is_rejected(folder, tmp_path):
    path = write_gguf(
        folder, tmp_path / "tiny.gguf", extra=[("blk.0.ffn_gate_exps.weight", np.ones((2, 2), np.float32))]
    )
    with pytest.raises(ModelUnsupported, match="ffn_gate_exps"):
        load(path, torch.float32, CPU)


def test_rows_for_interleaved_rope_come_back_in_half_split_order():
    rows = torch.arange(8.0)[:, None]
    assert half_split_rows(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_llama2c_model_needs_its_tokenizer_in_its_folder(tmp_path):
    alone = shutil.copy(STORIES / "stories260K.bin", tmp_path / "stories260K.bin")
    with pytest.raises(ModelUnsupported, match=r"tok512\.bin or tokenizer\.bin"):
        load(alone, torch.float32, CPU)


def test_a_truncated_llama2c_model_is_rejected(tmp_path):
    shutil.copy(STORIES / "tok512.bin", tmp_path)
    path = tmp_path / "short.bin"
    path.write_bytes((STORIES / "stories260K.bin").read_bytes()[:-4])
    with pytest.raises(ModelUnsupported, match="but its header requires 264128"):
        load(path, torch.float32, CPU)

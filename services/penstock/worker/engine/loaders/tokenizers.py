"""Tokenizers as Hugging Face JSON, built from the vocabularies in GGUF and llama2.c files."""

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from penstock.worker.engine.loaders.errors import ModelUnsupported

# Source: the tokenizer.json files of Llama 3 and Qwen2.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _WORDS_AND_SPACE
_QWEN2_SPLIT = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _WORDS_AND_SPACE

_BYTE_TOKENS = {f"<0x{byte:02X}>" for byte in range(256)}


def byte_level_bpe(
    tokens: Sequence[str], merges: Sequence[str], flavour: str, special: Sequence[str], added: Sequence[str]
) -> str:
    """Build GPT-2's byte-level BPE. `flavour` is GGUF's name of the split of text before merging."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ", 1) for merge in merges)]
    # Llama 3 uses a word that is a token as such, without regard to merges.
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=pairs, ignore_merges=flavour == "llama-bpe"))
    tokenizer.pre_tokenizer = _pre_tokenizer(flavour)
    tokenizer.decoder = decoders.ByteLevel()
    if flavour == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return _serialize_with_added(tokenizer, special, added)


def _pre_tokenizer(flavour: str) -> PreTokenizer:
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    match flavour:
        case "gpt-2" | "default":
            return gpt2
        case "smollm":
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
        case "llama-bpe":
            return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), "isolated"), to_bytes])
        case "qwen2":
            return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_QWEN2_SPLIT), "isolated"), to_bytes])
        case _:
            known = "gpt-2, smollm, llama-bpe and qwen2"
            raise ModelUnsupported(f"tokenizer flavour {flavour!r} is not supported; {known} are")


def sentencepiece_bpe(
    pieces: Sequence[str], scores: Sequence[float], special: Sequence[str], *, space: str, unknown: str
) -> str:
    """Build SentencePiece BPE with byte fallback. `space` is the character for a blank in pieces."""
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = _merges(vocabulary, scores, frozenset(special) | _BYTE_TOKENS)
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps: list[Normalizer] = [normalizers.Prepend(space)]
    if space != " ":
        steps.append(normalizers.Replace(" ", space))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _serialize_with_added(tokenizer, special, ())


def _merges(vocabulary: dict[str, int], scores: Sequence[float], atoms: frozenset[str]) -> list[tuple[str, str]]:
    """Return each pair of pieces whose concatenation is a piece, best score first, as SentencePiece merges them."""
    ranked = []
    for piece, index in vocabulary.items():
        if piece in atoms:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[index], index, vocabulary[left], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _serialize_with_added(tokenizer: Tokenizer, special: Sequence[str], added: Sequence[str]) -> str:
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added])
    return tokenizer.to_str()

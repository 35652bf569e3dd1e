"""Paths of the repository and of test data."""

from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
DATA = REPO / "tests" / "data"  # a small trained model, a tokenizer, excerpts of public traces; its README has origins
STORIES = DATA / "stories260K"
GPT2 = DATA / "gpt2" / "tokenizer.json.gz"
TRACES = DATA / "traces"  # under the names that the simulator's examples give them

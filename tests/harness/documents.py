"""The product's documents, as tests read them: prose, code blocks, code spans and links."""

import re
from pathlib import Path
from typing import NamedTuple

from paths import REPO

README = REPO / "README.md"
DOCUMENTS = [
    README,
    REPO / "CONTRIBUTING.md",
    REPO / "CHANGELOG.md",
    REPO / "examples" / "README.md",
    *sorted((REPO / "docs").glob("*.md")),
]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


class Block(NamedTuple):
    document: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(REPO)}:{self.line}"


def blocks(*languages, documents=DOCUMENTS):
    found = []
    for document in documents:
        text = document.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(document, line, match[1], match[2]))
    return [each for each in found if not languages or each.language in languages]


def prose(document):
    """Return the text without code blocks, which keep their lines."""
    return FENCE.sub(lambda match: "\n" * match[0].count("\n"), document.read_text(encoding="utf-8"))


def spans(document):
    """Yield line and text of each code span."""
    for number, line in enumerate(prose(document).split("\n"), start=1):
        for match in SPAN.finditer(line.replace(r"\|", "|")):
            yield number, match[1]


def anchors(document):
    """Return the anchors of a document's headings, as GitHub makes them."""
    titles = (re.sub(r"[`*]", "", each) for each in HEADING.findall(prose(document)))
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in titles}

"""The product's documents, as tests read them: prose, code blocks, code spans and links, and the names in them."""

import ast
import re
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from paths import REPO

SOURCES = REPO / "services" / "penstock"
README = REPO / "README.md"
DOCUMENTS = [
    README,
    REPO / "CONTRIBUTING.md",
    REPO / "CHANGELOG.md",
    REPO / "examples" / "README.md",
    *sorted((REPO / "docs").glob("*.md")),
    *sorted((REPO / "docs" / "operations").glob("*.md")),
]

# A fence names a language and, for commands, the place where they run: ```console local. A list indents its blocks.
FENCE = re.compile(r"^( *)```(\w*)(?: (\w+))?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^()\s]+)\)")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
SUFFIXES = (".py", ".md", ".proto", ".toml", ".yaml", ".json", ".js", ".sh", ".h", ".cpp", ".lock")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


class Block(NamedTuple):
    document: Path
    line: int
    language: str
    place: str  # of a console block, where its commands run
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(REPO)}:{self.line}"


def blocks(*languages, documents=DOCUMENTS):
    found = []
    for document in documents:
        text = document.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(document, line, match[2], match[3] or "", dedent(match[4])))
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


def is_path(text):
    return bool(PATH.fullmatch(text)) and (text.endswith(SUFFIXES) or text.endswith("/")) and not text.startswith(".")


def find_path(text):
    """Return the file or folder that a code span means, from the root, the sources or the tests."""
    roots = (REPO, SOURCES, REPO / "services", REPO / "tests")
    return next((root / text for root in roots if (root / text).exists()), None) or example_file(text)


def example_file(text):
    """Return a file of that bare name; documents name the folder of such files just before them."""
    found = REPO.rglob(text) if "/" not in text else ()
    return next((path for path in found if not {".venv", "node_modules"} & set(path.parts)), None)


def symbols(path):
    """Return classes, functions, constants, and methods as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each}" for each in names_in(node.body)}
        found |= names_in([node])
    return found


def names_in(nodes):
    found = set()
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def is_module(name):
    path = SOURCES.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def is_proto(name, protos):
    package, _, last = name.rpartition(".")
    return f"package {package};" in protos and bool(re.search(rf"\b(?:service|message|enum) {last}\b", protos))


class Command(NamedTuple):
    """A command of a console block, with the output that the document shows; empty: none is shown."""

    block: Block
    text: str
    output: str

    def __str__(self) -> str:
        return f"{self.block}: {self.text}"


def commands(block):
    """Return the commands of a console block: lines after `$ `, each continued after a backslash."""
    _, *parts = re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.MULTILINE)
    return [Command(block, *map(str.strip, (part + "\n").split("\n", 1))) for part in parts]

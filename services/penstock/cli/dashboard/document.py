"""The page as one HTML document, and the policy that lets a browser run nothing else."""

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "page"
STYLE = re.compile(r'<link rel="stylesheet" href="([\w.]+)">')
SCRIPT = re.compile(r'<script src="([\w.]+)"></script>')


@dataclass(frozen=True, slots=True)
class Document:
    """The document, and its Content-Security-Policy."""

    html: bytes
    policy: str


def load_document() -> Document:
    """Return `page/index.html` with its style sheet and its scripts in place of the elements that name them.

    The policy admits the inserted blocks by their hashes, requests to the page's own server, and nothing else.
    """
    hashes: dict[str, list[str]] = {"style": [], "script": []}

    def insert(element: str, name: str) -> str:
        text = "\n" + (FOLDER / name).read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[element].append(f"'sha256-{digest}'")
        return f"<{element}>{text}</{element}>"

    html = (FOLDER / "index.html").read_text(encoding="utf-8")
    html = STYLE.sub(lambda match: insert("style", match[1]), html)
    html = SCRIPT.sub(lambda match: insert("script", match[1]), html)
    directives = (
        "default-src 'none'",
        f"style-src {' '.join(hashes['style'])}",
        f"script-src {' '.join(hashes['script'])}",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    return Document(html.encode(), "; ".join(directives))

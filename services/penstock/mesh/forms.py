"""Forms of an output, as a request states them and an engine enforces them. Plain values without a parser."""

from dataclasses import dataclass

from penstock.v1 import inference_pb2 as pb

FORM_UNSUPPORTED = "FORM_UNSUPPORTED"  # reason of an error
FORM_BYTES = 64 << 10  # of one form; a schema of this size compiles in about 0.2 s
CHOICES = 1_024  # texts


@dataclass(frozen=True, slots=True)
class JsonSchema:
    source: str  # JSON text of an object

    @property
    def size_bytes(self) -> int:
        return _size_bytes(self.source)


@dataclass(frozen=True, slots=True)
class Regex:
    pattern: str

    @property
    def size_bytes(self) -> int:
        return _size_bytes(self.pattern)


@dataclass(frozen=True, slots=True)
class Lark:
    grammar: str

    @property
    def size_bytes(self) -> int:
        return _size_bytes(self.grammar)


@dataclass(frozen=True, slots=True)
class Choices:
    texts: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(map(_size_bytes, self.texts))


Form = JsonSchema | Regex | Lark | Choices
JSON_OBJECT = JsonSchema('{"type":"object"}')


def form_problem(form: Form) -> str:
    """Return what is wrong with the size of a form, and what is allowed; empty if nothing is."""
    if form.size_bytes > FORM_BYTES:
        return f"has {form.size_bytes} bytes; at most {FORM_BYTES} are allowed"
    match form:
        case Choices(texts) if not 1 <= len(texts) <= CHOICES:
            return f"has {len(texts)} choices; allowed are 1 to {CHOICES}"
        case Choices(texts) if not all(texts):
            return "has an empty choice; give each choice some text"
    return "" if form.size_bytes else "is empty"


def form_from(message: pb.Form) -> Form | None:
    """Return the form of a message; None if it has none that this version knows."""
    match message.WhichOneof("kind"):
        case "json_schema":
            return JsonSchema(message.json_schema)
        case "regex":
            return Regex(message.regex)
        case "lark":
            return Lark(message.lark)
        case "choices":
            return Choices(tuple(message.choices.texts))
        case _:
            return None


def form_message(form: Form) -> pb.Form:
    match form:
        case JsonSchema(source):
            return pb.Form(json_schema=source)
        case Regex(pattern):
            return pb.Form(regex=pattern)
        case Lark(grammar):
            return pb.Form(lark=grammar)
        case Choices(texts):
            return pb.Form(choices=pb.Choices(texts=texts))


def _size_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))

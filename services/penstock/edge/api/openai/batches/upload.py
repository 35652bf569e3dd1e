"""The form of an upload: `multipart/form-data` (RFC 7578), parsed part by part, so that no file is held in memory.

Pure: bytes come in, and pieces of the file's content go out.
"""

from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from penstock.chassis.durations import set_seconds
from penstock.chassis.errors import InvalidArgument
from penstock.v1.batches_pb2 import FILE_PURPOSE_BATCH, UploadHeader

MAX_FIELD_BYTES = 1 << 10
MAX_FIELDS = 16
MAX_FILENAME_CHARS = 255
FILE, PURPOSE = "file", "purpose"
TTL, TTL_ANCHOR = "expires_after[seconds]", "expires_after[anchor]"


class FormInvalid(InvalidArgument):
    """The body is not the form of an upload."""

    default_reason = "FORM_INVALID"


@dataclass(eq=False)
class UploadForm:
    """Feed it the body in order, then call `header`. `content` has what was received of the file since it was taken."""

    content_type: str
    filename: str = ""
    has_file: bool = False
    content: list[bytes] = field(default_factory=list)
    _fields: dict[str, bytes] = field(default_factory=dict)
    _name: str = ""  # of the present part
    _header: tuple[bytes, bytes] = (b"", b"")  # name and value of the present header
    _headers: dict[bytes, bytes] = field(default_factory=dict)  # of the present part
    _parser: MultipartParser = field(init=False, repr=False)

    def __post_init__(self) -> None:
        kind, options = parse_options_header(self.content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise FormInvalid("an upload is multipart/form-data with a boundary; send `purpose` and `file`")
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._on_header_name,
                "on_header_value": self._on_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._on_data,
            },
        )

    def feed(self, data: bytes) -> list[bytes]:
        """Parse more of the body and return the pieces of the file in it. Raises FormInvalid."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise FormInvalid(f"the form cannot be read: {error}") from None
        pieces, self.content = self.content, []
        return pieces

    def finish(self) -> UploadHeader:
        """Return the description of the file once the body is complete. Raises FormInvalid or InvalidArgument."""
        try:
            self._parser.finalize()
        except FormParserError as error:
            raise FormInvalid(f"the form is not complete: {error}") from None
        if not self.has_file:
            raise FormInvalid("the form has no file", field=FILE)
        return self.header()

    def header(self) -> UploadHeader:
        """Return the description of the file by the fields so far. Raises InvalidArgument."""
        purpose = self._text(PURPOSE)
        if purpose != "batch":
            raise InvalidArgument(f"purpose must be batch, not {purpose!r}", field=PURPOSE)
        header = UploadHeader(filename=self.filename[:MAX_FILENAME_CHARS], purpose=FILE_PURPOSE_BATCH)
        if seconds := self._text(TTL):
            if not seconds.isdecimal() or self._text(TTL_ANCHOR) not in ("", "created_at"):
                raise InvalidArgument("expires_after must be seconds after created_at", field="expires_after")
            set_seconds(header.ttl, float(seconds))
        return header

    def _text(self, name: str) -> str:
        return self._fields.get(name, b"").decode("utf-8", "replace")

    # Of the parser.

    def _begin_part(self) -> None:
        self._name, self._headers = "", {}

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header = self._header[0] + data[start:end], self._header[1]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header = self._header[0], self._header[1] + data[start:end]

    def _end_header(self) -> None:
        name, value = self._header
        self._headers[name.lower()] = value
        self._header = b"", b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name == FILE:
            if self.has_file:
                raise FormInvalid("the form has two files; upload them one by one", field=FILE)
            self.has_file, self.filename = True, options.get(b"filename", b"").decode("utf-8", "replace")
        elif len(self._fields) >= MAX_FIELDS:
            raise FormInvalid(f"the form has more than {MAX_FIELDS} fields")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE:
            self.content.append(data[start:end])
            return
        value = self._fields.get(self._name, b"") + data[start:end]
        if len(value) > MAX_FIELD_BYTES:
            raise FormInvalid(f"a field of the form has more than {MAX_FIELD_BYTES} bytes", field=self._name[:64])
        self._fields[self._name] = value

"""The Files API and the Batch API over HTTP. Files pass through this edge in pieces."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import orjson

from penstock.chassis.errors import Unavailable
from penstock.edge.api.http.exchange import Exchange
from penstock.edge.api.openai.batches.objects import (
    batch_object,
    deleted_file,
    file_object,
    page,
    page_request,
    parse_batch,
)
from penstock.edge.api.openai.batches.upload import FormInvalid, UploadForm
from penstock.edge.api.openai.body.fields import Fields
from penstock.edge.api.openai.errors import MethodNotAllowed
from penstock.edge.gateway import Gateway
from penstock.edge.request import limits
from penstock.edge.upstreams.batches import BatchClient, no_batch_tier
from penstock.mesh.v1.batch_pb2 import Owner
from penstock.v1 import batches_pb2 as pb
from penstock.v1.batches_pb2 import FILE_PURPOSE_BATCH, FILE_PURPOSE_BATCH_OUTPUT, FILE_PURPOSE_UNSPECIFIED

FILES_ROUTE, BATCHES_ROUTE = "/v1/files", "/v1/batches"
PURPOSES: "Mapping[str, pb.FilePurpose.ValueType]" = {
    "": FILE_PURPOSE_UNSPECIFIED,
    "batch": FILE_PURPOSE_BATCH,
    "batch_output": FILE_PURPOSE_BATCH_OUTPUT,
}
CONTENT = {"content-type": "application/octet-stream"}
UPLOAD_TIMEOUT_S = 3_600.0
MAX_FORM_BYTES = 64 << 10  # of an upload beside its file

Handler = Callable[[Exchange], Awaitable[None]]
# Identifies the caller, receives the body and parses it.
Parse = Callable[[Exchange, Callable[[Fields, str], Any]], Awaitable[tuple[Any, Fields]]]


def is_batch_path(path: str) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in (FILES_ROUTE, BATCHES_ROUTE))


class BatchHandlers:
    """Serves the paths at and below `/v1/files` and `/v1/batches`."""

    def __init__(self, gateway: Gateway, batches: BatchClient, parse: Parse) -> None:
        self._gateway = gateway
        self._batches = batches
        self._parse = parse

    def handler_of(self, exchange: Exchange) -> Handler:
        """Return the handler of a path. Raises NotFound / NO_BATCH_TIER or MethodNotAllowed."""
        _, _, kind, *rest = exchange.path.split("/")
        given, action = (rest[0] if rest else ""), "/".join(rest[1:])
        exchange.route = f"/v1/{kind}" + ("/{id}" if given else "") + (f"/{action}" if action else "")
        exchange.observe()
        if not self._batches.is_enabled:
            raise no_batch_tier()
        handlers = self._handlers(kind, given, action)
        if exchange.method not in handlers:
            raise MethodNotAllowed(exchange.path, " and ".join(handlers) or "no method")
        return handlers[exchange.method]

    def _handlers(self, kind: str, given: str, action: str) -> dict[str, Handler]:
        match kind, bool(given), action:
            case "files", False, "":
                return {"POST": self._upload, "GET": self._list_files}
            case "files", True, "":
                return {"GET": self._show_file, "DELETE": self._delete_file}
            case "files", True, "content":
                return {"GET": self._send_content}
            case "batches", False, "":
                return {"POST": self._create, "GET": self._list_batches}
            case "batches", True, "":
                return {"GET": self._show_batch}
            case "batches", True, "cancel":
                return {"POST": self._cancel}
        return {}

    # Files.

    async def _upload(self, exchange: Exchange) -> None:
        owner = await self._owner(exchange)
        form = UploadForm(exchange.header("content-type"))
        parts = exchange.parts(limits.FILE_BYTES + MAX_FORM_BYTES)
        pieces: list[bytes] = []
        async for part in parts:  # until the file begins, after the fields that describe it
            pieces += form.feed(part)
            if form.has_file:
                break
        if not form.has_file:
            form.finish()
        file = await self._batches.upload(
            owner, form.header(), self._content(form, pieces, parts), timeout=UPLOAD_TIMEOUT_S
        )
        await exchange.respond(200, orjson.dumps(file_object(file)))

    async def _content(
        self, form: UploadForm, pieces: list[bytes], parts: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        size = sum(map(len, pieces))
        async for part in parts:
            for piece in form.feed(part):
                size += len(piece)
                yield piece
        form.finish()
        if not size:
            raise FormInvalid("the file is empty", field="file")

    async def _list_files(self, exchange: Exchange) -> None:
        query = _query(exchange)
        size, after = page_request(query, "files")
        purpose = PURPOSES.get(query.get("purpose", ""))
        if purpose is None:  # of another API; no file has it
            await exchange.respond(200, page((), has_more=False))
            return
        request = pb.ListFilesRequest(purpose=purpose, page_size=size, after=after)
        found = (await self._batches.call(await self._owner(exchange), list_files=request)).files
        await exchange.respond(200, page(map(file_object, found.files), has_more=found.has_more))

    async def _show_file(self, exchange: Exchange) -> None:
        request = pb.GetFileRequest(file_id=_id_in(exchange))
        found = await self._batches.call(await self._owner(exchange), get_file=request)
        await exchange.respond(200, orjson.dumps(file_object(found.file)))

    async def _delete_file(self, exchange: Exchange) -> None:
        file_id = _id_in(exchange)
        await self._batches.call(await self._owner(exchange), delete_file=pb.DeleteFileRequest(file_id=file_id))
        await exchange.respond(200, orjson.dumps(deleted_file(file_id)))

    async def _send_content(self, exchange: Exchange) -> None:
        owner, file_id = await self._owner(exchange), _id_in(exchange)
        file = (await self._batches.call(owner, get_file=pb.GetFileRequest(file_id=file_id))).file
        contents = self._batches.read(owner, file_id)
        await exchange.send_whole(file.size_bytes, contents, CONTENT)

    # Batches.

    async def _create(self, exchange: Exchange) -> None:
        request, _ = await self._parse(exchange, lambda fields, _: parse_batch(fields))
        request.idempotency_key = exchange.header("idempotency-key")
        owner = await self._owner(exchange)
        owner.delegation = await self._gateway.delegate(exchange.credential)
        created = await self._batches.call(owner, create_batch=request)
        await exchange.respond(200, orjson.dumps(batch_object(created.batch)))

    async def _list_batches(self, exchange: Exchange) -> None:
        size, after = page_request(_query(exchange), "batches")
        request = pb.ListBatchesRequest(page_size=size, after=after)
        found = (await self._batches.call(await self._owner(exchange), list_batches=request)).batches
        await exchange.respond(200, page(map(batch_object, found.batches), has_more=found.has_more))

    async def _show_batch(self, exchange: Exchange) -> None:
        request = pb.GetBatchRequest(batch_id=_id_in(exchange))
        found = await self._batches.call(await self._owner(exchange), get_batch=request)
        await exchange.respond(200, orjson.dumps(batch_object(found.batch)))

    async def _cancel(self, exchange: Exchange) -> None:
        request = pb.CancelBatchRequest(batch_id=_id_in(exchange))
        found = await self._batches.call(await self._owner(exchange), cancel_batch=request)
        await exchange.respond(200, orjson.dumps(batch_object(found.batch)))

    async def _owner(self, exchange: Exchange) -> Owner:
        """Return the caller. Raises the rejection of an unknown one."""
        if exchange.identity_header:
            self._gateway.accept_identity_header(exchange.identity_header, exchange.credential)
        identity = await self._gateway.authenticate(exchange.credential)
        exchange.mark_identified()
        if not identity.tenant_id:
            raise Unavailable("the caller's tenant is not known now", reason="AUTH_LOST", retry_after=1.0)
        return Owner(tenant_id=identity.tenant_id, key_id=identity.key_id)


def _id_in(exchange: Exchange) -> str:
    return exchange.path.split("/")[3]


def _query(exchange: Exchange) -> dict[str, Any]:
    return {name: values[-1] for name, values in parse_qs(exchange.query).items()}

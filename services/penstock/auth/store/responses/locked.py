"""Locked responses: those that a transaction changes, with the parts and the use of tenants that it adds."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.auth.responses.errors import ResponseUnknown
from penstock.auth.responses.messages import packed
from penstock.auth.responses.response import Placement, Response
from penstock.auth.store.responses import statements as sql
from penstock.auth.store.responses.statements import response_of, update_values
from penstock.chassis.database.statements import Transaction
from penstock.mesh.v1.responses_pb2 import ResponseKey, SealedTokens

RESPONSE_BYTES = 512  # bytes that are counted for a response beside its sealed parts, for its rows
MERGED_BYTES = 1 << 18  # bytes of tokens from which a row of an ended response is full

Key = tuple[str, str]  # tenant and response


def key_of(key: ResponseKey) -> Key:
    """Return the key of a message. Raises ResponseUnknown for one that PostgreSQL cannot hold."""
    if "\0" in key.tenant_id or "\0" in key.response_id:
        raise ResponseUnknown(key.response_id)
    return key.tenant_id, key.response_id


@dataclass(eq=False)
class LockedResponses:
    """Responses of one transaction by key. `write` writes them, and adds the change of their sizes to their tenants."""

    transaction: Transaction
    found: dict[Key, Response] = field(default_factory=dict)
    _changed: dict[Key, Response] = field(default_factory=dict)
    _parts: list[tuple[int, int, int, bytes]] = field(default_factory=list)  # rows that are added
    _bytes: Counter[str] = field(default_factory=Counter)  # that are added, by tenant
    _responses: Counter[str] = field(default_factory=Counter)  # that are added, by tenant

    def lock(self, keys: Iterable[Key]) -> None:
        """Lock responses; those that do not exist are not in `found`."""
        for row in self.transaction.run_many(sql.LOCK, sorted(set(keys))):
            self.add(response_of(row))

    def add(self, response: Response) -> None:
        """Add a response that is locked already."""
        self.found[response.tenant_id, response.response_id] = response

    def mark(self, response: Response) -> None:
        """Note that a response has changed."""
        self._changed[response.tenant_id, response.response_id] = response

    def append(self, response: Response, part: SealedTokens) -> bool:
        """Add a part of the output. Return False if it does not continue the stored parts.

        One that repeats stored parts and continues them replaces these.
        """
        match response.placement(part.first_index, part.count):
            case Placement.STORED:
                return True
            case Placement.GAP:
                return False
            case Placement.OVERLAPPING:
                if not self.transaction.run(sql.BEGINS_PART, response.number, part.first_index):
                    return False
                erased = self.transaction.run(sql.ERASE_TOKENS, response.number, part.first_index)
                self.resize(response, -sum(size for (size,) in erased))
        parts = packed(part)
        self._parts.append((response.number, part.first_index, part.count, parts))
        response.token_count = part.first_index + part.count
        self.resize(response, len(parts))
        return True

    def put_output(self, response: Response, output: bytes) -> None:
        self._put_contents(response, {"output": output})
        response.context_bytes += len(output)
        self.resize(response, len(output))

    def _put_contents(self, response: Response, contents: Mapping[str, bytes]) -> None:
        rows = [(response.number, kind, sealed) for kind, sealed in contents.items() if sealed]
        self.transaction.write(sql.PUT_CONTENT, rows)

    def resize(self, response: Response, size: int) -> None:
        """Add bytes to a response, or remove them."""
        response.size += size
        self._bytes[response.tenant_id] += size
        self.mark(response)

    def end(self, response: Response) -> None:
        """Erase what only a response in progress needs, and merge its tokens into few rows."""
        self._write_parts()
        for (size,) in self.transaction.run(sql.ERASE_CONTENT, response.number, "resume"):
            self.resize(response, -size)
        self.mark(response)
        rows = self.transaction.run(sql.ALL_TOKENS, response.number) if response.token_count else []
        if len(merged := _merged(rows)) < len(rows):
            self.transaction.write(sql.DELETE_TOKENS, [(response.number,)])
            self.transaction.write(sql.PUT_TOKENS, [(response.number, *each) for each in merged])

    def insert(self, response: Response, contents: Mapping[str, bytes]) -> bool:
        """Add a new response with its contents. Return False if one of its key exists."""
        response.size = RESPONSE_BYTES + sum(map(len, contents.values()))
        rows = self.transaction.run(sql.INSERT, *sql.insert_values(response))
        if rows:
            ((response.number,),) = rows
            self._put_contents(response, contents)
            self._count(response, 1)
        return bool(rows)

    def delete(self, responses: Iterable[Response]) -> None:
        gone = list(responses)
        self.transaction.write(sql.DELETE, [(each.number,) for each in gone])
        for each in gone:
            self._count(each, -1)

    def write(self) -> None:
        self._write_parts()
        self.transaction.write(sql.UPDATE, [update_values(each) for each in self._changed.values()])
        tenants = sorted(self._bytes.keys() | self._responses.keys())
        changes = [(self._bytes[each], self._responses[each], each) for each in tenants]
        self.transaction.write(sql.ADD_USAGE, [each for each in changes if each[0] or each[1]])

    def _count(self, response: Response, sign: int) -> None:
        self._bytes[response.tenant_id] += sign * response.size
        self._responses[response.tenant_id] += sign

    def _write_parts(self) -> None:
        parts, self._parts = self._parts, []
        self.transaction.write(sql.PUT_TOKENS, parts)


def _merged(rows: Iterable[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Return rows of parts, merged to rows of about `MERGED_BYTES`."""
    merged: list[tuple[int, int, list[bytes], int]] = []
    for first_index, count, parts in rows:
        if merged and merged[-1][3] < MERGED_BYTES:
            first, _, all_parts, size = merged[-1]
            all_parts.append(parts)
            merged[-1] = (first, first_index + count - first, all_parts, size + len(parts))
        else:
            merged.append((first_index, count, [parts], len(parts)))
    return [(first, count, b"".join(parts)) for first, count, parts, _ in merged]

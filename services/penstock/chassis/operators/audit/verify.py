"""Checks the chain of an audit log. Pure: lines in, a report out."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.chassis.operators.audit.chain import BEGIN, GENESIS, Record, digest, parse, torn_bytes_of

NOT_A_RECORD = "the line is not an audit record"


@dataclass
class Report:
    """What a check found. Line numbers begin with 1 and continue over several files."""

    lines: int = 0  # whole records
    head: str = GENESIS  # hash of the last line
    seq: int = 0
    continues: str = ""  # hash of the last line of an earlier file, if the first line names one
    torn_lines: list[int] = field(default_factory=list)  # cut off by a crash, and chained over
    is_incomplete: bool = False  # the last line has no end: a crash, or a write in progress
    broken_at: int = 0  # line number of the first break; 0: none
    reason: str = ""


class Verification:
    """Checks line after line. After a break no further line is checked."""

    def __init__(self, expected_head: str = "") -> None:
        """`expected_head`: the hash of a line that the log must contain; empty: none."""
        self.report = Report()
        self._expected_head = expected_head.lower()
        self._has_expected_head = False
        self._number = 0
        self._torn: bytes | None = None  # the line before, if it is not a whole record

    def add_file(self, lines: Iterable[bytes]) -> None:
        """Check the lines of a file, which continues the file before it."""
        is_first = True
        for line in lines:
            if self.report.broken_at:
                return
            self._number += 1
            self._add(line, is_first=is_first)
            is_first = False

    def finish(self) -> Report:
        """Return the report after the last line."""
        report = self.report
        if report.broken_at:
            return report
        if self._torn is not None:
            if self._torn.endswith(b"\n"):
                self._break(self._number, NOT_A_RECORD)
            report.is_incomplete = True
        if self._expected_head and not self._has_expected_head and not report.broken_at:
            found = f"no line has the hash {self._expected_head}"
            self._break(self._number + 1, f"{found}: lines were removed from the end, or the last one changed")
        return report

    def _add(self, line: bytes, *, is_first: bool) -> None:
        record = parse(line)
        if record is None:
            if self._torn is not None:
                self._break(self._number - 1, NOT_A_RECORD)
            self._torn = line
            return
        if reason := self._fault(record, is_first=is_first):
            self._break(self._number, reason)
            return
        report = self.report
        if self._torn is not None:
            report.torn_lines.append(self._number - 1)
            self._torn = None
        report.lines += 1
        report.seq, report.head = record["seq"], digest(line)
        self._has_expected_head |= report.head == self._expected_head

    def _fault(self, record: Record, *, is_first: bool) -> str:
        """Return why `record` cannot be the next line; empty if it can."""
        head, seq = self.report.head, self.report.seq
        if self._torn is not None:
            if torn_bytes_of(record) != len(self._torn.removesuffix(b"\n")):
                return "the line before it is not an audit record, and no restart of the process explains it"
            head, seq = digest(self._torn), seq + 1
        if is_first and record.get("action") != BEGIN:
            return f"the file does not begin with {BEGIN}: lines were removed from its beginning"
        if self._number == 1:
            return self._fault_of_first(record)
        if record["previous"] != head:
            return "`previous` is not the hash of the line before it: that line was changed, removed or moved"
        if record["seq"] != seq + 1:
            return f"`seq` is {record['seq']}, not {seq + 1}"
        return ""

    def _fault_of_first(self, record: Record) -> str:
        if record["previous"] == GENESIS:
            return "" if record["seq"] == 1 else f"`seq` of the first line is {record['seq']}, not 1"
        self.report.continues = record["previous"]
        return ""

    def _break(self, number: int, reason: str) -> None:
        if not self.report.broken_at:
            self.report.broken_at, self.report.reason = number, reason

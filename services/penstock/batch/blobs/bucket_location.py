"""The place of contents in object storage, as the setting names it."""

import re
from typing import NamedTuple

BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
PREFIX = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
SCHEME = "s3://"


class BucketLocation(NamedTuple):
    """A bucket, and what the keys of all contents begin with: empty, or ending with `/`."""

    bucket: str
    prefix: str


def parse_bucket(text: str) -> BucketLocation:
    """Return the location of `s3://bucket` or `s3://bucket/prefix`. Raises ValueError."""
    bucket, _, prefix = text.removeprefix(SCHEME).rstrip("/").partition("/")
    is_valid = text.startswith(SCHEME) and BUCKET.fullmatch(bucket) and (not prefix or PREFIX.fullmatch(prefix))
    if not is_valid:
        raise ValueError("must be s3://bucket or s3://bucket/prefix, with letters, digits, `.`, `_` and `-`")
    return BucketLocation(bucket, f"{prefix}/" if prefix else "")

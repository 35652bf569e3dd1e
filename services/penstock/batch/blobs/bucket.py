"""Contents in a bucket of S3-compatible object storage. One that is uploaded in parts exists once all are joined."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from penstock.batch.blobs.blobs import NAME, BlobUnavailable
from penstock.batch.blobs.bucket_location import BucketLocation

PART_BYTES = 8 << 20  # of an upload, and in memory; the most parts, 10,000, have 80 GiB
CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 10.0
ATTEMPTS = 3  # of each call
NO_RANGE = "InvalidRange"  # code of a read from the end on


class BucketBlobs:
    """A bucket. Endpoint, region and credentials are those of the AWS environment variables, files and services."""

    def __init__(self, location: BucketLocation) -> None:
        """Raises BlobUnavailable if the bucket cannot be reached."""
        self._location = location
        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
        )
        with explained_errors():
            self._client = botocore.session.get_session().create_client("s3", config=config)
            self._client.head_bucket(Bucket=location.bucket)

    def create(self, name: str) -> "BucketWriter":
        return BucketWriter(self._client, self._object(name))

    def read(self, name: str, offset: int, size: int) -> bytes:
        if not size:
            return b""
        with explained_errors():
            try:
                found = self._client.get_object(**self._object(name), Range=f"bytes={offset}-{offset + size - 1}")
            except ClientError as error:
                if error.response["Error"]["Code"] == NO_RANGE:
                    return b""
                raise
            content: bytes = found["Body"].read()
            return content

    def delete(self, name: str) -> None:
        with explained_errors():
            self._client.delete_object(**self._object(name))

    def names(self, older_than: float) -> Sequence[str]:
        return [
            name
            for each in self._listed("list_objects_v2", "Contents")
            if NAME.fullmatch(name := each["Key"].removeprefix(self._location.prefix))
            and each["LastModified"].timestamp() < older_than
        ]

    def free_bytes(self) -> float:
        return math.inf

    def used_share(self) -> float:
        return 0.0

    def delete_parts(self, older_than: float) -> int:
        deleted = 0
        for each in self._listed("list_multipart_uploads", "Uploads"):
            if each["Initiated"].timestamp() < older_than:
                with explained_errors():
                    key, upload_id = each["Key"], each["UploadId"]
                    self._client.abort_multipart_upload(Bucket=self._location.bucket, Key=key, UploadId=upload_id)
                deleted += 1
        return deleted

    def _listed(self, operation: str, kind: str) -> Iterator[dict[str, Any]]:
        bucket, prefix = self._location
        with explained_errors():
            pages = self._client.get_paginator(operation).paginate(Bucket=bucket, Prefix=prefix, Delimiter="/")
            for page in pages:
                yield from page.get(kind, ())

    def _object(self, name: str) -> dict[str, str]:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a content")
        return {"Bucket": self._location.bucket, "Key": f"{self._location.prefix}{name}"}


class BucketWriter:
    """Uploads in parts; a content that is smaller than one of them, at once."""

    def __init__(self, client: Any, place: dict[str, str]) -> None:
        """place: bucket and key."""
        self._client = client
        self._place = place
        self._unsent = bytearray()
        self._upload_id = ""  # of the upload in parts, once there is one
        self._parts: list[dict[str, Any]] = []

    def write(self, content: bytes) -> None:
        self._unsent += content
        while len(self._unsent) >= PART_BYTES:
            self._send(bytes(self._unsent[:PART_BYTES]))
            del self._unsent[:PART_BYTES]

    def commit(self) -> None:
        with explained_errors():
            if not self._upload_id:
                self._client.put_object(**self._place, Body=bytes(self._unsent))
                return
            if self._unsent:
                self._send(bytes(self._unsent))
            self._client.complete_multipart_upload(
                **self._place, UploadId=self._upload_id, MultipartUpload={"Parts": self._parts}
            )
            self._upload_id = ""

    def abort(self) -> None:
        if self._upload_id:
            with contextlib.suppress(BotoCoreError, ClientError):
                self._client.abort_multipart_upload(**self._place, UploadId=self._upload_id)
            self._upload_id = ""

    def _send(self, content: bytes) -> None:
        with explained_errors():
            if not self._upload_id:
                self._upload_id = self._client.create_multipart_upload(**self._place)["UploadId"]
            number = len(self._parts) + 1
            sent = self._client.upload_part(**self._place, UploadId=self._upload_id, PartNumber=number, Body=content)
            self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})


@contextlib.contextmanager
def explained_errors() -> Iterator[None]:
    """Raise BlobUnavailable for an error of the storage."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise BlobUnavailable(str(error)) from error

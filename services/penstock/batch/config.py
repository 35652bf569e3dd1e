"""Settings of the batch tier."""

from dataclasses import dataclass

from penstock.batch.blobs.bucket_location import parse_bucket
from penstock.chassis.config import ServiceConfig, setting
from penstock.chassis.database.location import StoreLocation, parse_location, without_password


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchConfig(ServiceConfig):
    """Settings of `PENSTOCK_BATCH_*`."""

    listen: str = setting("127.0.0.1:7029", "Address of the gRPC server.", unit="host:port")
    edges: tuple[str, ...] = setting(
        ("127.0.0.1:7001",),
        "Every edge, on which lines run: host:port or dns:///name:port. With certificates, its"
        " address that requires one.",
    )
    store: str = setting(
        "batches.db",
        "SQLite file of batches and results, as a path or `sqlite:///absolute/path`, or PostgreSQL database, as"
        " `postgresql://user@host/database` (any URL of libpq; the password may also be in PGPASSWORD or a password"
        " file). All batch processes of a mesh use the same one. `:memory:`: batches are lost when the process ends.",
        unit="path or URL",
        show=without_password,
    )
    folder: str = setting(
        "batches",
        "Folder of the contents of files, unless BUCKET is set. All batch processes of a mesh use the same one.",
        unit="path",
    )
    bucket: str = setting(
        "",
        "S3-compatible object storage of the contents of files: `s3://bucket` or `s3://bucket/prefix`. Endpoint, region"
        " and credentials are those of the AWS environment variables (AWS_ENDPOINT_URL_S3, AWS_REGION,"
        " AWS_ACCESS_KEY_ID, ...), files and services. Needs the extra `s3`. Empty: FOLDER.",
        unit="URL",
    )
    fsync: bool = setting(
        True,
        "Whether each commit to SQLite is flushed to disk, so that an answer survives a power loss. PostgreSQL has"
        " `synchronous_commit`.",
    )
    max_file_bytes: int = setting(512 << 20, "Most bytes of one uploaded file.", unit="bytes")
    file_bytes_per_tenant: int = setting(
        10 << 30,
        "Most bytes of one tenant's files, outputs included. An upload beyond it fails with FILES_FULL; outputs are"
        " written.",
        unit="bytes",
    )
    batches_per_tenant: int = setting(
        100,
        "Most batches of one tenant that have not ended. A further one fails with TOO_MANY_BATCHES.",
        unit="batches",
    )

    @property
    def store_location(self) -> StoreLocation:
        return parse_location(self.store)

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if not self.edges:
            raise ValueError("edges must name at least one edge as host:port or dns:///name:port")
        try:
            parse_location(self.store)
        except ValueError as error:
            raise ValueError(f"store {error}") from None
        try:
            if self.bucket:
                parse_bucket(self.bucket)
        except ValueError as error:
            raise ValueError(f"bucket {error}") from None
        if not self.folder:
            raise ValueError("folder must not be empty")
        for name in ("max_file_bytes", "file_bytes_per_tenant", "batches_per_tenant"):
            if not 1 <= getattr(self, name) < 2**62:
                raise ValueError(f"{name} must be 1 to 2**62 - 1")

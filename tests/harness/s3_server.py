"""A real server of S3 on loopback, of the package moto, with its data in memory."""

import re
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from itertools import count

import botocore.session

_READY = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
_numbers = count()
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


@contextmanager
def s3_server():
    """Run a server. Yields its URL."""
    command = (sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield next(found[1] for line in process.stderr if (found := _READY.search(line)))
        finally:
            process.kill()


def use_server(monkeypatch, url):
    """Let clients of this process use a server, as an operator does."""
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL_S3": url, "AWS_CONFIG_FILE": "/nonexistent"}.items():
        monkeypatch.setenv(name, value)


@cache
def client_of(url):
    """Return a client of a server in use."""
    return botocore.session.get_session().create_client("s3", endpoint_url=url)


def new_bucket(url):
    """Create a bucket on a server in use. Return its name."""
    name = f"test-{next(_numbers)}"
    client_of(url).create_bucket(Bucket=name)
    return name

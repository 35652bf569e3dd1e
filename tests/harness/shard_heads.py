"""Heads of shards, and what the credit book grants over them."""

from dispatch_mesh import MODEL
from penstock.mesh.v1.queue_pb2 import Head
from penstock.scheduler.credit.credit_book import FreeCapacity

LARGE_TOKENS, SMALL_TOKENS = 1_000, 100  # tokens
MANY_TOKENS = 1_000_000  # tokens: more than any of these tests grants


def head(waiting=1, *, priority=2, at=100, virtual=0.0, tokens=10, lifted=0.0, resumes=False):
    """Of tickets of `tokens` each."""
    return Head(
        model=MODEL,
        waiting=waiting,
        priority=priority,
        enqueue_unix_nano=at,
        virtual_tokens=virtual,
        waiting_tokens=waiting * tokens,
        lifted_tokens=lifted,
        resumes=resumes,
    )


def grants(book, room, largest, tokens=MANY_TOKENS):
    """What is granted, but for the tokens."""
    return [grant._replace(tokens=0) for grant in book.grants(FreeCapacity(room, tokens, largest))]


def offer_one(book, queue, then):
    """A shard uses one credit and tells its new head, as it does after every offer."""
    book.offered(queue, 10)
    book.head(queue, then)

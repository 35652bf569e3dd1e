"""Strict classes, first come first served within each; resumed work at the head of its class."""

from penstock.queue.policies.classes import Classes
from penstock.queue.policies.line import Together


class ClassFifo(Classes):
    def __init__(self) -> None:
        super().__init__(Together, floor=0.0)

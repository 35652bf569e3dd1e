"""Strict classes, first come first served within each; resumed work at the head of its class."""

from penstock.queue.policies.priority_classes__queue_policies_classes import PriorityClasses
from penstock.queue.policies.tenant_queue import SharedQueue


class ClassFifo(PriorityClasses):
    def __init__(self) -> None:
        super().__init__(SharedQueue, min_share=0.0)

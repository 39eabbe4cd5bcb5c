"""Checkpoints of whole jobs: saved on any number of ranks at any step, loaded on any other number."""

from mpigraph.checkpoint.preemption import Preemption, preemption
from mpigraph.checkpoint.requeue import requeue

__all__ = ["Preemption", "preemption", "requeue"]

"""Checkpoints of whole jobs: saved on any number of ranks at any step, loaded on any other number."""

from typing import TYPE_CHECKING

from mpigraph.checkpoint.api import async_save, latest, load, save, wait
from mpigraph.checkpoint.job_state import RandomState
from mpigraph.checkpoint.loading import export
from mpigraph.checkpoint.preemption import Preemption, preemption, requeue
from mpigraph.checkpoint.state_tree import Stateful
from mpigraph.namespaces import attach
from mpigraph.session.context import OfTrainer

__all__ = [
    "OfTrainer",
    "Preemption",
    "RandomState",
    "Stateful",
    "async_save",
    "export",
    "latest",
    "load",
    "preemption",
    "requeue",
    "save",
    "wait",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, __all__)

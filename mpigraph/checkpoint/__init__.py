"""Checkpoints of whole jobs: saved on any number of ranks at any step, loaded on any other number."""

from mpigraph.checkpoint.api import async_save as async_save, latest as latest, load as load, save as save, wait as wait
from mpigraph.checkpoint.preemption import Preemption as Preemption, preemption as preemption, requeue as requeue
from mpigraph.checkpoint.state_tree import Stateful as Stateful
from mpigraph.namespaces import attach
from mpigraph.session.context import OfTrainer as OfTrainer

attach(__name__)

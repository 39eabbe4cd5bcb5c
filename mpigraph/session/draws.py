"""The randomness of one process: of draws from graphs in memory, and of forked processes.

Draws from a DistGraph outside loaders are numbered by the job (:meth:`.Session.next_context`). Graphs in memory have no
job, and a script may make a new one in each step. Their draws take a number from torch's generator, as torch's own
random functions do: two calls differ, ``torch.manual_seed`` repeats them, checkpoints hold where it is, and each worker
of torch's ``DataLoader`` has another one.
"""

import os

import torch
from torch.utils.data import get_worker_info

from mpigraph.kernels.rng import combine
from mpigraph.sampling.minibatch import RandomContext

__all__ = ["default_seed", "fork_key", "next_in_memory", "seed_in_memory"]

_NUMBERS = 2**63 - 1
_IN_MEMORY = 0x3E3  # separates these draws from those of jobs and of loaders with the same seed


class _Process:
    """What a process and its forks do not share.

    Attributes:
        forks: how often this process was forked.
        path: the number of the fork, of each process from the first to this one.
        generator: gives the draws from graphs in memory their numbers.
        seed: what :func:`seed_in_memory` was told, or None.
    """

    forks = 0
    path: tuple[int, ...] = ()
    generator: torch.Generator = torch.default_generator
    seed: int | None = None

    @classmethod
    def before_fork(cls) -> None:
        cls.forks += 1

    @classmethod
    def in_child(cls) -> None:
        cls.path = (*cls.path, cls.forks)
        cls.forks = 0


os.register_at_fork(before=_Process.before_fork, after_in_child=_Process.in_child)


def fork_key() -> int:
    """Return a number that differs between a process and its forks, so that they do not draw the same.

    In a worker of torch's ``DataLoader`` it is the worker's seed, which is new in each epoch.
    """
    worker = get_worker_info()
    return int(combine(0, *_Process.path)) if worker is None else int(worker.seed)


def seed_in_memory(value: int) -> None:
    """Make draws and loaders of graphs in memory depend on a seed in place of torch's generator."""
    _Process.generator = torch.Generator().manual_seed(value)
    _Process.seed = value


def default_seed(of_job: int) -> int:
    """Return the seed of loaders of graphs in memory that are told none; ``of_job`` unless there is another."""
    return of_job if _Process.seed is None else _Process.seed


def next_in_memory(of_job: int) -> RandomContext:
    """Return what the next draw from a graph in memory depends on, outside loaders; ``of_job`` is the job's seed."""
    number = torch.randint(_NUMBERS, (), generator=_Process.generator, device="cpu")
    return RandomContext(int(combine(default_seed(of_job), _IN_MEMORY, fork_key())), int(number))

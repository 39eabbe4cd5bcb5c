"""The randomness of this process: of draws from graphs in memory, and of its forks."""

import os

import torch
from torch.utils.data import get_worker_info

from mpigraph.errors import check_integer
from mpigraph.kernels.rng import combine
from mpigraph.sampling.minibatch import RandomContext

_NUMBERS = 2**63 - 1
_IN_MEMORY = 0x3E3  # separates draws in memory from those of jobs and of loaders with the same seed


def check_seed(seed: object) -> int:
    """Return a seed. Raises InvalidArgumentError if it is no integer of 64 bits, signed or not."""
    return check_integer("seed", seed, -(2**63), 2**64 - 1)


class Randomness:
    """The state of a process, for draws from graphs in memory, which belong to no job.

    A script may make a new graph in each step. So draws take a number from torch's generator, as torch's own random
    functions do: two calls differ, ``torch.manual_seed`` repeats them, checkpoints hold its state, and each worker of
    torch's ``DataLoader`` has another one.
    """

    forks = 0  # of this process so far
    path: tuple[int, ...] = ()  # the number of the fork, of each process from the first to this one
    generator: torch.Generator = torch.default_generator  # gives the draws from graphs in memory their numbers
    seed: int | None = None  # that of :func:`seed_in_memory`

    @classmethod
    def before_fork(cls) -> None:
        """Count the fork, in the parent."""
        cls.forks += 1

    @classmethod
    def in_child(cls) -> None:
        """Begin as a fork, in the child."""
        cls.path = (*cls.path, cls.forks)
        cls.forks = 0


os.register_at_fork(before=Randomness.before_fork, after_in_child=Randomness.in_child)


def fork_key() -> int:
    """Return a number that differs between a process and its forks, so that they do not draw the same.

    In a worker of torch's ``DataLoader`` it is the worker's seed, which is new in each epoch.
    """
    worker = get_worker_info()
    return int(combine(0, *Randomness.path)) if worker is None else int(worker.seed)


def seed_in_memory(value: int) -> None:
    """Make draws and loaders of graphs in memory depend on a seed in place of torch's generator."""
    Randomness.generator = torch.Generator().manual_seed(value)
    Randomness.seed = value


def default_seed(of_job: int) -> int:
    """Return the seed of loaders of graphs in memory that are given no seed; ``of_job`` unless there is another."""
    return of_job if Randomness.seed is None else Randomness.seed


def next_in_memory(of_job: int) -> RandomContext:
    """Return the context of the next draw from a graph in memory, outside loaders; ``of_job`` is the job's seed."""
    number = torch.randint(_NUMBERS, (), generator=Randomness.generator, device="cpu")
    seed = int(combine(default_seed(of_job), _IN_MEMORY, fork_key()))
    return RandomContext(seed, int(number), step=int(number))

"""Seeds, and the randomness of a process that was forked."""

import os

from torch.utils.data import get_worker_info

from mpigraph.errors import check_integer
from mpigraph.kernels.rng import combine


def check_seed(seed: object) -> int:
    """Return a seed. Raises InvalidArgumentError if it is no integer of 64 bits, signed or not."""
    return check_integer("seed", seed, -(2**63), 2**64 - 1)


class _Forks:
    """The place of this process among the forks of a trainer."""

    forks = 0  # of this process so far
    path: tuple[int, ...] = ()  # the number of the fork, of each process from the first to this one

    @classmethod
    def before_fork(cls) -> None:
        """Count the fork, in the parent."""
        cls.forks += 1

    @classmethod
    def in_child(cls) -> None:
        """Begin as a fork, in the child."""
        cls.path = (*cls.path, cls.forks)
        cls.forks = 0


os.register_at_fork(before=_Forks.before_fork, after_in_child=_Forks.in_child)


def fork_key() -> int:
    """Return a number that differs between a process and its forks, so that they do not draw the same.

    In a worker of torch's ``DataLoader`` it is the worker's seed, which is new in each epoch.
    """
    worker = get_worker_info()
    return int(combine(0, *_Forks.path)) if worker is None else int(worker.seed)

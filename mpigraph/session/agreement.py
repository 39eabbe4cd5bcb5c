"""Local work on every trainer that can fail on one: it then fails on all."""

from collections.abc import Iterator
from contextlib import contextmanager

from mpigraph.mpi.agree import raise_together
from mpigraph.session.context import Session

__all__ = ["agreed"]


@contextmanager
def agreed(session: Session, doing: str, patience: float = 1.0) -> Iterator[None]:
    """Run local code; if it raised on any trainer, raise on every trainer, naming the culprits.

    Args:
        session: the job.
        doing: what is being done, for the message.
        patience: how many timeouts a trainer waits for the slowest.

    Collective on the trainers.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as exc:  # raised on every trainer by the next lines
        error = exc
    with session.world.watch(doing, patience):
        raise_together(session.world.trainers, doing, error, label="trainer")

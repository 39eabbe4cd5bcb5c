"""Collective calls of one thread of each trainer: the main thread, or one that writes in the background."""

import hashlib
import json
from contextlib import AbstractContextManager
from typing import Any

from mpigraph.collective import collective
from mpigraph.mpi.agree import allgather_bytes, together
from mpigraph.mpi.messages import Comm
from mpigraph.mpi.world import TRAINERS, World


class Peers:
    """One thread of every trainer; ``world`` is the job."""

    def __init__(self, world: World, comm: Comm | None = None) -> None:
        """The main threads; or the threads that have the communicator ``comm`` for themselves."""
        self.world = world
        self._comm: Comm = world.trainers if comm is None else comm
        self._place = TRAINERS if comm is None else ""

    @collective("trainers")
    def together(self, doing: str) -> AbstractContextManager[None]:
        """Run local code; if it raised on any trainer, raise on every trainer."""
        return together(self._comm, doing, "trainer", lambda: self.world.meeting(doing, self._place))

    @collective("trainers")
    def gather(self, doing: str, value: object) -> list[Any]:
        """Return the JSON values of all trainers, in the order of their ranks."""
        with self.world.meeting(doing, self._place):
            return [json.loads(data) for data in allgather_bytes(self._comm, json.dumps(value).encode())]

    @collective("trainers")
    def gather_bytes(self, doing: str, data: bytes) -> list[bytes]:
        """Return the bytes of all trainers, in the order of their ranks."""
        with self.world.meeting(doing, self._place):
            return allgather_bytes(self._comm, data)

    @collective("trainers")
    def difference(self, doing: str, text: str) -> tuple[int, Any, Any] | None:
        """Compare a JSON text that should be the same on every trainer; None if it is.

        Else return a trainer whose text differs from the first's, and the values of the first and of it.
        """
        hashes = self.gather(doing, hashlib.sha256(text.encode()).hexdigest())
        other = next((k for k, digest in enumerate(hashes) if digest != hashes[0]), None)
        if other is None:
            return None
        texts = self.gather_bytes(doing, text.encode() if self._comm.rank in (0, other) else b"")
        return other, json.loads(texts[0]), json.loads(texts[other])

"""The server's life: answer control calls and sampling rounds until the trainers shut the job down."""

from mpigraph.mpi.watch import Backoff
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import Operation
from mpigraph.session.control import Control
from mpigraph.session.state import State

__all__ = ["serve"]

_LONGEST_NEAR, _LONGEST_FAR, _LONGEST_IN_ROUND = 2e-2, 1e-3, 1e-4  # seconds of sleep


def serve(state: State, control: Control) -> None:
    """Serve until the trainers call shutdown, then free everything.

    An idle server sleeps between polls, so that it leaves its core to a trainer; it may be idle for hours. Where
    every trainer reads its memory directly it has only control calls to wait for, and sleeps longer.

    Collective on ``state.world.comm``, in step with the trainers' calls.
    """
    near = state.world.all_near
    backoff = (
        Backoff(spins=5, first=1e-4, longest=_LONGEST_NEAR)
        if near
        else Backoff(spins=5, first=5e-5, longest=_LONGEST_FAR)
    )
    services: dict[int, NeighborService] = {}
    while True:
        operation = control.poll()
        busy = (operation is not None) | state.world.answer()
        for number, channel in list(state.channels.items()):
            if number not in services:
                services[number] = NeighborService(state, channel)
            busy |= channel.poll(services[number].answer)
        for number in services.keys() - state.channels.keys():
            del services[number]
        if operation is Operation.SHUTDOWN:
            state.close()
            return
        if busy:
            backoff.reset()
        elif any(channel.in_round for channel in state.channels.values()):
            backoff.pause(_LONGEST_IN_ROUND)
        else:
            backoff.pause()

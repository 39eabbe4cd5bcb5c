"""The server's life: answer control calls and sampling rounds until the trainers shut the job down."""

from mpigraph.mpi.wait import IDLE_SERVER_FAR, IDLE_SERVER_NEAR, IN_ROUND, TRANSFER, Backoff
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import Operation
from mpigraph.session.control import Control
from mpigraph.session.state import State

__all__ = ["serve"]


def serve(state: State, control: Control) -> None:
    """Serve until the trainers call shutdown, then free everything.

    An idle server sleeps between polls, so that it leaves its core to a trainer; it may be idle for hours. Where
    every trainer reads its memory directly it has only control calls to wait for, and sleeps longer.

    Collective on ``state.world.comm``, in step with the trainers' calls.
    """
    idle = IDLE_SERVER_NEAR if state.world.all_near else IDLE_SERVER_FAR
    backoff = Backoff()
    services: dict[int, NeighborService] = {}
    while True:
        operation = control.poll()
        moved = (operation is not None) | state.rows.progress()
        for number, channel in list(state.channels.items()):
            if number not in services:
                services[number] = NeighborService(state, channel)
            moved |= channel.poll(services[number].answer)
        for number in services.keys() - state.channels.keys():
            del services[number]
        if operation is Operation.SHUTDOWN:
            state.close()
            return
        if moved:
            backoff.reset()
        elif state.rows.outstanding:
            backoff.pause(TRANSFER)
        else:
            backoff.pause(IN_ROUND if any(channel.in_round for channel in state.channels.values()) else idle)

"""The server's life: answer control calls and sampling rounds until the trainers shut the job down."""

from mpigraph.mpi.watch import Backoff
from mpigraph.service.control import Control
from mpigraph.service.protocol import Operation
from mpigraph.service.sampling import NeighborService
from mpigraph.service.state import State

__all__ = ["serve"]


def serve(state: State, control: Control) -> None:
    """Serve until the trainers call shutdown, then free everything.

    An idle server sleeps between polls, so that it leaves its core to a trainer; it may be idle for hours.

    Collective on ``state.world.comm``, in step with the trainers' calls.
    """
    backoff = Backoff(spins=50)
    services: dict[int, NeighborService] = {}
    while True:
        operation = control.poll()
        busy = operation is not None
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
        else:
            backoff.pause()

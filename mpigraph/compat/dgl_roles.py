"""DGL's functions about ranks, and its constants: every rank that runs the script is a trainer, of role "default"."""

from typing import Any, Final

from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError
from mpigraph.log import get_logger
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE
from mpigraph.session import context
from mpigraph.session.context import check_seed, current
from mpigraph.session.control import Operation

__all__ = [
    "BACKEND_NAME",
    "DEFAULT_ETYPE",
    "DEFAULT_NTYPE",
    "DGL2GB_EID",
    "GB_DST_ID",
    "MAX_QUEUE_SIZE",
    "SERVER_EXIT",
    "client_barrier",
    "get_global_rank",
    "get_num_client",
    "get_num_machines",
    "get_num_trainers",
    "get_rank",
    "get_role",
    "get_trainer_rank",
    "init_role",
    "initialize",
    "seed",
    "shutdown_servers",
]

BACKEND_NAME: Final = "pytorch"
DGL2GB_EID: Final = "_dgl2gb_eid"
GB_DST_ID: Final = "_gb_dst_id"
MAX_QUEUE_SIZE: Final = 20 << 30
"""Accepted by ``initialize``, where it changes nothing."""
SERVER_EXIT: Final = "server_exit"
_TRAINER = "default"
_ARGUMENTS_OF_1 = ("num_servers", "num_workers", "max_queue_size", "net_type", "num_worker_threads")
_ARGUMENTS_OF_2 = ("max_queue_size", "net_type", "num_worker_threads", "use_graphbolt")
_LARGEST_COUNT = 1_000_000


@collective("all ranks")
def initialize(ip_config: str | None = None, *args: Any, **options: Any) -> None:
    """Call :func:`mpigraph.distributed.initialize` with the positional arguments of any version of DGL.

    Args:
        ip_config: accepted; MPI knows the hosts.
        args: ``num_servers, num_workers, max_queue_size, net_type, num_worker_threads`` of DGL up to 1.x, or
            ``max_queue_size, net_type, num_worker_threads, use_graphbolt`` of 2.x. A first number above a million is
            a size, below a number of servers.
        options: those of :func:`mpigraph.distributed.initialize`.

    Raises:
        InvalidArgumentError: too many arguments, or raised by that function.
    """
    queue_first = bool(args) and isinstance(args[0], int) and args[0] > _LARGEST_COUNT
    names = _ARGUMENTS_OF_2 if queue_first else _ARGUMENTS_OF_1
    if len(args) > len(names):
        raise InvalidArgumentError(f"initialize takes ip_config and at most {len(names)} more arguments (got {args!r})")
    context.initialize(ip_config, **dict(zip(names, args, strict=False)), **options)


def get_global_rank() -> int:
    """Return this trainer's rank. Raises NotInitializedError before ``initialize()``."""
    return current().rank


get_trainer_rank = get_global_rank


def get_rank(role: str = _TRAINER) -> int:
    """Return this trainer's rank; -1 for another role than "default"."""
    return current().rank if role == _TRAINER else -1


def get_role() -> str:
    """Return "default", DGL's word for a trainer: the role of every rank that runs the script."""
    return _TRAINER


def init_role(role: str) -> None:
    """Accept DGL's call. Raises InvalidArgumentError for another role than a trainer's."""
    if role != _TRAINER:
        why = "no processes sample, loaders sample in threads"
        raise InvalidArgumentError(f"{why}: role must be {_TRAINER!r} (got {role!r})")


def get_num_trainers() -> int:
    """Return the number of trainers."""
    return current().num_trainers


get_num_client = get_num_trainers


def get_num_machines() -> int:
    """Return the number of nodes of the job."""
    return current().world.num_nodes


@collective("trainers")
def client_barrier() -> None:
    """Wait for all trainers."""
    current().control.call(Operation.BARRIER)


def shutdown_servers() -> None:
    """Do nothing, for DGL's scripts: servers end with the job."""


def seed(val: int) -> None:
    """Accept DGL's call, with a warning: draws depend on ``initialize(seed=)``, and those of a loader on its ``seed=``.

    Raises InvalidArgumentError: it is no integer of 64 bits.
    """
    instead = "draws depend on initialize(seed=) and a loader's seed="
    get_logger().warning("dgl.seed(%s) changes nothing: %s", check_seed(val), instead)

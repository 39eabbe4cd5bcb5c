"""The only reader of environment variables: one table of name, type, default, meaning.

Variables give defaults; arguments of :func:`mpigraph.distributed.initialize` win over them.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Real
from typing import Any, NamedTuple

from mpigraph.errors import InvalidArgumentError, check_integer

_PREFIX = "MPIGRAPH_"
_TESTS = "MPIGRAPH_TEST_"  # those of the tests
_FAST_BOXES = "OMPI_MCA_btl_sm_fbox_max"  # how many senders may have one
CHOICES: dict[str, tuple[object, ...]] = {
    "transport": ("auto", "rma", "packed"),  # of rows/service.py
    "sampling": ("auto", "alltoallv", "sparse"),  # of sampling/exchanges.py
    "topology": ("auto", "owners", "everywhere"),  # of store/store.py
    "requeue": ("auto", "exit"),
    "keep_memory": (0, 1),
}
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
MAY_DIFFER = ("keep_memory", "log_level", "num_worker_threads", "report")
"""Settings of a process alone, and the folder of the report, where trainer 0's counts."""


@dataclass(frozen=True)
class Config:
    """Settings of one job; all but those in :data:`MAY_DIFFER` are the same on all ranks.

    Attributes:
        ranks_per_node: simulate nodes of this many ranks; 0 means the real nodes. For tests.
        timeout: seconds that a wait inside a protocol step may last before the watchdog ends the job.
        transport: how rows of other nodes are read: "rma" or "packed", or "auto" to measure at start
            (``rows/trial.py``).
        sampling: how sampling requests travel: the name of an exchange (``sampling/exchanges.py``), or "auto" to choose
            by the thread level of MPI.
        topology: which nodes have the in-edges of a graph in memory: the "owners" of their destinations alone, or
            "everywhere"; "auto" is everywhere where they take little of each node's free memory.
        keep_memory: 1 to keep freed blocks for the next minibatch (see ``memory.py``), 0 to return them.
        log_level: a level name of :mod:`logging`, in upper or lower case.
        part_config: the partition configuration of graphs opened without naming one.
        num_servers: servers on each node.
        num_worker_threads: threads that a rank samples with.
        requeue: how ``checkpoint.requeue()`` has the job started again: "auto" asks Slurm, "exit" leaves it to the
            caller that sees the exit status.
        report: the folder of a report of the whole job; "" for none.
    """

    ranks_per_node: int = 0
    timeout: float = 300.0
    transport: str = "auto"
    sampling: str = "auto"
    topology: str = "auto"
    keep_memory: int = 1
    log_level: str = "WARNING"
    part_config: str = ""
    num_servers: int = 1
    num_worker_threads: int = 1
    requeue: str = "auto"
    report: str = ""

    @property
    def threads_chosen(self) -> bool:
        """True if the user chose the number of threads (``OMP_NUM_THREADS``)."""
        return "OMP_NUM_THREADS" in os.environ

    def __post_init__(self) -> None:
        for name, least in (
            ("ranks_per_node", 0),
            ("num_servers", 0),
            ("num_worker_threads", 1),
        ):
            check_integer(name, getattr(self, name), least, 2**31 - 1)
        if not isinstance(self.timeout, Real) or not self.timeout > 0:
            raise InvalidArgumentError(f"timeout must be > 0 seconds (got {self.timeout!r})")
        for name in CHOICES:
            check_choice(name, getattr(self, name))
        if self.log_level.upper() not in _LEVELS:
            raise InvalidArgumentError(f"log_level must be one of {', '.join(_LEVELS)} (got {self.log_level!r})")

    @classmethod
    def from_env(cls, **arguments: Any) -> "Config":
        """Take each field from ``arguments``, else from ``MPIGRAPH_<FIELD>``, else its default.

        Raises:
            InvalidArgumentError: a value is not allowed or does not parse; the message names it.
        """
        values = cls._given(arguments)
        for field in fields(cls):
            kind, value = type(field.default), values[field.name]
            if isinstance(value, str) and kind is not str and field.name not in arguments:
                raise InvalidArgumentError(f"{_variable(field.name)} must be a {kind.__name__} (got {value!r})")
        return cls(**values)

    @classmethod
    def of_job(cls, **arguments: Any) -> dict[str, Any]:
        """Return the settings that must be the same on all ranks, by name, as :meth:`from_env` takes them, unchecked.

        The ranks compare them before anything else: different ones would have them wait for one another in vain.
        """
        values = cls._given(arguments)
        names = [name for name in values if name not in MAY_DIFFER]
        refused = "none"
        try:
            cls.from_env(**arguments)
        except InvalidArgumentError as error:  # what may differ may be wrong on some ranks alone
            refused = str(error)
        given = {f"{name} ({_variable(name)})": values[name] for name in names}
        return given | {"what is refused": refused}

    @classmethod
    def _given(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of each field; for a variable that does not parse its text."""
        values: dict[str, Any] = {field.name: field.default for field in fields(cls)}
        for field in fields(cls):
            kind: Callable[[str], Any] = type(field.default)  # type: ignore[assignment]
            if (text := os.environ.get(_variable(field.name))) is not None:
                try:
                    values[field.name] = kind(text)
                except ValueError:
                    values[field.name] = text
        return values | dict(arguments)


def check_choice(name: str, value: object) -> None:
    """Check the value of a setting of :data:`CHOICES`. Raises InvalidArgumentError."""
    values = CHOICES[name]
    if value not in values:
        known = f"{', '.join(map(str, values[:-1]))} or {values[-1]}"
        raise InvalidArgumentError(f"{name} must be {known} (got {value!r})")


def _variable(name: str) -> str:
    return _PREFIX + name.upper()


def variables() -> dict[str, str]:
    """Return the library's variables that are set."""
    return {name: text for name, text in sorted(os.environ.items()) if name.startswith(_PREFIX)}


def unknown_variables() -> list[str]:
    """Return the library's variables that are set and have no meaning, each with the known one of the closest name."""
    known = [_variable(field.name) for field in fields(Config)]
    unknown = []
    for name in variables():
        if name not in known and not name.startswith(_TESTS):
            close = get_close_matches(name, known, 1)
            unknown.append(f"{name} (do you mean {close[0]}?)" if close else name)
    return unknown


class Allocation(NamedTuple):
    """The Slurm allocation of this job.

    Attributes:
        nodes: number of nodes.
        cpus: CPUs of the smallest node; 0 where Slurm does not say.
    """

    nodes: int
    cpus: int


def slurm_allocation() -> Allocation | None:
    """Return the Slurm allocation of this process, None outside of one."""
    if "SLURM_JOB_ID" not in os.environ:
        return None
    cpus = re.findall(r"(?:^|,)(\d+)", os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))  # such as 16(x2),8
    return Allocation(int(os.environ.get("SLURM_JOB_NUM_NODES", "1")), min(map(int, cpus), default=0))


def slurm_job() -> str | None:
    """Return the name of this process's Slurm job for ``scontrol requeue``, None outside of one."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    if array is not None:  # the number alone would mean all its tasks
        return f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID', '0')}"
    return os.environ.get("SLURM_JOB_ID_HET_GROUP_0") or os.environ.get("SLURM_JOB_ID")


class Launch(NamedTuple):
    """The launcher of this process.

    Attributes:
        launcher: its name.
        processes: number of processes that it started, this one included.
    """

    launcher: str
    processes: int


_LAUNCHERS = (  # name, variables of the number of processes and of the rank; nested launchers first
    ("torchrun", "WORLD_SIZE", "RANK"),
    ("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MVAPICH's launcher", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    ("flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("MPICH's mpiexec", "PMI_SIZE", "PMI_RANK"),
    ("Intel MPI's or MVAPICH's mpiexec", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),  # those of a node
)


def launch() -> Launch | None:
    """Return the launcher that started this process beside others, None if there is no sign of one."""

    def number(name: str) -> int:
        text = os.environ.get(name, "")
        return int(text) if text.isdigit() else 0

    if "DGL_ROLE" in os.environ and (started := number("DGL_NUM_CLIENT") + number("DGL_NUM_SERVER")) > 1:
        return Launch("DGL's launcher", started)
    for launcher, size, _ in _LAUNCHERS:
        if launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in os.environ:
            continue
        if launcher == "srun" and number("PMI_SIZE") not in (0, number(size)):
            continue  # mpiexec inside of Slurm has srun start its daemons
        if number(size) > 1:
            return Launch(launcher, number(size))
    return None


def alone() -> dict[str, str]:
    """Return the environment for a process that a rank starts and that is no rank; :func:`launch` agrees."""
    names = {"DGL_ROLE", "TORCHELASTIC_RUN_ID", *(size for _, size, _ in _LAUNCHERS[1:])}
    return {name: value for name, value in os.environ.items() if name not in names}


def timeout() -> float:
    """Return the seconds that a wait may last, for use before a job has its :class:`Config`."""
    try:
        return Config.from_env().timeout
    except InvalidArgumentError:  # initialize() raises it
        return Config().timeout


def pmi_fd() -> int | None:
    """Return the file descriptor of PMI-1 to this process's launcher, if there is one."""
    text = os.environ.get("PMI_FD", "")
    return int(text) if text.isdigit() else None


def slurm_pmi() -> str:
    """Return how ``srun`` connects the processes that it started, such as "pmi2"; "" outside of a job step."""
    return os.environ.get("SLURM_MPI_TYPE", "")


def open_mpi_osc() -> str:
    """Return the window components that Open MPI is set to use or, behind a "^", to avoid; "" if unset."""
    return os.environ.get("OMPI_MCA_osc", "")


def tell_num_servers() -> None:
    """Set ``DGL_NUM_SERVER`` as DGL's launcher does, unless it is set: older scripts read it."""
    os.environ.setdefault("DGL_NUM_SERVER", str(Config.from_env().num_servers))


def disable_fast_boxes() -> None:
    """Turn off Open MPI's fast boxes, unless MPI has started or the user has set their number.

    Those of Open MPI 5.0 lose messages between ranks of a node that call MPI in two threads: one in six runs of a job
    that measures its transports hung; without fast boxes none of twenty (open-mpi/ompi issues 12979 and 12816).
    """
    if "mpi4py.MPI" not in sys.modules:
        os.environ.setdefault(_FAST_BOXES, "0")


def fast_boxes() -> bool:
    """Return whether Open MPI's fast boxes are on."""
    return os.environ.get(_FAST_BOXES) != "0"


def tune_tcp() -> None:
    """Have UCX send over TCP in fragments of 512 kB, not of 8.

    Minibatches on two hosts whose remote rows no cache held took 22 ms in place of 34; reads of 8 MB and more did not
    change (tests/perf/README.md).

    UCX warns of settings that it does not read, so nothing is set where a variable of the user's excludes TCP.
    """
    settings = dict.fromkeys(("UCX_TCP_TX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE"), "512k")
    ways, devices = (os.environ.get(name, "all") for name in ("UCX_TLS", "UCX_NET_DEVICES"))
    named = bool({"tcp", "all"} & set(ways.removeprefix("^").split(",")))
    over_ip = any(":" not in device for device in devices.split(","))  # else InfiniBand's ports alone
    if over_ip and named != ways.startswith("^") and not settings.keys() & os.environ.keys():
        os.environ |= settings


def log_at(level: str) -> None:
    """Set ``MPIGRAPH_LOG_LEVEL``, as an option of a command says."""
    os.environ[_variable("log_level")] = level


def launcher_rank() -> int:
    """Return the rank that a launcher gave this process, 0 where none did; for use before MPI starts."""
    return rank_in(os.environb) or 0


def rank_in(environment: Mapping[bytes, bytes]) -> int | None:
    """Return the rank that a launcher gave the process with this environment, None where none did."""
    names = ["PMI_RANK", "PMIX_RANK", *(rank for _, _, rank in _LAUNCHERS[1:]), "RANK"]
    texts = [environment.get(name.encode(), b"") for name in names]
    return next((int(text) for text in texts if text.isdigit()), None)


def check_rendezvous(rank: int, world_size: int) -> None:
    """Check that ``RANK`` and ``WORLD_SIZE``, if set, count trainers, as torch needs.

    Raises:
        InvalidArgumentError: they count other ranks; torch would wait for ranks that never come.
    """
    for name, value, what in (("WORLD_SIZE", world_size, "trainers"), ("RANK", rank, "as this trainer's rank")):
        text = os.environ.get(name)
        if text is not None and text != str(value):
            raise InvalidArgumentError(
                f"{name} is {text} in the environment, and this job has {value} {what}: do not set it, "
                "initialize() does (servers do not count)"
            )


def set_rendezvous(rank: int, world_size: int, local_rank: int, address: str, port: int) -> list[str]:
    """Set the variables of ``torch.distributed``'s ``env://`` rendezvous, without overriding the user's.

    Returns:
        The names that were set, for :func:`unset`.
    """
    values = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": local_rank,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    unset_names = [name for name in values if name not in os.environ]
    for name in unset_names:
        os.environ[name] = str(values[name])
    return unset_names


def unset(names: list[str]) -> None:
    """Remove variables that :func:`set_rendezvous` set."""
    for name in names:
        os.environ.pop(name, None)

"""The options of the benchmark."""

from dataclasses import dataclass

from mpigraph.cli.numbers_and_sizes import integers
from mpigraph.errors import InvalidArgumentError

_LEAST = {"nodes": 100, "edges": 100, "feat_dim": 1, "batch_size": 1, "hidden": 1, "seconds": 0.01, "num_servers": 0}


@dataclass(frozen=True)
class Settings:
    """Graph, minibatches and duration of the benchmark. Raises InvalidArgumentError: one is out of range; names it."""

    nodes: int = 200_000
    edges: int = 5_000_000
    feat_dim: int = 100
    part_config: str = ""
    dir: str = ""
    batch_size: int = 1000
    fanouts: str = "10,25"
    hidden: int = 256
    seconds: float = 20.0
    num_servers: int | None = None
    report: str = ""
    out: str = ""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise InvalidArgumentError(f"{spelled(name)} must be >= {least} (got {value})")
        self.layers()

    def layers(self) -> list[int]:
        """Return the fanouts as numbers. Raises InvalidArgumentError."""
        return integers("--fanouts", self.fanouts, -1)


def spelled(name: str) -> str:
    """Return a setting as an option; ``--num_servers`` is spelled as in ``launch``."""
    return f"--{name if name == 'num_servers' else name.replace('_', '-')}"

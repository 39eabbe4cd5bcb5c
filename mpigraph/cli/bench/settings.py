"""Options of the benchmark, checked the same way on every rank."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mpigraph.errors import InvalidArgumentError


def _option(default: Any, text: str, least: float | None = None, kind: Callable[[str], Any] | None = None) -> Any:
    return field(default=default, metadata={"text": text, "least": least, "kind": kind or type(default)})


def _spelled(name: str) -> str:
    return name if name == "num_servers" else name.replace("_", "-")  # as in initialize() and launch


@dataclass(frozen=True)
class Settings:
    """Graph, minibatches and duration of the benchmark."""

    nodes: int = _option(200_000, "nodes of the generated graph", 100)
    edges: int = _option(5_000_000, "its directed edges", 100)
    feat_dim: int = _option(100, "length of its feature rows (float32)", 1)
    part_config: str = _option("", "measure on this partitioned graph instead (<name>.json)")
    dir: str = _option("", "where to write the generated graph for the job; every node must see it")
    batch_size: int = _option(1000, "seeds of a minibatch, on each trainer", 1)
    fanouts: str = _option("10,25", "neighbours in each layer, outermost hop first")
    hidden: int = _option(256, "width of the hidden layers", 1)
    seconds: float = _option(20.0, "about how long to measure in all, after the start", 0.01)
    num_servers: int | None = _option(None, "servers on each node (MPIGRAPH_NUM_SERVERS, else 1)", 0, int)
    report: str = _option("", "write a report of the steps with prefetching to this folder")
    out: str = ""

    @classmethod
    def options(cls) -> dict[str, tuple[str | None, str]]:
        """Return option name -> default as it would be typed, or None, and help text."""
        options = {}
        for entry in fields(cls):
            if "text" in entry.metadata:
                default = None if entry.default is None else str(entry.default)
                note = f" ({default})" if default else ""
                options[_spelled(entry.name)] = (default, entry.metadata["text"] + note)
        return options

    @classmethod
    def of(cls, texts: Mapping[str, Any]) -> "Settings":
        """Return the settings of options as they were typed.

        Raises InvalidArgumentError: an option is no number, or out of range; the message names it.
        """
        values: dict[str, Any] = {}
        for entry in fields(cls):
            name = f"--{_spelled(entry.name)}"
            text = texts[entry.name]
            if text is None:
                continue
            kind = entry.metadata.get("kind", str)
            try:
                values[entry.name] = kind(text)
            except ValueError:
                raise InvalidArgumentError(f"{name} must be a number (got {text!r})") from None
            least = entry.metadata.get("least")
            if least is not None and not values[entry.name] >= least:
                raise InvalidArgumentError(f"{name} must be >= {least} (got {text})")
        settings = cls(**values)
        settings.layers()
        return settings

    def layers(self) -> list[int]:
        """Return the fanouts as numbers.

        Raises InvalidArgumentError: they are no integers >= -1 with commas between.
        """
        try:
            numbers = [int(word) for word in self.fanouts.split(",")]
        except ValueError:
            numbers = [-2]
        if min(numbers) < -1:
            raise InvalidArgumentError(f"--fanouts must be integers >= -1 with commas between (got {self.fanouts!r})")
        return numbers

"""The order of the files of a directory: numbers in names count as numbers, so ``part-2`` comes before ``part-10``."""

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["in_natural_order"]

_NUMBER = re.compile(r"([0-9]+)")


def in_natural_order(paths: Iterable[Path]) -> list[Path]:
    """Return files in the order of their names, with numbers inside names by their value."""
    return sorted(paths, key=_key)


def _key(path: Path) -> tuple[list[tuple[int, str]], str]:
    """Split a name into texts and numbers; the whole path decides between ``01`` and ``1``."""
    pieces = _NUMBER.split(path.name)
    values = [(int(piece), "") if place % 2 else (0, piece) for place, piece in enumerate(pieces)]
    return values, str(path)

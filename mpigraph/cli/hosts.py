"""``ip_config.txt``, DGL's list of machines: one ``ADDRESS [PORT]`` on each line.

Only what can be an address or a host name passes: the names end up in host lists, where a comma or a colon would
mean something else, and beside options, where a leading dash would.
"""

import re
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from mpigraph.errors import InvalidArgumentError

__all__ = ["Host", "read_hosts"]

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_ADDRESS = re.compile(r"[0-9.]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.-]+)?")


class Host(NamedTuple):
    """One machine.

    Attributes:
        name: host name or address as it was written.
        where: file and line, for messages.
    """

    name: str
    where: str

    @property
    def has_colons(self) -> bool:
        """Whether the name is an IPv6 address."""
        return ":" in self.name


def read_hosts(path: Path) -> list[Host]:
    """Read the machines of a job; ``#`` begins a comment. Ports are checked and not used: MPI finds its own.

    Raises:
        InvalidArgumentError: the file cannot be read, names no machine, or has a bad line; the message names it.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise InvalidArgumentError(f"{path}: cannot read the list of hosts: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path}: not a text file: {error}") from error
    hosts = list(_parse(path, lines))
    if not hosts:
        raise InvalidArgumentError(f"{path}: names no host")
    return hosts


def _parse(path: Path, lines: list[str]) -> Iterator[Host]:
    seen: dict[str, str] = {}  # where each host stands
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}:{number}"
        if len(words) > 2:
            raise InvalidArgumentError(f"{where}: expected 'ADDRESS [PORT]' (got {line.strip()!r})")
        key = _check_name(where, words[0])
        if len(words) == 2 and not (re.fullmatch("[0-9]{1,5}", words[1]) and 1 <= int(words[1]) <= 65535):
            raise InvalidArgumentError(f"{where}: a port is a number from 1 to 65535 (got {words[1]!r})")
        if key in seen:
            raise InvalidArgumentError(f"{where}: {words[0]} is already on {seen[key]}")
        seen[key] = where
        yield Host(words[0], where)


def _check_name(where: str, name: str) -> str:
    """Check an address or name; return one spelling for all spellings of it."""
    if _ADDRESS.fullmatch(name):
        try:
            return str(ip_address(name))
        except ValueError:
            raise InvalidArgumentError(f"{where}: not an IP address: {name!r}") from None
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"{where}: neither an IP address nor a host name: {name!r}")
    return name.lower()

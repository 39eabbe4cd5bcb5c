"""Values of options that several commands have: lists of integers, and sizes."""

from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.memory import as_bytes


def integers(option: str, text: str, least: int) -> list[int]:
    """Return integers with commas between, all >= ``least``. Raises InvalidArgumentError that names the option."""
    try:
        return [check_integer(option, int(word), least) for word in text.split(",")]
    except ValueError:
        raise InvalidArgumentError(f"{option} must be integers >= {least} such as 2,4,8 (got {text!r})") from None


def bytes_of(option: str, text: str) -> int:
    """Return a size such as 2GiB in bytes. Raises InvalidArgumentError that names the option."""
    try:
        return as_bytes(text)
    except ValueError:
        raise InvalidArgumentError(f"{option} must be a size such as 8GiB or 500MB (got {text!r})") from None

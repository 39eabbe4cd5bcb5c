"""Tables of the commands, as text."""

__all__ = ["table"]


def table(names: list[str], rows: list[list[str]], left: tuple[int, ...] = ()) -> list[str]:
    """Return lines with columns as wide as their widest cell, numbers to the right."""
    columns = list(zip(names, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (names, *rows)
    ]

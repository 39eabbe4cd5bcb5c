"""YAML by PyYAML, an extra. The only module that imports it."""

from pathlib import Path
from typing import Any

from mpigraph.errors import GraphDataError
from mpigraph.partition.chunks import UNREADABLE
from mpigraph.storage.files import read_text

__all__ = ["read_yaml"]


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds: plain values, lists and mappings, no objects.

    Raises:
        GraphDataError: the file is missing or is no such file, or PyYAML is not installed; names the file, and the
            line where there is one.
    """
    try:
        import yaml
    except ImportError:
        raise GraphDataError(f"{path}: YAML files need PyYAML: pip install 'mpigraph[yaml]'") from None
    try:
        content = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, *UNREADABLE) as error:  # PyYAML lets errors of Python through
        reason = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise GraphDataError(f"{path}: cannot be read as YAML: {reason}") from error
    if not isinstance(content, dict):
        raise GraphDataError(f"{path} must be a YAML mapping (got {type(content).__name__})")
    return content

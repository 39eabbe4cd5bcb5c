"""Fixtures for tests of rows."""

import pytest

from mpigraph.rows import packed


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks for each reply, and several requests for each host."""
    monkeypatch.setattr(packed, "CHUNK", 4096)
    monkeypatch.setattr("mpigraph.rows.transport.MAX_ROWS", 70)

"""Answers to the requests of other ranks, and to those of one message."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from many_ranks import DEGREE, NODES, store_of

from mpigraph.errors import CollectiveError, GraphDataError
from mpigraph.mpi.messages import HEAD, NotOpenHere
from mpigraph.sampling.local import Answers
from mpigraph.sampling.protocol import (
    AnswerReader,
    EdgeQuery,
    SamplingRequest,
    pack_query,
    pack_request,
)
from mpigraph.sampling.strategies import Uniform, Weighted
from mpigraph.store.derived import EdgeWeights, HostTables
from mpigraph.store.store import Store

I64 = npt.NDArray[np.int64]
OWNER, RANKS = 1, 4
FIRST, FIRST_EDGE = OWNER * NODES, OWNER * NODES * DEGREE
WEIGHTS, BAD_WEIGHTS = 5, 6
NONE = np.empty(0, np.int64)


def weights(values: npt.NDArray[np.float32]) -> Any:
    """Edge weights of which no table was made."""
    tables = HostTables({"num_drawable": np.int32, "table": np.uint64}, {})
    return SimpleNamespace(
        is_mask=False,
        values=lambda host: values,
        tables=tables,
        complaint=lambda edge, weight: f"edge {edge} has weight {weight}",
    )


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    values = np.random.default_rng(0).random(NODES * DEGREE, np.float32)
    kept = {WEIGHTS: weights(values), BAD_WEIGHTS: weights(np.where(np.arange(len(values)) == 9, -1, values))}

    def derived(store: Store, kind: type, number: int) -> Any:
        if number not in kept:
            raise NotOpenHere(f"tensor number {number} is not open")
        return kept[number]

    monkeypatch.setattr(Store, "derived", derived)
    monkeypatch.setattr(Store, "tensor", lambda store, number: derived(store, EdgeWeights, number))
    return Answers(store_of(OWNER, RANKS, None, RANKS))


def request(number: int, **changed: Any) -> SamplingRequest:
    ids = FIRST + np.random.default_rng(number).integers(0, NODES, 5 + number % 7)
    given: dict[str, Any] = {"ids": ids, "strategy": Uniform(3), "want_eids": False, "key": np.uint64(number)}
    how = changed.get("strategy")
    tensors = np.array([[how.weights]]) if isinstance(how, Weighted) else np.empty((0, 1), np.int64)
    return SamplingRequest(1, 0, np.ones(1, np.bool_), **(given | {"tensors": tensors} | changed))


def words_of(*requests: SamplingRequest | EdgeQuery) -> I64:
    words = []
    for one in requests:
        everything = np.arange(len(one.ids))
        is_query = isinstance(one, EdgeQuery)
        words += pack_query(one, everything) if is_query else pack_request(one, one.ids, one.excluded)
    return np.concatenate([NONE, *words])


def messages() -> list[I64]:
    """Of trainers that are at different hops of different minibatches, some in the middle of something else."""
    edges = FIRST_EDGE + np.arange(0, NODES * DEGREE, 3)
    found = [words_of(request(number)) for number in range(20)]
    found += [words_of(request(number, strategy=Uniform(4), want_eids=True)) for number in range(20, 25)]
    found += [words_of(request(number, strategy=Weighted(3, False, WEIGHTS))) for number in range(25, 30)]
    found += [words_of(request(30, strategy=Uniform(-1))), words_of(request(31, strategy=Uniform(300, True)))]
    found += [words_of(request(number, excluded=edges[number::4], want_eids=True)) for number in (32, 33)]
    found += [words_of(request(34, ids=NONE)), NONE, words_of(*(request(number) for number in (35, 36, 37)))]
    found += [words_of(EdgeQuery(1, 0, request(number).ids, np.arange(5 + number % 7))) for number in (38, 39)]
    twice = pack_request(request(40), request(40).ids, NONE) + pack_request(request(41), 0, NONE)
    return [*found, np.concatenate(twice), words_of(request(42), EdgeQuery(1, 0, request(42).ids, request(42).ids))]


def test_an_answer_is_that_of_any_order(answers: Answers) -> None:
    """Buffers of earlier requests do not show; and the requests of one message are answered as alone."""
    asked = messages()
    alone = [answers.answer(words)[HEAD:] for words in asked]
    for k in np.random.default_rng(1).permutation(len(asked)).tolist():
        assert np.array_equal(answers.answer(asked[k])[HEAD:], alone[k])
    assert len({words.tobytes() for words in alone}) > 35  # else this says little: draws are by key
    several = [request(35), request(36, strategy=Weighted(3, False, WEIGHTS)), request(37, want_eids=True)]
    together = answers.answer(words_of(*several))[HEAD:]
    assert np.array_equal(together, np.concatenate([answers.answer(words_of(one))[HEAD:] for one in several]))


def test_an_answer_is_what_its_nodes_have(answers: Answers) -> None:
    """All neighbours of nodes of many trainers, which come with the edges' numbers."""
    asked = [request(number, strategy=Uniform(-1), want_eids=True) for number in range(9)]
    for one in asked:
        reader = AnswerReader(answers.answer(words_of(one))[HEAD:].view(np.uint8))
        found = reader.rows(one, np.zeros(1, np.bool_), np.arange(len(one.ids)), np.dtype(np.int32), NODES * DEGREE)
        rows = (one.ids - FIRST)[:, None] * DEGREE + np.arange(DEGREE)
        sources = np.sort((np.arange(NODES * DEGREE, dtype=np.int32) * 7919) % (NODES * RANKS))
        assert (found.counts == DEGREE).all() and np.array_equal(found.edges, rows.reshape(-1))
        assert np.array_equal(found.src, sources[rows.reshape(-1)])


def test_what_cannot_be_answered(answers: Answers) -> None:
    good = words_of(request(1))
    with pytest.raises(NotOpenHere, match="graph number 2 is not open"):
        answers.answer(words_of(EdgeQuery(2, 0, FIRST + np.arange(2), np.arange(2))))
    with pytest.raises(NotOpenHere, match="tensor number 7 is not open"):
        answers.answer(words_of(request(2, strategy=Weighted(3, False, 7))))
    with pytest.raises(GraphDataError, match=f"edge {FIRST_EDGE + 9} has weight -1"):
        answers.answer(words_of(request(2, ids=FIRST + np.arange(3), strategy=Weighted(3, False, BAD_WEIGHTS))))
    header = len(pack_request(request(1), 0, NONE)[0])
    long = good.copy()
    long[header] = 2**40  # destinations
    for bad in (good[:4], good[:-1], long, np.concatenate([good[:header], [-1], [0]])):
        with pytest.raises(CollectiveError, match="words of a sampling request are malformed"):
            answers.answer(bad)

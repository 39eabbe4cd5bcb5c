"""Requests as words, and back."""

import numpy as np

from mpigraph.sampling.protocol import SamplingRequest, pack_request, unpack_requests
from mpigraph.sampling.strategies import Uniform


def test_a_message_refers_to_the_destinations_of_an_earlier_request() -> None:
    ids, others = np.arange(1000) * 7, np.arange(30) + 2**40

    def request(number: int) -> SamplingRequest:
        return SamplingRequest(0, number, np.ones(1, np.bool_), ids, Uniform(5), True, np.uint64(number))

    edges = np.arange(3)
    sent = [pack_request(request(0), ids, edges[:0]), pack_request(request(1), others, edges)]
    sent += [pack_request(request(2), 0, edges), pack_request(request(3), 1, edges), pack_request(request(4), 2, edges)]
    read = unpack_requests(np.concatenate([word for words in sent for word in words]))
    assert [got.dst for got in read if isinstance(got, SamplingRequest)] == [0, 1, 2, 3, 4]
    for got, expected in zip(read, (ids, others, ids, others, ids), strict=True):
        assert np.array_equal(got.ids, expected)
    assert sum(len(word) for word in sent[2]) < 20

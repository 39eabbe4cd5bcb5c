"""Hashes of keys, by which ties are broken and order is made."""

import numpy as np

from mpigraph.arrays import I64, U64

__all__ = ["hashes"]

_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def hashes(keys: I64, salt: np.uint64) -> U64:
    """Return uint64[n], a hash of each key, one to one for a salt: the mixer of ``kernels/rng.py`` on arrays.

    Args:
        keys: int64[n].
        salt: another order for each salt.
    """
    x = keys.astype(np.uint64) ^ salt
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    result: U64 = x ^ (x >> np.uint64(31))
    return result

"""Built-in message and reduce functions, named as in ``dgl.function``.

A function of this module only describes a computation; ``update_all`` and ``apply_edges`` perform it. ``u`` is the
source of an edge, ``v`` its destination, ``e`` the edge itself; ``u_mul_e("h", "w", "m")`` multiplies the source's
``h`` by the edge's ``w`` and calls the result ``m``.
"""

from typing import Literal, Protocol

from mpigraph.graphs.messages import Message, Operand, Reduce
from mpigraph.namespaces import attach

__all__ = [
    "copy_e",
    "copy_u",
    "max",
    "mean",
    "min",
    "sum",
    "u_add_v",
    "u_sub_v",
    "u_mul_v",
    "u_div_v",
    "u_dot_v",
    "u_add_e",
    "u_sub_e",
    "u_mul_e",
    "u_div_e",
    "u_dot_e",
    "v_add_u",
    "v_sub_u",
    "v_mul_u",
    "v_div_u",
    "v_dot_u",
    "v_add_e",
    "v_sub_e",
    "v_mul_e",
    "v_div_e",
    "v_dot_e",
    "e_add_u",
    "e_sub_u",
    "e_mul_u",
    "e_div_u",
    "e_dot_u",
    "e_add_v",
    "e_sub_v",
    "e_mul_v",
    "e_div_v",
    "e_dot_v",
]


Side = Literal["u", "v", "e"]


class BinaryMessage(Protocol):
    """A message function of two fields."""

    def __call__(self, lhs_field: str, rhs_field: str, out: str) -> Message:
        """Send ``lhs op rhs`` as ``out``."""


def copy_u(u: str, out: str) -> Message:
    """Send the source's field ``u`` as ``out``."""
    return Message("copy", Operand("u", u), None, out)


def copy_e(e: str, out: str) -> Message:
    """Send the edge's field ``e`` as ``out``."""
    return Message("copy", Operand("e", e), None, out)


def sum(msg: str, out: str) -> Reduce:
    """Add up the messages."""
    return Reduce("sum", msg, out)


def mean(msg: str, out: str) -> Reduce:
    """Average the messages."""
    return Reduce("mean", msg, out)


def max(msg: str, out: str) -> Reduce:
    """Take the largest message, entry by entry."""
    return Reduce("max", msg, out)


def min(msg: str, out: str) -> Reduce:
    """Take the smallest message, entry by entry."""
    return Reduce("min", msg, out)


def _binary(lhs: Side, op: str, rhs: Side) -> BinaryMessage:
    def message(lhs_field: str, rhs_field: str, out: str) -> Message:
        return Message(op, Operand(lhs, lhs_field), Operand(rhs, rhs_field), out)

    message.__name__ = message.__qualname__ = f"{lhs}_{op}_{rhs}"
    message.__doc__ = f"Send ``{lhs}[lhs_field] {op} {rhs}[rhs_field]`` as ``out``."
    return message


def _binaries(lhs: Side, rhs: Side) -> list[BinaryMessage]:
    return [_binary(lhs, op, rhs) for op in ("add", "sub", "mul", "div", "dot")]


u_add_v, u_sub_v, u_mul_v, u_div_v, u_dot_v = _binaries("u", "v")
u_add_e, u_sub_e, u_mul_e, u_div_e, u_dot_e = _binaries("u", "e")
v_add_u, v_sub_u, v_mul_u, v_div_u, v_dot_u = _binaries("v", "u")
v_add_e, v_sub_e, v_mul_e, v_div_e, v_dot_e = _binaries("v", "e")
e_add_u, e_sub_u, e_mul_u, e_div_u, e_dot_u = _binaries("e", "u")
e_add_v, e_sub_v, e_mul_v, e_div_v, e_dot_v = _binaries("e", "v")

attach(__name__)

"""The operations that there are, what each is given, and the kinds that they fall into.

Only their names: what an operation takes and gives is for graph.py, its gradient for autograd.py,
and what it computes for whoever runs it.
"""

from __future__ import annotations

from enum import Enum, auto


class Op(Enum):
    """Everything that a Node can be; the comment gives its `arg`."""

    __hash__ = object.__hash__  # Enum's own is Python code, and passes look into sets all the time

    # loads
    BUFFER = auto()  # Buffer
    CONST = auto()  # Python number
    IOTA = auto()  # None: 0, 1, 2 ... along the only axis
    PART = auto()  # (variable, count, axis): an equal part of a BUFFER or IOTA along an axis
    # unary
    CAST = auto()  # None: the Node's dtype says to what
    NEG = auto()
    EXP2 = auto()
    LOG2 = auto()
    SIN = auto()
    COS = auto()
    SQRT = auto()
    HASH = auto()  # lowbias32, a bijection on 32-bit integers
    # binary
    ADD = auto()
    SUB = auto()
    MUL = auto()
    DIV = auto()  # floats divide, integers round towards minus infinity; 0 by 0
    MOD = auto()  # integers only; the sign of the divisor, and 0 by 0
    FMOD = auto()  # floats only: exactly x - n y of n rounded towards zero; the sign of x
    MAX = auto()
    LT = auto()
    EQ = auto()
    XOR = auto()
    AND = auto()
    OR = auto()
    SHL = auto()  # by less than the width of the dtype
    SHR = auto()
    # ternary
    WHERE = auto()
    MULACC = auto()  # a * b + c
    # reductions, their axes removed from the shape
    SUM = auto()  # axes
    REDUCE_MAX = auto()  # axes
    # movement: none of them copies
    RESHAPE = auto()  # shape
    PERMUTE = auto()  # axes
    EXPAND = auto()  # shape
    PAD = auto()  # ((before, after), ...), filled with zero
    SHRINK = auto()  # ((begin, end), ...)
    STRIDE = auto()  # steps, negative ones flip
    # the rest
    DOT = auto()  # [..., M, K] x [..., K, N] -> [..., M, N]
    GATHER = auto()  # table [N, ...], index int [...] -> [..., ...]
    CONCAT = auto()  # axis
    CONTIGUOUS = auto()  # a value that must stand in memory
    FUNCTION = auto()  # vjp: the first source, with a gradient rule of its own
    # control, see control_flow.py
    PARAMETER = auto()  # (depth, position, ...): what an iteration of a loop receives
    LOOP = auto()  # Body: its sources are initial, then captured values; no value of its own
    COND = auto()  # None: condition of shape (), then two values; only the chosen one is computed
    RESULT = auto()  # position of a carried value: what the LOOP leaves of it


UNARY = frozenset({Op.CAST, Op.NEG, Op.EXP2, Op.LOG2, Op.SIN, Op.COS, Op.SQRT, Op.HASH})
COMPARE = frozenset({Op.LT, Op.EQ})
BITWISE = frozenset({Op.XOR, Op.AND, Op.OR, Op.SHL, Op.SHR})
BINARY = BITWISE | COMPARE | {Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MOD, Op.FMOD, Op.MAX}
TERNARY = frozenset({Op.WHERE, Op.MULACC})
ELEMENTWISE = UNARY | BINARY | TERNARY
REDUCE = frozenset({Op.SUM, Op.REDUCE_MAX})
MOVEMENT = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.PAD, Op.SHRINK, Op.STRIDE})
LOAD = frozenset({Op.BUFFER, Op.CONST, Op.IOTA, Op.PART, Op.PARAMETER})
CONTROL = frozenset({Op.LOOP, Op.RESULT, Op.COND})
FLOAT_ONLY = frozenset({Op.EXP2, Op.LOG2, Op.SIN, Op.COS, Op.SQRT, Op.FMOD})
# a bool is stored as a byte, 0 or 1, and these could make it another number
NOT_BOOL = frozenset({Op.NEG, Op.ADD, Op.SUB, Op.DIV, Op.MOD, Op.SHL, Op.SHR, Op.MULACC, Op.SUM})

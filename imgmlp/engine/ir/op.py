"""Op: the operations of a Node, the meaning of each Node's `arg`, and groups of operations.

These are only names. graph.py infers shapes and dtypes, operations/autograd.py has the gradients,
and oracle/interpret.py defines what each operation computes.
"""

from __future__ import annotations

from enum import Enum, auto


class Op(Enum):
    """The operation of a Node. Comments give the Node's `arg`; without one it is None."""

    __hash__ = object.__hash__  # faster than Enum's, which is Python code; passes use many sets

    # leaves
    BUFFER = auto()  # Buffer
    CONST = auto()  # Python number
    IOTA = auto()  # 0, 1, 2 ... along the only axis
    PART = auto()  # (variable, count, axis): one of `count` equal parts of a BUFFER or IOTA
    # unary
    CAST = auto()  # to the Node's dtype
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
    DIV = auto()  # of integers rounded towards minus infinity; an integer divided by 0 is 0
    MOD = auto()  # integers only; has the divisor's sign; modulo 0 is 0
    FMOD = auto()  # floats only: exactly x - n y, n = trunc(x / y); has the sign of x
    MAX = auto()
    LT = auto()
    EQ = auto()
    XOR = auto()
    AND = auto()
    OR = auto()
    SHL = auto()  # by fewer bits than the dtype has
    SHR = auto()  # likewise
    # ternary
    WHERE = auto()
    MULACC = auto()  # a * b + c
    # reductions; their axes are removed from the shape
    SUM = auto()  # axes
    REDUCE_MAX = auto()  # axes
    # movements, which copy nothing
    RESHAPE = auto()  # shape
    PERMUTE = auto()  # axes
    EXPAND = auto()  # shape
    PAD = auto()  # ((before, after), ...), filled with zero
    SHRINK = auto()  # ((begin, end), ...)
    STRIDE = auto()  # steps; a negative one also flips its axis
    # the rest
    DOT = auto()  # [..., M, K] x [..., K, N] -> [..., M, N]
    GATHER = auto()  # table [N, ...], index int [...] -> [..., ...]
    CONCAT = auto()  # axis
    CONTIGUOUS = auto()  # the source, which must be stored in memory
    FUNCTION = auto()  # vjp: the value of the first source, with this gradient rule
    # control flow, see control_flow.py
    PARAMETER = auto()  # (depth, position, ...): a value that an iteration of a loop receives
    LOOP = auto()  # Body; sources: initial, then captured values; it has no value itself
    COND = auto()  # sources: condition of shape (), two values; computes only the chosen one
    RESULT = auto()  # position: a carried value of the LOOP after its last iteration


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
# Refused for bools, which are stored as bytes 0 or 1: the result could be another number.
NOT_BOOL = frozenset({Op.NEG, Op.ADD, Op.SUB, Op.DIV, Op.MOD, Op.SHL, Op.SHR, Op.MULACC, Op.SUM})

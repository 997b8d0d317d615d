"""OpenCL C: types, literals, one expression for each elementwise operation, local memory that
lanes exchange values in, and loops of turns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from imgmlp.engine.ir.dtype import DType, bool_, f16
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.uops import Code, Range, U

SYMBOLS = {
    Op.ADD: "+", Op.SUB: "-", Op.MUL: "*", Op.LT: "<", Op.EQ: "==",
    Op.XOR: "^", Op.AND: "&", Op.OR: "|", Op.SHL: "<<", Op.SHR: ">>",
}  # fmt: skip
CALLS = {
    Op.EXP2: "power_of_two",
    Op.LOG2: "logarithm",
    Op.SIN: "sin",
    Op.COS: "cos",
    Op.SQRT: "square_root",
    Op.HASH: "lowbias32",
}


def register(dtype: DType | None) -> str:
    """Half precision is computed in float and rounded where it is stored."""
    assert dtype is not None
    return "float" if dtype is f16 else dtype.cl


def join(op: Op, a: str, b: str) -> str:
    """Two terms of a sum, or the larger of two; NaN is larger than all."""
    return f"{a} + {b}" if op is Op.SUM else f"({a} >= {b} || {a} != {a}) ? {a} : {b}"


def literal(value: Any, dtype: DType) -> str:
    """A constant in OpenCL C: the shortest decimal that names the float32 exactly."""
    if not dtype.is_float:
        return f"{int(value)}u" if dtype.cl == "uint" else f"({dtype.cl})({int(value)})"
    with np.errstate(over="ignore"):
        value = np.float32(dtype.np.type(value))
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"({value!s}f)"


def operation(op: Op, args: list[str], operand: DType, result: DType) -> str:
    """`operand` is the dtype of the last argument."""
    if op in SYMBOLS:
        return f"{args[0]} {SYMBOLS[op]} {args[1]}"
    if op in CALLS:
        return f"{CALLS[op]}({args[0]})"
    if op is Op.NEG:
        return f"-{args[0]}"
    if op is Op.CAST:
        return f"{args[0]} != 0" if result is bool_ else f"({register(result)}){args[0]}"
    if op is Op.MAX:
        return f"({args[0]} >= {args[1]} || {args[0]} != {args[0]}) ? {args[0]} : {args[1]}"
    if op is Op.WHERE:
        return f"{args[0]} ? {args[1]} : {args[2]}"
    if op is Op.MULACC:
        return f"{args[0]} * {args[1]} + {args[2]}"
    if op is Op.DIV:
        signed = operand.is_int and operand.min < 0
        return f"floor_div({args[0]}, {args[1]})" if signed else f"{args[0]} / {args[1]}"
    if op is Op.MOD:
        signed = operand.is_int and operand.min < 0
        return f"floor_mod({args[0]}, {args[1]})" if signed else f"{args[0]} % {args[1]}"
    raise AssertionError(f"{op.name} is not an elementwise operation")


# --- local memory ---


def exchanged(code: Code) -> Iterator[str]:
    """Declarations of a kernel's LOCALs, and of what GROUPs need: each lane a word, whatever its
    type. Of several kernels in one launch a group runs but one, so their LOCALs overlap."""
    begin, words, places = 0, 0, list[str]()
    for i, u in enumerate(code.uops):
        if u.op is U.RANGE and u.arg.kind == "member":
            begin = 0
        elif u.op is U.LOCAL:
            places.append(_words(f"v{i}", register(u.dtype), f"exchanged + {begin}"))
            begin += u.arg
            words = max(words, begin)
    if words:
        yield f"__local uint exchanged[{words}];"
    yield from places
    kinds = sorted({register(u.dtype) for u in code.uops if u.op is U.GROUP})
    if kinds:
        yield f"__local uint scratch[{code.local_size}];"
    yield from (_words(f"scratch_{kind}", kind, "scratch") for kind in kinds)


def _words(name: str, kind: str, place: str) -> str:
    return f"__local {kind} *const {name} = (__local {kind} *)({place});"


# --- work-groups that stay (kernels/resident.cl) ---

TURN_PARAMETERS = [(-2, "volatile __global uint *turns"), (-1, "int steps")]  # before Buffers


def turn_after_turn(units: tuple[int, ...]) -> list[str]:
    """The loop over turns, each of which is at a unit of a phase."""
    phases = len(units)
    return [
        f"const int units_of[] = {{{', '.join(map(str, units))}}};",
        "Turn turn = {0, -1};",
        f"while (take_turn(turns, &turn, units_of, {phases}, {phases} * steps)) {{",
    ]


def phase(loop: Range, units: tuple[int, ...]) -> list[str]:
    """The loop over those groups of a launch that a unit of a phase stands for."""
    own = f"{loop.count}, turn.unit, {units[loop.first]}"
    return [
        f"if (turn.phase % {len(units)} == {loop.first})",
        f"for (int unit = begin_of({own}), units = {loop.count}; unit < end_of({own}); ++unit) {{",
    ]

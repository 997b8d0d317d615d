"""OpenCL C: types, literals, one expression for each elementwise operation, local memory that
lanes exchange values in, and loops of turns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from imgmlp.engine.ir.dtype import DType, bool_, f16, i32
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.uops import Code, Range, U

# Each elementwise operation in OpenCL C, but for a cast to bool.
TEXTS = {
    Op.NEG: "-{0}", Op.EXP2: "power_of_two({0})", Op.LOG2: "logarithm({0})", Op.SIN: "sin({0})",
    Op.COS: "cos({0})", Op.SQRT: "square_root({0})", Op.HASH: "lowbias32({0})",
    Op.ADD: "{0} + {1}", Op.SUB: "{0} - {1}", Op.MUL: "{0} * {1}", Op.DIV: "{0} / {1}",
    Op.FMOD: "fmod({0}, {1})", Op.MAX: "({0} >= {1} || {0} != {0}) ? {0} : {1}", Op.LT: "{0} < {1}",
    Op.EQ: "{0} == {1}", Op.XOR: "{0} ^ {1}", Op.AND: "{0} & {1}", Op.OR: "{0} | {1}",
    Op.SHL: "{0} << {1}", Op.SHR: "{0} >> {1}", Op.WHERE: "{0} ? {1} : {2}",
    Op.MULACC: "{0} * {1} + {2}",
}  # fmt: skip
# of halves, those whose result is computed in float and may not be a half
ROUNDED = {
    Op.CAST,
    Op.EXP2,
    Op.LOG2,
    Op.SIN,
    Op.COS,
    Op.SQRT,
    Op.ADD,
    Op.SUB,
    Op.MUL,
    Op.DIV,
    Op.MULACC,
}
WRAPPING = {  # of ints, which C must not overflow; smaller types are computed as ints
    Op.NEG: "wrap_subtract(0, {0})", Op.ADD: "wrap_add({0}, {1})",
    Op.SUB: "wrap_subtract({0}, {1})", Op.MUL: "wrap_multiply({0}, {1})",
    Op.MULACC: "wrap_add(wrap_multiply({0}, {1}), {2})",
}  # fmt: skip
SIGNED = {Op.DIV: "floor_div({0}, {1})", Op.MOD: "floor_mod({0}, {1})"}  # of signed integers
UNSIGNED = {Op.DIV: "{1} ? {0} / {1} : 0", Op.MOD: "{1} ? {0} % {1} : 0"}


def register(dtype: DType | None) -> str:
    """Halves are computed in float, and each result is rounded to a half."""
    assert dtype is not None
    return "float" if dtype is f16 else dtype.cl


def join(op: Op, a: str, b: str, dtype: DType | None) -> str:
    """Two terms of a sum, or the larger of two; NaN is larger than all."""
    if op is Op.SUM and dtype is i32:
        return WRAPPING[Op.ADD].format(a, b)
    return TEXTS[Op.ADD if op is Op.SUM else Op.MAX].format(a, b)


def not_below(a: str, limit: str) -> str:
    """The larger of a value, which may be NaN, and a number: one instruction of x86."""
    return f"{limit} > {a} ? {limit} : {a}"


def not_above(a: str, limit: str) -> str:
    """The smaller of both, likewise."""
    return f"{a} > {limit} ? {limit} : {a}"


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


def operation(op: Op, args: list[str], operand: DType, result: DType, vector: bool) -> str:
    """`operand` is the dtype of the last argument; the result may be a `vector`."""
    if op is Op.CAST:
        found = f"{args[0]} != 0" if result is bool_ else f"({register(result)}){args[0]}"
    else:
        whole = (SIGNED if operand.min < 0 else UNSIGNED) if operand.is_int else {}
        if result is i32 and not vector:
            whole = whole | WRAPPING
        found = (whole.get(op) or TEXTS[op]).format(*args)
    return f"round_half({found})" if result is f16 and op in ROUNDED else found


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


# --- work-groups that stay (kernels/persistent.cl) ---

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

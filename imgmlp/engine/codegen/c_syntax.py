"""Pieces of OpenCL C: types, literals, elementwise operations, local memory, and phase loops.

The functions here turn one fact each into text; render.py puts the text of a kernel together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from imgmlp.engine.ir.dtype import DType, bool_, f16, i32
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.uops import Code, Range, U

# The text of each elementwise operation but a cast; functions are in kernels/scalar.cl.
OPERATION_TEMPLATES = {
    Op.NEG: "-{0}", Op.EXP2: "power_of_two({0})", Op.LOG2: "logarithm({0})", Op.SIN: "sin({0})",
    Op.COS: "cos({0})", Op.SQRT: "square_root({0})", Op.HASH: "lowbias32({0})",
    Op.ADD: "{0} + {1}", Op.SUB: "{0} - {1}", Op.MUL: "{0} * {1}", Op.DIV: "{0} / {1}",
    Op.FMOD: "fmod({0}, {1})", Op.MAX: "({0} >= {1} || {0} != {0}) ? {0} : {1}", Op.LT: "{0} < {1}",
    Op.EQ: "{0} == {1}", Op.XOR: "{0} ^ {1}", Op.AND: "{0} & {1}", Op.OR: "{0} | {1}",
    Op.SHL: "{0} << {1}", Op.SHR: "{0} >> {1}", Op.WHERE: "{0} ? {1} : {2}",
    Op.MULACC: "{0} * {1} + {2}",
}  # fmt: skip
# Operations on halves whose result, computed in float, must be rounded to a half.
ROUNDED_HALF_OPERATIONS = {
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
# Arithmetic on int, which must wrap around where C's must not overflow. C computes smaller types as
# int, where they cannot overflow.
WRAPPING_TEMPLATES = {
    Op.NEG: "wrap_subtract(0, {0})", Op.ADD: "wrap_add({0}, {1})",
    Op.SUB: "wrap_subtract({0}, {1})", Op.MUL: "wrap_multiply({0}, {1})",
    Op.MULACC: "wrap_add(wrap_multiply({0}, {1}), {2})",
}  # fmt: skip
# Integer division rounds down, and a division by zero gives 0.
SIGNED_TEMPLATES = {Op.DIV: "floor_div({0}, {1})", Op.MOD: "floor_mod({0}, {1})"}
UNSIGNED_TEMPLATES = {Op.DIV: "{1} ? {0} / {1} : 0", Op.MOD: "{1} ? {0} % {1} : 0"}


def register_type(dtype: DType | None) -> str:
    """The C type of a value in a register: halves are computed in float, and rounded each time."""
    assert dtype is not None
    return "float" if dtype is f16 else dtype.cl


def combine(op: Op, a: str, b: str, dtype: DType | None) -> str:
    """The sum of two terms, or their maximum, where NaN is larger than all numbers."""
    if op is Op.SUM and dtype is i32:
        return WRAPPING_TEMPLATES[Op.ADD].format(a, b)
    return OPERATION_TEMPLATES[Op.ADD if op is Op.SUM else Op.MAX].format(a, b)


def larger_of(a: str, limit: str) -> str:
    """The larger of a value, which may be NaN, and a number, as one instruction of x86."""
    return f"{limit} > {a} ? {limit} : {a}"


def smaller_of(a: str, limit: str) -> str:
    """The smaller of a value, which may be NaN, and a number, as one instruction of x86."""
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


def operation_text(op: Op, args: list[str], operand: DType, result: DType, vector: bool) -> str:
    """The expression of an operation on some arguments.

    `operand` is the dtype of the last argument; `vector` says whether the result is a vector.
    """
    if op is Op.CAST:
        text = f"{args[0]} != 0" if result is bool_ else f"({register_type(result)}){args[0]}"
    else:
        whole = (
            (SIGNED_TEMPLATES if operand.min < 0 else UNSIGNED_TEMPLATES) if operand.is_int else {}
        )
        if result is i32 and not vector:
            whole = whole | WRAPPING_TEMPLATES
        text = (whole.get(op) or OPERATION_TEMPLATES[op]).format(*args)
    return f"round_half({text})" if result is f16 and op in ROUNDED_HALF_OPERATIONS else text


# --- local memory ---


def local_declarations(code: Code) -> Iterator[str]:
    """Declarations of a kernel's LOCALs, and of the scratch memory of its GROUPs.

    A GROUP needs a word for each lane, whatever its type. Of the kernels of a Fused launch each
    group runs only one, so their LOCALs overlap.
    """
    begin, words, places = 0, 0, list[str]()
    for i, u in enumerate(code.uops):
        if u.op is U.RANGE and u.arg.kind == "member":
            begin = 0
        elif u.op is U.LOCAL_ARRAY:
            places.append(_local_pointer(f"v{i}", register_type(u.dtype), f"exchanged + {begin}"))
            begin += u.arg
            words = max(words, begin)
    if words:
        yield f"__local uint exchanged[{words}];"
    yield from places
    kinds = sorted({register_type(u.dtype) for u in code.uops if u.op is U.GROUP_REDUCE})
    if kinds:
        yield f"__local uint scratch[{code.local_size}];"
    yield from (_local_pointer(f"scratch_{kind}", kind, "scratch") for kind in kinds)


def _local_pointer(name: str, kind: str, place: str) -> str:
    return f"__local {kind} *const {name} = (__local {kind} *)({place});"


# --- persistent work-groups (kernels/persistent.cl) ---

PERSISTENT_PARAMETERS = [
    (-2, "volatile __global uint *turns"),
    (-1, "int steps"),
]  # (position, text): before all Buffers


def open_phase_loop(units: tuple[int, ...]) -> list[str]:
    """The beginning of the loop over turns; each turn is one unit of work of a phase."""
    phases = len(units)
    return [
        f"const int units_of[] = {{{', '.join(map(str, units))}}};",
        "Turn turn = {0, -1};",
        f"while (take_turn(turns, &turn, units_of, {phases}, {phases} * steps)) {{",
    ]


def open_phase(loop: Range, units: tuple[int, ...]) -> list[str]:
    """The beginning of the loop over those work-groups of a phase that one unit runs."""
    own = f"{loop.count}, turn.unit, {units[loop.first]}"
    first = f"unit = group_begin({own}), units = {loop.count}"
    return [
        f"if (turn.phase % {len(units)} == {loop.first})",
        f"for (int {first}; unit < group_end({own}); ++unit) {{",
    ]

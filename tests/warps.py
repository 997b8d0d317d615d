"""Kernels for matrix units, lane by lane on a processor: no driver but NVIDIA's takes their PTX.

A program's OpenCL C is turned into C++, PTX replaced by what it does (tests/warps.h), and compiled
with g++. Beyond each Buffer lie guards, which must stay as they are.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imgmlp.engine import Program
from imgmlp.engine.ir.uops import Code
from imgmlp.engine.oracle import emulate_uops
from imgmlp.engine.oracle.sanitizer import Memory

COMPILER = shutil.which("g++")
REPLACED = ("multiply", "half_of", "halves_2", "load_word")
GUARD, UNTOUCHED = 4096, 0xA5  # bytes beside each Buffer, and what stands there
ALIGN = 256


WIDTHS = {"half": 2, "ushort": 2, "float": 4, "int": 4, "uint": 4}
LOCAL = 48 << 10  # bytes that NVIDIA's driver gives a kernel


def local_bytes(source: str) -> int:
    """The most that a kernel declares in local memory."""
    declared = re.compile(r"^  __local (\w+) \w+\[(\d+|LANES)\]", re.MULTILINE)
    kernels = [declared.findall(text) for text in source.split("__kernel")[1:]]
    count = {"LANES": 128}
    return max(sum(WIDTHS[k] * int(count.get(n, n)) for k, n in found) for found in kernels)


def run(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a step of an emulated group's Program."""
    stages = program.stages
    library = _compiled(stages.source, tuple(dict.fromkeys(stages.functions)), folder)

    def launch(code: Code, memory: Memory) -> None:
        name = stages.functions[[c is code for c in stages.codes].index(True)]
        guarded = [_guarded(memory[b]) for b in code.buffers]
        pointers = (ctypes.c_void_p * len(guarded))(*(a.ctypes.data for _, a in guarded))
        getattr(library, f"run_{name}")(pointers, code.global_size, code.local_size)
        for storage, (around, inside) in zip(code.buffers, guarded, strict=True):
            memory[storage][...] = inside
            inside.view(np.uint8)[...] = UNTOUCHED
            assert (around == UNTOUCHED).all(), f"{name} writes beyond {storage}"

    with monkeypatch.context() as patch:
        patch.setattr(emulate_uops, "run_code", launch)
        program.run()


def _guarded(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Bytes, and an aligned copy of the array in their middle."""
    around = np.full(array.nbytes + 2 * GUARD + ALIGN, UNTOUCHED, np.uint8)
    begin = GUARD + -(around.ctypes.data + GUARD) % ALIGN
    inside = around[begin : begin + array.nbytes].view(array.dtype)
    inside[...] = array
    return around, inside


@cache
def _compiled(source: str, names: tuple[str, ...], folder: Path) -> Any:
    size = re.search(r"#define FACTOR_BYTES \d\n", source)
    assert size
    text = size[0] + (Path(__file__).parent / "warps.h").read_text("utf-8") + _as_cpp(source)
    for name in names:
        parameters = re.search(rf"void {name}\((.*?)\) {{", text, re.DOTALL)
        assert parameters
        kinds = [p.rsplit("*", 1)[0] + "*" for p in parameters[1].split(", ")]
        arguments = ", ".join(f"({kind})a[{i}]" for i, kind in enumerate(kinds))
        text += f"static void call_{name}(void **a) {{ {name}({arguments}); }}\n"
        text += f'extern "C" void run_{name}(void **a, int items, int lanes) '
        text += f"{{ launch(call_{name}, a, items, lanes); }}\n"
    path = folder / "step.cpp"
    path.write_text(text, "utf-8")
    library = path.with_suffix(".so")
    options = ["-O1", "-w", "-fpermissive", "-mf16c", "-shared", "-fPIC"]
    done = subprocess.run(
        [str(COMPILER), *options, str(path), "-o", str(library)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


def _as_cpp(source: str) -> str:
    for name in REPLACED:
        while (shorter := _without(source, name)) != source:
            source = shorter
    source = re.sub(r"#define SQUARES_\d\((?:.*\\\n)+.*\n", "", source)
    source = re.sub(r"#define FLOAT_OF_4\(.*\n", FLOAT_OF_4, source)
    source = re.sub(r"\((float4|float2|uint2)\)\(", r"\1(", source)
    arrays = re.compile(r"^  __local (.*? (\w+)\[.*)", re.MULTILINE)
    source = arrays.sub(r"  static \1 NOTHING(\2);", source)
    source = re.sub(r"^  __local ", "  static ", source, flags=re.MULTILINE)
    source = re.sub(r"__attribute__\(\(reqd_work_group_size\(.*?\)\)\)", "", source)
    return re.sub(r"\b(__global|__local|__kernel|restrict)\b|_Pragma\(.*?\)", "", source)


FLOAT_OF_4 = (
    "#define FLOAT_OF_4(all, n) ((n) == 0 ? (all).x : (n) == 1 ? (all).y"
    " : (n) == 2 ? (all).z : (all).w)\n"
)


def _without(source: str, name: str) -> str:
    """Without the definition of a function."""
    found = re.search(rf"^static \w+ {name}\(.*?^}}\n", source, re.DOTALL | re.MULTILINE)
    short = re.search(rf"^static \w+ {name}\([^\n]*}}\n", source, re.MULTILINE)
    definition = short or found
    return source.replace(definition[0], "", 1) if definition else source

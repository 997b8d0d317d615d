"""What PoCL's compiler takes the processor for, and putting that right where it is wrong.

PoCL asks LLVM for the processor's name and compiles for that name alone: whatever the name implies
may be used, whatever else the processor has is not. LLVM goes by the maker's family and model
numbers, so that it knows nothing newer than itself, and believes a model's name also where a
hypervisor hides half of its instructions. The first ends in `unknown target CPU 'generic'`, or in
code for an older model of the family, the second in an illegal instruction, which ends the process.

PoCL 3.0 is what PyPI has, and it has no way to be given another name; so the one in its description
of the device is replaced before anything is built. Nothing here knows OpenCL beyond the strings and
the address that it is given.
"""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

PLATFORM = "Portable Computing Language"
WHEEL = "3.0-rc2"  # what the PoCL of pocl-binary-distribution 3.0 calls itself; it has LLVM 14
TRIPLET = "x86_64-unknown-linux-gnu"  # its target
# The wheel's PoCL has clang read a header of 18,600 lines, twice, before every program, which takes
# 80 ms of Zen 4; defined as if it had been read before, the header is passed over.
PASSED_OVER = "-D_OPENCL_H_"
CPUINFO = Path("/proc/cpuinfo")
MEMORY = Path("/proc/self/mem")
DESCRIPTION = 4096  # bytes, of PoCL's description of a device, that are looked through
LONGEST = 256  # bytes of a string in it that are looked at
LOWEST, HIGHEST = 1 << 16, 1 << 47  # where a process on Linux x86-64 may have memory

# The names that LLVM 14 takes for 64-bit processors: each with one that it adds to, and the flags,
# as Linux calls them, of the instructions that it adds and a compiler uses without being asked.
# Source: clang-14 -cc1 -triple x86_64-linux-gnu -target-cpu NAME -E -dM -x c /dev/null
ADDS = {
    "x86-64": ("", "sse2"),
    "nocona": ("x86-64", "cx16 pni"),
    "core2": ("nocona", "lahf_lm ssse3"),
    "penryn": ("core2", "sse4_1"),
    "x86-64-v2": ("penryn", "popcnt sse4_2"),
    "nehalem": ("x86-64-v2", ""),
    "westmere": ("x86-64-v2", ""),
    "bonnell": ("core2", "movbe"),
    "silvermont": ("x86-64-v2", "movbe"),
    "goldmont": ("silvermont", ""),
    "goldmont-plus": ("silvermont", ""),
    "tremont": ("silvermont", "gfni"),
    "sandybridge": ("x86-64-v2", "avx"),
    "ivybridge": ("sandybridge", "f16c"),
    "x86-64-v3": ("ivybridge", "abm avx2 bmi1 bmi2 fma movbe"),
    "haswell": ("x86-64-v3", ""),
    "broadwell": ("x86-64-v3", ""),
    "skylake": ("x86-64-v3", ""),
    "alderlake": ("x86-64-v3", "avx_vnni gfni"),
    "knl": ("x86-64-v3", "avx512cd avx512er avx512f"),
    "knm": ("knl", "avx512_vpopcntdq"),
    "x86-64-v4": ("x86-64-v3", "avx512bw avx512cd avx512dq avx512f avx512vl"),
    "skylake-avx512": ("x86-64-v4", ""),
    "cascadelake": ("x86-64-v4", "avx512_vnni"),
    "cooperlake": ("cascadelake", ""),
    "cannonlake": ("x86-64-v4", "avx512ifma avx512vbmi"),
    "icelake-client": (
        "cannonlake",
        "avx512_bitalg avx512_vbmi2 avx512_vnni avx512_vpopcntdq gfni",
    ),
    "rocketlake": ("icelake-client", ""),
    "icelake-server": ("icelake-client", ""),
    "tigerlake": ("icelake-client", ""),
    "sapphirerapids": ("icelake-client", "avx512_fp16 avx_vnni"),
    "k8": ("x86-64", ""),
    "k8-sse3": ("k8", "pni"),
    "amdfam10": ("k8-sse3", "abm cx16 lahf_lm popcnt sse4a"),
    "btver1": ("amdfam10", "ssse3"),
    "btver2": ("sandybridge", "abm bmi1 f16c movbe sse4a"),
    "bdver1": ("sandybridge", "abm fma4 sse4a xop"),
    "bdver2": ("bdver1", "bmi1 f16c fma tbm"),
    "bdver3": ("bdver2", ""),
    "bdver4": ("bdver3", "avx2 bmi2 movbe"),
    "znver1": ("x86-64-v3", "sse4a"),
    "znver2": ("znver1", ""),
    "znver3": ("znver2", ""),
}
# What LLVM since 16 calls processors with AVX-512, besides those above.
LATER_WIDE = {"znver4", "znver5", "emeraldrapids", "graniterapids", "graniterapids-d"}
# Names to give instead of a wrong one, the best first.
BEST = ("icelake-server", "skylake-avx512", "haswell", "sandybridge", "x86-64-v2", "x86-64")
# What NumPy, which asks the processor itself, calls some of the flags. An emulator of processors
# may well show the /proc/cpuinfo of the machine that it runs on.
ASKED = {
    "pni": "SSE3", "ssse3": "SSSE3", "sse4_1": "SSE41", "sse4_2": "SSE42", "popcnt": "POPCNT",
    "avx": "AVX", "f16c": "F16C", "fma": "FMA3", "fma4": "FMA4", "xop": "XOP", "avx2": "AVX2",
    "abm": "LZCNT", "bmi1": "BMI", "bmi2": "BMI2", "movbe": "MOVBE", "gfni": "GFNI",
    "avx512f": "AVX512F", "avx512cd": "AVX512CD", "avx512bw": "AVX512BW", "avx512dq": "AVX512DQ",
    "avx512vl": "AVX512VL", "avx512ifma": "AVX512IFMA", "avx512vbmi": "AVX512VBMI",
    "avx512_vbmi2": "AVX512VBMI2", "avx512_vnni": "AVX512VNNI", "avx512_bitalg": "AVX512BITALG",
    "avx512_vpopcntdq": "AVX512VPOPCNTDQ", "avx512_fp16": "AVX512FP16",
}  # fmt: skip

_given: dict[int, str] = {}  # names that PoCL was given, by where it reads them
_texts: list[ctypes.Array[ctypes.c_char]] = []  # of them all, as it may still read an earlier one
_giving = threading.RLock()


# The processor


@cache
def processor_flags() -> frozenset[str]:
    """What every core can do, as Linux calls it; empty where nobody says."""
    try:
        lines = CPUINFO.read_text("utf-8", "replace").splitlines()
    except OSError:
        return frozenset()
    told = {words for key, _, words in (x.partition(":") for x in lines) if key.strip() == "flags"}
    flags = set.intersection(*(set(words.split()) for words in told)) if told else set()
    umath = getattr(getattr(np, "_core", None), "_multiarray_umath", None)  # NumPy may move it
    asked: dict[str, bool] = getattr(umath, "__cpu_features__", {})
    return frozenset(f for f in flags if asked.get(ASKED.get(f, ""), True))


def implied(name: str) -> frozenset[str]:
    """The flags of all instructions that LLVM 14 may use for a name of ADDS."""
    before, added = ADDS[name]
    return frozenset(added.split()) | (implied(before) if before else frozenset())


def is_right(name: str, flags: frozenset[str]) -> bool:
    """Whether LLVM 14 takes a name, and uses nothing for it that the processor has not."""
    return name in ADDS and implied(name) <= flags


def unfit(platform: str, name: str) -> str:
    """Why what PoCL compiles for a processor of that name may end the process, "" if nothing known.

    No trial can tell: which of the instructions a compiler uses depends on what it compiles.
    """
    flags = processor_flags()
    if platform != PLATFORM or not flags:
        return ""
    known = name if name in ADDS else "x86-64-v4" if name in LATER_WIDE else ""
    lacking = sorted(implied(known) - flags) if known else []
    if not lacking:
        return ""
    return f"PoCL compiles for {name}, but this processor has no {', '.join(lacking)}"


def widens(name: str, best: str) -> bool:
    """Whether it is for AVX-512 and `name` is not: LLVM 14 knows the fourth Zen as the third."""
    return "avx512f" in implied(best) - implied(name)


def best_name(flags: frozenset[str]) -> str | None:
    """What LLVM 14 should take a processor for; None for one that is no x86-64."""
    return next((name for name in BEST if is_right(name, flags)), None)


# PoCL


def compiled_for(version: str) -> str:
    """The processor's name that a PoCL device told of when it started, "" if it told none."""
    match = re.search(r"HSTR: \S*-linux-gnu-(\S+)", version)
    return match[1] if match else ""


def vector_width(platform: str, target: str) -> int:
    """Floats of the widest vectors that a compiler for `target` should be given."""
    known = target in LATER_WIDE or (target in ADDS and "avx512f" in implied(target))
    wide = platform == PLATFORM and known and "avx512f" in processor_flags()
    return 16 if wide else 8


def peak_width(platform: str, target: str) -> int:
    """Floats of the widest vectors that a driver is known to make code of for this processor.

    Kernels have those of vector_width(): nobody has seen yet what wider ones gain elsewhere.
    """
    if platform == PLATFORM:
        return vector_width(platform, target)
    return 16 if "avx512f" in processor_flags() else 8


def mended(device: int, driver: str, version: str) -> str:
    """The processor's name that PoCL's compiler is given, after putting it right where it is wrong.

    `device` is the address that a cl_device_id of PoCL holds, the others are its driver and device
    version. A name that cannot be replaced stays: the device then does not work, see unfit().
    """
    with _giving:
        place = name_place(device, driver, version)
        if place is None:
            return compiled_for(version)
        name = _given.get(place, compiled_for(version))
        flags = processor_flags()
        best = best_name(flags)
        if best is None or (is_right(name, flags) and not widens(name, best)):
            return name
        give(place, best)
        return best


def name_place(device: int, driver: str, version: str) -> int | None:
    """Where the wheel's PoCL keeps the pointer to the processor's name, known by what it holds.

    It follows the one to the target's triplet. None if that is not found exactly once.
    """
    told = compiled_for(version)
    if driver != WHEEL or not told or f"-{TRIPLET}-" not in version:
        return None
    held = read_memory(device, DESCRIPTION)
    words = struct.unpack(f"<{len(held) // 8}Q", held[: len(held) // 8 * 8])
    pairs = enumerate(pairwise(words), start=1)
    places = [
        place
        for place, (before, name) in ((device + 8 * n, pair) for n, pair in pairs)
        if _string(before) == TRIPLET and (place in _given or _string(name) == told)
    ]
    return places[0] if len(places) == 1 else None


def give(place: int, name: str) -> None:
    """Have PoCL read another name, for as long as the process lives."""
    with _giving:
        if _given.get(place) == name:
            return
        _texts.append(ctypes.create_string_buffer(name.encode()))
        ctypes.c_void_p.from_address(place).value = ctypes.addressof(_texts[-1])
        _given[place] = name


# Memory that may not be there, read as a file: a wrong address is an error and no crash


def read_memory(address: int, nbytes: int) -> bytes:
    """What this process has at an address, perhaps less than wanted."""
    if not LOWEST <= address < HIGHEST:
        return b""
    try:
        with MEMORY.open("rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(nbytes)
    except OSError:
        return b""


def _string(address: int) -> str:
    """The string at an address, "" if none is there."""
    text, end, _ = read_memory(address, LONGEST).partition(b"\0")
    return text.decode("ascii", "replace") if end else ""

"""Detects and corrects the processor that PoCL compiles for.

PoCL asks LLVM for the processor's name and compiles for that name alone: all instructions that the
name implies may be used, and no others. LLVM derives the name from the vendor's family and model
numbers. So it does not know processors newer than itself, for which it fails with `unknown target
CPU 'generic'` or compiles for an older model. And it trusts the model even if a hypervisor hides
some of its instructions; then the process ends with an illegal instruction.

The version on PyPI, PoCL 3.0, has no option for another name. So the name in its description of the
device is overwritten before anything is built. This module knows nothing of OpenCL but the strings
and the address that it is given.
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
WHEEL_VERSION = (
    "3.0-rc2"  # what the PoCL of pocl-binary-distribution 3.0 calls itself; it has LLVM 14
)
TRIPLET = "x86_64-unknown-linux-gnu"  # its target
# The wheel's PoCL has clang read a header of 18,600 lines twice for every program, which takes
# 80 ms on a Zen 4. This option defines the header's include guard, so that it is skipped.
SKIP_HEADER_OPTION = "-D_OPENCL_H_"
CPUINFO = Path("/proc/cpuinfo")
MEMORY = Path("/proc/self/mem")
DESCRIPTION_BYTES = 4096  # bytes, of PoCL's description of a device, that are looked through
MAX_STRING_BYTES = 256  # bytes of a string in it that are looked at
MIN_ADDRESS, MAX_ADDRESS = 1 << 16, 1 << 47  # where a process on Linux x86-64 may have memory

# The names of 64-bit processors that LLVM 14 accepts: each with the one that it extends, and with
# the flags, by Linux's names, of the instructions that it adds and that a compiler uses by itself.
# Source: clang-14 -cc1 -triple x86_64-linux-gnu -target-cpu NAME -E -dM -x c /dev/null
LLVM_PROCESSORS = {
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
# Names of processors with AVX-512 that LLVM has added since version 16.
NEWER_AVX512_PROCESSORS = {"znver4", "znver5", "emeraldrapids", "graniterapids", "graniterapids-d"}
# Names that replace a wrong one, the best first.
REPLACEMENT_NAMES = (
    "icelake-server",
    "skylake-avx512",
    "haswell",
    "sandybridge",
    "x86-64-v2",
    "x86-64",
)
# NumPy's names of some flags. NumPy asks the processor itself, while an emulator of processors may
# show the /proc/cpuinfo of the machine that it runs on.
NUMPY_FEATURE_NAMES = {
    "pni": "SSE3", "ssse3": "SSSE3", "sse4_1": "SSE41", "sse4_2": "SSE42", "popcnt": "POPCNT",
    "avx": "AVX", "f16c": "F16C", "fma": "FMA3", "fma4": "FMA4", "xop": "XOP", "avx2": "AVX2",
    "abm": "LZCNT", "bmi1": "BMI", "bmi2": "BMI2", "movbe": "MOVBE", "gfni": "GFNI",
    "avx512f": "AVX512F", "avx512cd": "AVX512CD", "avx512bw": "AVX512BW", "avx512dq": "AVX512DQ",
    "avx512vl": "AVX512VL", "avx512ifma": "AVX512IFMA", "avx512vbmi": "AVX512VBMI",
    "avx512_vbmi2": "AVX512VBMI2", "avx512_vnni": "AVX512VNNI", "avx512_bitalg": "AVX512BITALG",
    "avx512_vpopcntdq": "AVX512VPOPCNTDQ", "avx512_fp16": "AVX512FP16",
}  # fmt: skip

_names_by_address: dict[int, str] = {}  # names that were set, by the address of PoCL's pointer
_name_buffers: list[
    ctypes.Array[ctypes.c_char]
] = []  # all of them, as PoCL may still read an earlier one
_lock = threading.RLock()


# The processor


@cache
def processor_flags() -> frozenset[str]:
    """The flags, by Linux's names, that all cores have; empty if they are not known."""
    try:
        lines = CPUINFO.read_text("utf-8", "replace").splitlines()
    except OSError:
        return frozenset()
    per_core = {
        words for key, _, words in (x.partition(":") for x in lines) if key.strip() == "flags"
    }
    flags = set.intersection(*(set(words.split()) for words in per_core)) if per_core else set()
    umath = getattr(getattr(np, "_core", None), "_multiarray_umath", None)  # NumPy may move it
    asked: dict[str, bool] = getattr(umath, "__cpu_features__", {})
    return frozenset(f for f in flags if asked.get(NUMPY_FEATURE_NAMES.get(f, ""), True))


def implied(name: str) -> frozenset[str]:
    """The flags of all instructions that LLVM 14 may use for a name in LLVM_PROCESSORS."""
    before, added = LLVM_PROCESSORS[name]
    return frozenset(added.split()) | (implied(before) if before else frozenset())


def is_right(name: str, flags: frozenset[str]) -> bool:
    """Whether LLVM 14 accepts a name and uses only instructions for it that the processor has."""
    return name in LLVM_PROCESSORS and implied(name) <= flags


def unsupported_reason(platform: str, name: str) -> str:
    """Why code that PoCL compiles for a processor of that name may crash; "" if no reason is known.

    A trial cannot tell, as it depends on the program which instructions the compiler uses.
    """
    flags = processor_flags()
    if platform != PLATFORM or not flags:
        return ""
    processor = (
        name if name in LLVM_PROCESSORS else "x86-64-v4" if name in NEWER_AVX512_PROCESSORS else ""
    )
    lacking = sorted(implied(processor) - flags) if processor else []
    if not lacking:
        return ""
    return f"PoCL compiles for {name}, but this processor has no {', '.join(lacking)}"


def widens(name: str, best: str) -> bool:
    """Whether `best` has AVX-512 and `name` has not: LLVM 14 takes a Zen 4 for a Zen 3."""
    return "avx512f" in implied(best) - implied(name)


def best_name(flags: frozenset[str]) -> str | None:
    """The name that LLVM 14 should compile for; None for other processors than x86-64."""
    return next((name for name in REPLACEMENT_NAMES if is_right(name, flags)), None)


# PoCL


def compiled_for(version: str) -> str:
    """The processor's name in the version string of a PoCL device, "" if there is none."""
    match = re.search(r"HSTR: \S*-linux-gnu-(\S+)", version)
    return match[1] if match else ""


def vector_width(platform: str, target: str) -> int:
    """Floats of the widest vectors that a compiler for `target` should be given."""
    is_supported = target in NEWER_AVX512_PROCESSORS or (
        target in LLVM_PROCESSORS and "avx512f" in implied(target)
    )
    wide = platform == PLATFORM and is_supported and "avx512f" in processor_flags()
    return 16 if wide else 8


def peak_width(platform: str, target: str) -> int:
    """Floats of the widest vectors that a driver is known to use on this processor.

    Kernels use those of vector_width(), as it was not measured yet what wider ones gain on other
    drivers than PoCL.
    """
    if platform == PLATFORM:
        return vector_width(platform, target)
    return 16 if "avx512f" in processor_flags() else 8


def corrected_processor(device: int, driver: str, version: str) -> str:
    """Replace the processor's name that PoCL compiles for if it is wrong; returns the name.

    `device` is the address that a cl_device_id of PoCL holds; the others are its driver and device
    version. A name that cannot be replaced stays, and unsupported_reason() tells of it.
    """
    with _lock:
        place = name_pointer_address(device, driver, version)
        if place is None:
            return compiled_for(version)
        name = _names_by_address.get(place, compiled_for(version))
        flags = processor_flags()
        best = best_name(flags)
        if best is None or (is_right(name, flags) and not widens(name, best)):
            return name
        set_processor_name(place, best)
        return best


def name_pointer_address(device: int, driver: str, version: str) -> int | None:
    """The address of the pointer to the processor's name in the wheel's PoCL.

    It is recognised by its content and by the pointer before it, which is to the target's triplet.
    None if there is not exactly one such place.
    """
    compiled = compiled_for(version)
    if driver != WHEEL_VERSION or not compiled or f"-{TRIPLET}-" not in version:
        return None
    held = read_memory(device, DESCRIPTION_BYTES)
    words = struct.unpack(f"<{len(held) // 8}Q", held[: len(held) // 8 * 8])
    pairs = enumerate(pairwise(words), start=1)
    places = [
        place
        for place, (before, name) in ((device + 8 * n, pair) for n, pair in pairs)
        if _string(before) == TRIPLET and (place in _names_by_address or _string(name) == compiled)
    ]
    return places[0] if len(places) == 1 else None


def set_processor_name(place: int, name: str) -> None:
    """Set the name that PoCL compiles for, for the rest of the process."""
    with _lock:
        if _names_by_address.get(place) == name:
            return
        _name_buffers.append(ctypes.create_string_buffer(name.encode()))
        ctypes.c_void_p.from_address(place).value = ctypes.addressof(_name_buffers[-1])
        _names_by_address[place] = name


# Memory is read as a file, so that a wrong address is an error instead of a crash.


def read_memory(address: int, nbytes: int) -> bytes:
    """Up to `nbytes` bytes of this process's memory at an address; fewer if they do not exist."""
    if not MIN_ADDRESS <= address < MAX_ADDRESS:
        return b""
    try:
        with MEMORY.open("rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(nbytes)
    except OSError:
        return b""


def _string(address: int) -> str:
    """The string at an address, "" if there is none."""
    text, end, _ = read_memory(address, MAX_STRING_BYTES).partition(b"\0")
    return text.decode("ascii", "replace") if end else ""

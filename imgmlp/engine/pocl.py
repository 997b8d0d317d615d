"""What PoCL's compiler takes the processor for, and putting that right where it is wrong.

PoCL asks LLVM for the processor's name and compiles for that name alone: whatever the name implies
may be used, whatever else the processor has is not. LLVM goes by the maker's family and model
numbers, so that it knows nothing newer than itself, and believes a model's name also where a
hypervisor hides half of the instructions. Nothing here knows OpenCL beyond the strings and the
address it is given.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PLATFORM = "Portable Computing Language"
CPUINFO = Path("/proc/cpuinfo")

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
    "sandybridge": ("x86-64-v2", "avx xsave"),
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


@cache
def processor_flags() -> frozenset[str]:
    """What Linux says that every core can do; empty where nobody says."""
    try:
        lines = CPUINFO.read_text("utf-8", "replace").splitlines()
    except OSError:
        return frozenset()
    told = [set(words.split()) for name, _, words in (x.partition(":") for x in lines)
            if name.strip() == "flags"]  # fmt: skip
    return frozenset(set.intersection(*told)) if told else frozenset()


def implied(name: str) -> frozenset[str]:
    """The flags of all instructions that LLVM 14 may use for a name of ADDS."""
    before, added = ADDS[name]
    return frozenset(added.split()) | (implied(before) if before else frozenset())


def compiled_for(version: str) -> str:
    """The processor's name in the version string of a PoCL device, "" if it tells none."""
    found = re.search(r"HSTR: \S*-linux-gnu-(\S+)", version)
    return found[1] if found else ""


def vector_width(platform: str, version: str) -> int:
    """Floats of the widest vectors that a device's compiler should be given: 16 with AVX-512."""
    name = compiled_for(version) if platform == PLATFORM else ""
    wide = name in LATER_WIDE or (name in ADDS and "avx512f" in implied(name))
    return 16 if wide and "avx512f" in processor_flags() else 8

"""PoCL's name for the processor is found in memory, and replaced where it is wrong.

Tests fake the name in child processes, including the one that tries the device: a sitecustomize
module writes it into PoCL's description of the device.
"""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import QUICK, Command, environment

from imgmlp.engine.device import pocl
from imgmlp.engine.device.driver import cl

CLANG_14 = shutil.which("clang-14")
# The macros that clang defines for instruction sets, and their flags in /proc/cpuinfo.
MACROS = {
    "SSE2": "sse2", "SSE3": "pni", "SSSE3": "ssse3", "SSE4_1": "sse4_1", "SSE4_2": "sse4_2",
    "SSE4A": "sse4a", "POPCNT": "popcnt", "LAHF_SAHF": "lahf_lm", "AVX": "avx",
    "F16C": "f16c", "FMA": "fma", "FMA4": "fma4", "XOP": "xop", "TBM": "tbm", "AVX2": "avx2",
    "BMI": "bmi1", "BMI2": "bmi2", "LZCNT": "abm", "MOVBE": "movbe", "GFNI": "gfni",
    "AVXVNNI": "avx_vnni", "AVX512F": "avx512f", "AVX512CD": "avx512cd", "AVX512ER": "avx512er",
    "AVX512BW": "avx512bw", "AVX512DQ": "avx512dq", "AVX512VL": "avx512vl",
    "AVX512IFMA": "avx512ifma", "AVX512VBMI": "avx512vbmi", "AVX512VBMI2": "avx512_vbmi2",
    "AVX512VNNI": "avx512_vnni", "AVX512BITALG": "avx512_bitalg", "AVX512FP16": "avx512_fp16",
    "AVX512VPOPCNTDQ": "avx512_vpopcntdq", "GCC_HAVE_SYNC_COMPARE_AND_SWAP_16": "cx16",
}  # fmt: skip

SITECUSTOMIZE = """
import os
import pyopencl
from imgmlp.engine.device import kernel_cache, pocl
kernel_cache.choose_cache()
found = [p for p in pyopencl.get_platforms() if p.name == pocl.PLATFORM]
pyopencl.get_platforms = lambda: found  # no other driver is to step in
(device,) = found[0].get_devices()
place = pocl.name_pointer_address(device.int_ptr, device.driver_version, device.version)
pocl.set_processor_name(place, os.environ["FAKE_NAME"])
exec(os.environ["FAKE_MORE"])
"""
UNCORRECTABLE = {
    "another version": "pocl.WHEEL_VERSION = '3.9'",
    "memory that cannot be read": "pocl.MEMORY = pocl.Path('/nonexistent')",
    "an unknown structure": "pocl.TRIPLET = 'x86_64-unknown-linux-gnux32'",
    "a processor without a name": "pocl.best_name = lambda flags: None",
}

# The driver reports a name that was not replaced; this fakes the report as well.
REPORT_FAKE_NAME = "; pocl.compiled_for = lambda version: os.environ['FAKE_NAME']"


def name_place() -> int | None:
    """The address of the name in this process's PoCL, if that is the wheel's."""
    for platform in cl.get_platforms() if cl else ():
        if platform.name.strip() == pocl.PLATFORM:
            (device, *_) = platform.get_devices()
            return pocl.name_pointer_address(device.int_ptr, device.driver_version, device.version)
    return None


@pytest.fixture(scope="module")
def wheel_name_address() -> int:
    place = name_place()
    if place is None:
        pytest.skip("PoCL is not there, or not the wheel's 3.0, the only one that is mended")
    return place


@pytest.fixture
def fake_name_environment(wheel_name_address: int, tmp_path: Path) -> dict[str, str]:
    """An environment in which PoCL calls the processor FAKE_NAME, with a cache of its own."""
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    path = f"{tmp_path / 'start'}:{environment()['PYTHONPATH']}"
    return {
        "PYTHONPATH": path,
        "POCL_CACHE_DIR": str(tmp_path / "cache"),
        "FAKE_NAME": "generic",
        "FAKE_MORE": "",
        "IMGMLP_DEVICE": "auto",
    }


# Names and flags


@pytest.mark.skipif(CLANG_14 is None, reason="clang 14 is not installed")
@pytest.mark.parametrize("name", pocl.LLVM_PROCESSORS)
def test_processor_name_implies_the_flags_that_clang_defines(name: str) -> None:
    options = ["-cc1", "-triple", "x86_64-linux-gnu", "-target-cpu", name, "-E", "-dM", "-x", "c"]
    preprocessed = subprocess.run(
        [str(CLANG_14), *options, "/dev/null"], capture_output=True, text=True, check=True
    ).stdout
    defined = set(re.findall(r"#define __(\w+?)(?:__)? 1$", preprocessed, re.MULTILINE))
    assert pocl.implied(name) == {flag for macro, flag in MACROS.items() if macro in defined}


@pytest.mark.parametrize(
    ("like", "hidden", "best"),
    [
        ("icelake-server", "", "icelake-server"),
        ("icelake-server", "gfni", "skylake-avx512"),
        ("skylake-avx512", "", "skylake-avx512"),
        ("skylake-avx512", "avx512vl", "haswell"),
        ("znver3", "", "haswell"),
        ("znver3", "fma", "sandybridge"),
        ("znver3", "avx", "x86-64-v2"),
        ("nehalem", "", "x86-64-v2"),
        ("nehalem", "sse4_2", "x86-64"),
        ("k8", "", "x86-64"),
    ],
)
def test_best_processor_name_implies_no_hidden_flag(like: str, hidden: str, best: str) -> None:
    flags = pocl.implied(like) - {hidden}
    assert pocl.best_name(flags) == best
    assert pocl.implied(best) <= flags
    assert pocl.is_right(like, flags) == (not hidden)


def test_processor_name_unknown_to_llvm_is_never_right() -> None:
    everything = frozenset().union(*map(pocl.implied, pocl.LLVM_PROCESSORS))
    assert not pocl.is_right("generic", everything)
    assert not pocl.is_right("znver5", everything)
    assert pocl.best_name(frozenset({"asimd"})) is None  # no x86-64


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-skylake-avx512", "skylake-avx512"),
        ("OpenCL 3.0 PoCL HSTR: cpu-x86_64-pc-linux-gnu-generic", "generic"),
        ("OpenCL 3.0 CUDA", ""),
    ],
)
def test_processor_name_is_parsed_from_the_device_version(version: str, name: str) -> None:
    assert pocl.compiled_for(version) == name


def test_vectors_of_16_need_the_compiled_name_and_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have = pocl.implied("skylake-avx512")
    monkeypatch.setattr(pocl, "processor_flags", lambda: have)
    assert pocl.vector_width(pocl.PLATFORM, "skylake-avx512") == 16
    assert pocl.vector_width(pocl.PLATFORM, "znver5") == 16
    assert pocl.vector_width(pocl.PLATFORM, "haswell") == 8
    assert pocl.vector_width("another", "skylake-avx512") == 8
    assert pocl.peak_width(pocl.PLATFORM, "skylake-avx512") == 16
    assert pocl.peak_width(pocl.PLATFORM, "haswell") == 8
    assert pocl.peak_width("another", "") == 16  # drivers that ask the processor
    monkeypatch.setattr(pocl, "processor_flags", lambda: have - {"avx512f"})
    assert pocl.vector_width(pocl.PLATFORM, "skylake-avx512") == 8
    assert pocl.peak_width("another", "") == 8


@pytest.mark.parametrize(
    ("name", "hidden", "lacking"),
    [
        ("skylake-avx512", "", ""),
        ("skylake-avx512", "avx512vl", "avx512vl"),
        ("znver5", "avx512f", "avx512f"),
        ("znver5", "", ""),
        ("haswell", "avx512f", ""),
        ("generic", "avx", ""),  # unknown, so the device is tried
    ],
)
def test_processor_without_a_flag_of_its_compiled_name_is_unsupported(
    monkeypatch: pytest.MonkeyPatch, name: str, hidden: str, lacking: str
) -> None:
    have = pocl.implied("icelake-server") - {hidden}
    monkeypatch.setattr(pocl, "processor_flags", lambda: have)
    reason = pocl.unsupported_reason(pocl.PLATFORM, name)
    assert reason.endswith(f"has no {lacking}") if lacking else reason == ""
    assert pocl.unsupported_reason("another", name) == ""
    monkeypatch.setattr(pocl, "processor_flags", frozenset)  # unknown flags
    assert pocl.unsupported_reason(pocl.PLATFORM, name) == ""


def test_processor_flags_exclude_what_numpy_denies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The flags are those of every core, without those that NumPy's own detection denies."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t: sse2 avx gfni\n\nflags\t: sse2 gfni avx amx\nbugs\t: avx2\n")
    monkeypatch.setattr(pocl, "CPUINFO", cpuinfo)
    asked = {"AVX": True, "GFNI": False, "AVX2": True}
    monkeypatch.setattr(pocl.np._core._multiarray_umath, "__cpu_features__", asked)
    assert pocl.processor_flags.__wrapped__() == {"sse2", "avx"}
    with monkeypatch.context() as another:  # a NumPy that keeps it elsewhere
        another.delattr(pocl.np._core, "_multiarray_umath")
        assert pocl.processor_flags.__wrapped__() == {"sse2", "avx", "gfni"}
    monkeypatch.setattr(pocl, "CPUINFO", tmp_path / "none")
    assert pocl.processor_flags.__wrapped__() == frozenset()


# Memory


def test_reading_unmapped_memory_returns_nothing(wheel_name_address: int) -> None:
    assert len(pocl.read_memory(wheel_name_address, 8)) == 8
    for address in (0, 8, 1 << 20, (1 << 47) - 4096, 1 << 60, (1 << 64) - 8, -8):
        assert pocl.read_memory(address, 8) == b""


def test_processor_name_buffers_are_never_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread of PoCL may be reading the name."""
    monkeypatch.setattr(pocl, "_names_by_address", {})
    held = ctypes.c_void_p(None)
    place = ctypes.addressof(held)
    pocl.set_processor_name(place, "haswell")
    first = held.value
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: pocl.set_processor_name(place, "haswell"), range(100)))
    assert held.value == first
    pocl.set_processor_name(place, "x86-64")
    assert first is not None
    assert held.value is not None
    assert ctypes.string_at(first) == b"haswell"
    assert ctypes.string_at(held.value) == b"x86-64"
    assert {first, held.value} <= {ctypes.addressof(text) for text in pocl._name_buffers}


def test_concurrent_threads_set_the_processor_name_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, given = ctypes.c_void_p(None), len(pocl._name_buffers)
    place = ctypes.addressof(held)
    ready = threading.Barrier(4)

    def slow_address(*_: object) -> int:
        time.sleep(0.01)  # the other threads reach the lock
        return place

    def look(_: int) -> str:
        ready.wait(30)
        return pocl.corrected_processor(
            0, pocl.WHEEL_VERSION, "OpenCL 3.0 PoCL HSTR: a-linux-gnu-generic"
        )

    monkeypatch.setattr(pocl, "_names_by_address", {})
    monkeypatch.setattr(pocl, "name_pointer_address", slow_address)
    monkeypatch.setattr(pocl, "best_name", lambda flags: "x86-64")
    monkeypatch.setattr(pocl, "processor_flags", lambda: pocl.implied("x86-64"))
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(look, range(4))) == ["x86-64"] * 4
    assert len(pocl._name_buffers) == given + 1


@pytest.mark.parametrize(
    ("name", "like", "given"),
    [
        ("znver3", "icelake-server", "icelake-server"),  # Zen 4, which LLVM 14 calls znver3
        ("znver3", "skylake-avx512", "skylake-avx512"),
        ("znver3", "znver3", "znver3"),
        ("skylake-avx512", "icelake-server", "skylake-avx512"),  # implies AVX-512 already
    ],
)
def test_processor_name_without_available_avx512_is_replaced(
    monkeypatch: pytest.MonkeyPatch, name: str, like: str, given: str
) -> None:
    held = ctypes.c_void_p(None)
    monkeypatch.setattr(pocl, "_names_by_address", {})
    monkeypatch.setattr(pocl, "name_pointer_address", lambda *_: ctypes.addressof(held))
    monkeypatch.setattr(pocl, "processor_flags", lambda: pocl.implied(name) | pocl.implied(like))
    version = f"OpenCL 3.0 PoCL HSTR: a-linux-gnu-{name}"
    assert pocl.corrected_processor(0, pocl.WHEEL_VERSION, version) == given
    assert bool(held.value) == (given != name)


# End to end, with a faked name


@pytest.mark.parametrize("name", ["generic", "znver5", ""])
def test_processor_name_refused_by_llvm_is_corrected(
    imgmlp: Command, fake_name_environment: dict[str, str], name: str
) -> None:
    done = imgmlp("train", "small.png", *QUICK, env=fake_name_environment | {"FAKE_NAME": name})
    assert "warning" not in done.stderr
    assert "PoCL" in done.stderr


def test_processor_name_that_implies_hidden_flags_is_corrected(
    imgmlp: Command, fake_name_environment: dict[str, str]
) -> None:
    """A hypervisor hides AVX-512 of a processor that LLVM knows by its model."""
    have = frozenset(f for f in pocl.processor_flags() if not f.startswith("avx512"))
    hide = f"pocl.processor_flags = lambda: {have!r}"
    env = fake_name_environment | {"FAKE_NAME": "skylake-avx512", "FAKE_MORE": hide}
    (device, _) = json.loads(imgmlp("devices", "--json", env=env).stdout)
    assert device["compiled_for"] == pocl.best_name(have)
    done = imgmlp("train", "small.png", *QUICK, env=env)
    assert "warning" not in done.stderr
    assert "PoCL" in done.stderr


@pytest.mark.parametrize("more", UNCORRECTABLE.values(), ids=UNCORRECTABLE)
def test_device_that_would_use_hidden_instructions_is_never_tried(
    imgmlp: Command, fake_name_environment: dict[str, str], more: str
) -> None:
    """One trial kernel cannot show which of the instructions the compiler uses."""
    have = frozenset(f for f in pocl.processor_flags() if f != "avx")
    hide = f"pocl.processor_flags = lambda: {have!r}; {more}"
    env = fake_name_environment | {"FAKE_NAME": "haswell", "FAKE_MORE": hide + REPORT_FAKE_NAME}
    done = imgmlp("train", "small.png", *QUICK, env=env)
    passed_over, _ = (x for x in done.stderr.splitlines() if x.startswith("warning: "))
    assert "PoCL compiles for haswell, but this processor has no avx;" in passed_over
    assert not list(Path(fake_name_environment["POCL_CACHE_DIR"]).rglob("*.json"))
    refused = imgmlp("train", "small.png", *QUICK, "--device", "cpu", "--force", env=env, check=6)
    assert "has no avx" in refused.stderr
    (checked,) = json.loads(
        imgmlp("devices", "--check", "--json", "--device", "cpu", env=env, check=6).stdout
    )
    assert [c["problem"] for c in checked["checks"]] == [
        "PoCL compiles for haswell, but this processor has no avx"
    ]


@pytest.mark.parametrize("more", UNCORRECTABLE.values(), ids=UNCORRECTABLE)
def test_device_with_an_uncorrectable_name_is_skipped(
    imgmlp: Command, fake_name_environment: dict[str, str], more: str
) -> None:
    env = fake_name_environment | {"FAKE_MORE": more}
    for _ in range(2):  # tried, then remembered
        done = imgmlp("train", "small.png", *QUICK, "--force", env=env)
        passed_over, numpy = (x for x in done.stderr.splitlines() if x.startswith("warning: "))
        assert "PoCL" in passed_over
        assert "unknown target CPU 'generic'" in passed_over
        assert "imgmlp devices --check" in passed_over
        assert "NumPy computes, which takes many times as long" in numpy
    for device in ("0:0", "cpu"):
        named = ("--device", device, "--force")
        refused = imgmlp("train", "small.png", *QUICK, *named, env=env, check=6)
        error, hint = (x for x in refused.stderr.splitlines() if x.startswith(("error:", "hint:")))
        assert "unknown target CPU 'generic'" in error
        assert "another" in hint

"""Chooses the devices of a run over many files, and the number of processes on each."""

from __future__ import annotations

import re

from imgmlp.child import available_cores
from imgmlp.engine import DeviceInfo, list_devices, open_device
from imgmlp.errors import DeviceError, UsageError

# Pixels that keep a GPU busy; processes with smaller pictures share one.
PIXELS_PER_GPU = 2**19
MAX_PROCESSES_PER_GPU = 8  # by default; docs/scale.md has the measurements
KIND_NAMES = ("auto", "gpu", "cpu", "numpy", "simulator")
GROUP_NAMES = ("all", "gpus")
LOCAL = "local"  # in place of a scheduler's address: a cluster on this machine
SCHEDULERS = ("tcp://", "tls://", "ucx://", "ws://", "wss://")  # prefixes of schedulers' addresses


def is_several(spec: str) -> bool:
    """Whether --device names more than one device."""
    return spec.strip().lower() in GROUP_NAMES or "," in spec


def check(spec: str, jobs: int | None) -> None:
    """Raise DeviceError or UsageError for an invalid --device or --jobs. Opens no device."""
    word = spec.strip().lower()
    for name in () if word in GROUP_NAMES else map(str.strip, word.split(",")):
        if not re.fullmatch(r"\d+:\d+", name) and name.partition(":")[0] not in KIND_NAMES:
            hint = "`imgmlp devices` lists the devices"
            raise DeviceError(f"there is no device {name!r}", hint=hint)
    if jobs is not None and not 1 <= jobs <= 64:
        raise UsageError(f"--jobs is {jobs}", hint="use a number from 1 to 64")


def named(spec: str, devices: list[DeviceInfo] | None = None) -> list[tuple[str, bool]]:
    """The devices that --device names, each with whether it is a GPU.

    No device is opened; a name of a kind, such as gpu, stays as it is. Raises DeviceError if there
    is no such device.
    """
    word = spec.strip().lower()
    names = [name.strip() for name in word.split(",")]
    if all(name.startswith("numpy") for name in names):
        return [(name, False) for name in names]  # needs no driver
    devices = list_devices() if devices is None else devices
    if word in GROUP_NAMES:
        kinds = ("gpu",) if word == "gpus" else ("gpu", "cpu", "other")
        chosen = [(info.spec, info.kind == "gpu") for info in devices if info.kind in kinds]
        if not chosen:
            hint = "`imgmlp devices` lists the devices; --device numpy works without any"
            raise DeviceError(f"--device {word} finds no device", hint=hint)
        return chosen
    gpus = {info.spec for info in devices if info.kind == "gpu"}
    known = {info.spec for info in devices} | {info.kind for info in devices} | {"auto"}
    for name in names:
        if name not in known and name.partition(":")[0] != "numpy":
            if name in KIND_NAMES:
                open_device(name)  # raises an error with the reason
            there = "; ".join(f"{info.spec} is {info.describe()}" for info in devices)
            hint = f"{there}; `imgmlp devices --check` says what is missing or wrong"
            raise DeviceError(f"there is no device {name!r}", hint=hint)
    return [(name, name in gpus or (name in ("auto", "gpu") and bool(gpus))) for name in names]


def processes(
    devices: list[tuple[str, bool]], jobs: int | None, pixels: float, cores: int | None = None
) -> list[str]:
    """The device of each process, for pictures of `pixels` pixels on average.

    The list goes through all devices before it repeats one, so that a few files are spread over
    all. Processes that share a GPU need a CPU core each, of `cores`, by default those that this
    process may use.
    """
    most = (cores or available_cores()) // max(1, sum(gpu for _, gpu in devices))
    share = max(1, min(MAX_PROCESSES_PER_GPU, most, round(PIXELS_PER_GPU / max(pixels, 1.0))))
    counts = [(name, jobs or (share if gpu else 1)) for name, gpu in devices]
    turns = max(count for _, count in counts)
    return [name for turn in range(turns) for name, count in counts if turn < count]

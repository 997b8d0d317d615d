"""Which devices a run is spread over, and how many processes each of them gets."""

from __future__ import annotations

import re

from imgmlp.child import available_cores
from imgmlp.engine import DeviceInfo, list_devices, open_device
from imgmlp.errors import DeviceError, UsageError

FILL = 2**19  # pixels that keep a GPU busy, as far as that goes: small pictures share one
MOST = 8  # processes on a GPU, if nobody says how many: docs/scale.md has what was measured
WORDS = ("auto", "gpu", "cpu", "numpy", "simulator")
SEVERAL = ("all", "gpus")
LOCAL = "local"  # instead of the address of a cluster's scheduler: workers on this machine
SCHEDULERS = ("tcp://", "tls://", "ucx://", "ws://", "wss://")  # how such addresses begin


def is_several(spec: str) -> bool:
    """Whether --device names more than one device."""
    return spec.strip().lower() in SEVERAL or "," in spec


def check(spec: str, jobs: int | None) -> None:
    """Refuse, before any device is asked for, a --device or --jobs that cannot be meant.

    Raises DeviceError or UsageError.
    """
    word = spec.strip().lower()
    for name in () if word in SEVERAL else map(str.strip, word.split(",")):
        if not re.fullmatch(r"\d+:\d+", name) and name.partition(":")[0] not in WORDS:
            hint = "`imgmlp devices` lists the devices"
            raise DeviceError(f"there is no device {name!r}", hint=hint)
    if jobs is not None and not 1 <= jobs <= 64:
        raise UsageError(f"--jobs is {jobs}", hint="use a number from 1 to 64")


def named(spec: str, devices: list[DeviceInfo] | None = None) -> list[tuple[str, bool]]:
    """The devices that --device names, and of each whether it is a GPU.

    Opens none; a word that may stand for several is left as it is. Raises DeviceError if there are
    none of these.
    """
    word = spec.strip().lower()
    names = [name.strip() for name in word.split(",")]
    if all(name.startswith("numpy") for name in names):
        return [(name, False) for name in names]  # without asking any driver
    devices = list_devices() if devices is None else devices
    if word in SEVERAL:
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
            if name in WORDS:
                open_device(name)  # which says why there is none
            there = "; ".join(f"{info.spec} is {info.describe()}" for info in devices)
            hint = f"{there}; `imgmlp devices --check` says what is missing or wrong"
            raise DeviceError(f"there is no device {name!r}", hint=hint)
    return [(name, name in gpus or (name in ("auto", "gpu") and bool(gpus))) for name in names]


def processes(
    devices: list[tuple[str, bool]], jobs: int | None, pixels: float, cores: int | None = None
) -> list[str]:
    """The device of each process, for pictures of so many pixels on average.

    The first processes are on devices of their own, so that few files are spread over all. Those
    that share a GPU need a core each, of those that this process may use if nobody says how many.
    """
    most = (cores or available_cores()) // max(1, sum(gpu for _, gpu in devices))
    share = max(1, min(MOST, most, round(FILL / max(pixels, 1.0))))
    counts = [(name, jobs or (share if gpu else 1)) for name, gpu in devices]
    turns = max(count for _, count in counts)
    return [name for turn in range(turns) for name, count in counts if turn < count]

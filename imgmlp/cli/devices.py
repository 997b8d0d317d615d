"""`imgmlp devices`: what --device takes, the self-test, and what a command tells of its device."""

from __future__ import annotations

import json
from dataclasses import asdict

from imgmlp.cli import selftest
from imgmlp.codec.float_mlp.config import Settings
from imgmlp.engine import (
    AnyDevice,
    DeviceInfo,
    check_device,
    forget_problems,
    list_devices,
    missing_drivers,
    open_device,
    open_untried,
    remove_damaged_kernels,
)
from imgmlp.errors import DeviceError
from imgmlp.terminal import Terminal
from imgmlp.text import print_data, size


def details(device: AnyDevice) -> str:
    """A line about a device and its driver."""
    info = device.info
    return f"device {info.spec}: {info.describe()}, driver {info.driver}, {info.version}"


def tell_precision(terminal: Terminal, settings: Settings, device: AnyDevice) -> None:
    """Say so where a device cannot compute with the precision that was asked for."""
    if settings.precision == "half" and not device.has_matrix_units:
        terminal.note(f"{device.info.name} has no matrix units for half precision: using float32")


def run(terminal: Terminal, as_json: bool, check: bool = False, spec: str | None = None) -> None:
    """Print the devices that --device takes; say how to mend it if none runs OpenCL.

    `check` runs the self-test of each, or of the one that `spec` names. Raises DeviceError
    if one fails.
    """
    if check:
        _check_devices(terminal, as_json, spec)
        return
    listed = list_devices() if spec is None else [open_device(spec).info]
    print_data(json.dumps([asdict(d) for d in listed], indent=2) if as_json else _table(listed))
    if spec is None and all(device.kind in ("numpy", "simulator") for device in listed):
        for advice in missing_drivers(listed):
            terminal.note(advice)


def _check_devices(terminal: Terminal, as_json: bool, spec: str | None) -> None:
    if spec is None:
        forget_problems()  # only here: the processes that examine each doubt their own
        tested = [(info, selftest.examine(info)) for info in list_devices()]
    else:
        remove_damaged_kernels()
        device = open_untried(spec)
        tested = [(device.info, check_device(device))]
    failed = [info.spec for info, checks in tested if not all(c.passed for c in checks)]
    if as_json:
        terminal.has_printed_json = True
        print_data(json.dumps([selftest.report(*one) for one in tested], indent=2))
    else:
        print_data("\n".join(selftest.render(*one) for one in tested))
    for advice in missing_drivers([info for info, _ in tested]) if spec is None else ():
        terminal.note(advice)
    if failed:
        problem = f"the self-test failed on {', '.join(failed)}"
        raise DeviceError(problem, hint="the list above says what is wrong, and what to try")


def _table(devices: list[DeviceInfo]) -> str:
    rows = [("--device", "kind", "memory", "name", "driver")]
    rows += [(d.spec, d.kind, size(d.memory), d.describe(), d.driver) for d in devices]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)

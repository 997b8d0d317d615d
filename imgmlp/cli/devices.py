"""`imgmlp devices`: lists and tests devices. Also messages on the device of other commands."""

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


def note_precision(terminal: Terminal, settings: Settings, device: AnyDevice) -> None:
    """Print a note if the device does not support the precision of the settings."""
    if settings.precision == "half" and not device.has_matrix_units:
        terminal.note(f"{device.info.name} has no matrix units for half precision: using float32")


def run(terminal: Terminal, as_json: bool, check: bool = False, spec: str | None = None) -> None:
    """Print the devices that --device takes; if none runs OpenCL, also how to install a driver.

    `check` runs the self-test of each device, or of the one that `spec` names. Raises DeviceError
    if a test fails.
    """
    if check:
        _check_devices(terminal, as_json, spec)
        return
    devices = list_devices() if spec is None else [open_device(spec).info]
    print_data(json.dumps([asdict(d) for d in devices], indent=2) if as_json else _table(devices))
    if spec is None and all(device.kind in ("numpy", "simulator") for device in devices):
        for advice in missing_drivers(devices):
            terminal.note(advice)


def _check_devices(terminal: Terminal, as_json: bool, spec: str | None) -> None:
    if spec is None:
        forget_problems()  # with a spec, open_untried() does so for its own devices only
        results = [(info, selftest.examine(info)) for info in list_devices()]
    else:
        remove_damaged_kernels()
        device = open_untried(spec)
        results = [(device.info, check_device(device))]
    failed = [info.spec for info, checks in results if not all(c.passed for c in checks)]
    if as_json:
        terminal.has_printed_json = True
        print_data(json.dumps([selftest.report(*result) for result in results], indent=2))
    else:
        print_data("\n".join(selftest.render(*result) for result in results))
    if spec is None:
        for advice in missing_drivers([info for info, _ in results]):
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

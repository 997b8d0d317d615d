"""Which devices there are, and opening one by its name."""

from __future__ import annotations

from imgmlp.engine.device.base import DeviceInfo
from imgmlp.engine.device.numpy_device import NUMPY_FORMS, NumpyDevice, numpy_info
from imgmlp.engine.device.opencl import Device, find
from imgmlp.errors import DeviceError

AnyDevice = Device | NumpyDevice

INSTALL_HINT = (
    "install a driver for your GPU, or PoCL for the processor with `pip install 'imgmlp[pocl]'`; "
    "`--device numpy` works without either"
)
# The kinds that a name stands for, the first choice first.
ORDER = {
    "auto": ("gpu", "cpu", "other"),
    "gpu": ("gpu",),
    "cpu": ("cpu",),
    "simulator": ("simulator",),
}


def list_devices() -> list[DeviceInfo]:
    """All OpenCL devices, then the NumPy interpreter. Never raises for want of a driver."""
    return [*(info for _, info in find()[0]), numpy_info()]


def diagnose() -> str | None:
    """Why there is no OpenCL device, or None if there is one."""
    return find()[1]


def open_device(spec: str = "auto") -> AnyDevice:
    """Open a device by ``auto``, ``gpu``, ``cpu``, ``numpy`` or ``platform:device`` (``0:1``).

    ``auto`` takes the first GPU, else the first processor with an OpenCL driver; the NumPy
    interpreter, a hundred times slower, is taken only by name, and so is ``simulator``:
    Oclgrind, which checks every access to memory. NumPy also runs what programs are lowered
    to, checking the same: ``numpy:procedure``, ``numpy:uops`` and ``numpy:uops-group``.
    Raises DeviceError.
    """
    wanted = spec.strip().lower()
    if wanted in NUMPY_FORMS:
        return NumpyDevice(wanted)
    found, reason = find()
    order = ORDER.get(wanted)
    if order is None:
        matches = [pair for pair in found if pair[1].spec == wanted]
    else:
        matches = [pair for kind in order for pair in found if pair[1].kind == kind]
    if matches:
        return Device(*matches[0])
    if not any(info.kind != "simulator" for _, info in found):
        reason = reason or "there is only a simulator, which is for testing kernels"
        raise DeviceError(f"no OpenCL device: {reason}", hint=INSTALL_HINT)
    there = "; ".join(f"{info.spec} is {info.describe()}" for _, info in found)
    raise DeviceError(
        f"there is no device {spec!r}",
        hint=f"{there}; auto, gpu, cpu and numpy are understood too",
    )

"""Lists devices, and opens one by its name."""

from __future__ import annotations

import warnings
from typing import Any

from imgmlp.engine.device.base import DeviceInfo, Kind
from imgmlp.engine.device.driver import NVIDIA, check_not_forked, cl, import_failure, status
from imgmlp.engine.device.kernel_cache import choose_cache
from imgmlp.engine.device.numpy_device import NUMPY_FORMS, NumpyDevice, numpy_info
from imgmlp.engine.device.opencl import Device
from imgmlp.engine.device.pocl import PLATFORM, corrected_processor
from imgmlp.engine.device.probe import forget_outcome, problem_of
from imgmlp.errors import DeviceError, ImgmlpWarning, OutOfMemoryError

Pairs = list[tuple[Any, DeviceInfo]]  # OpenCL's handle of a device, and its description

AnyDevice = Device | NumpyDevice

INSTALL_HINT = (
    "install a driver for your GPU, or PoCL for the processor with `pip install 'pyopencl[pocl]'`; "
    "`--device numpy` works without either"
)
REPAIR_HINT = (
    "Update its driver or install another one, then `imgmlp devices --check` tries it again; "
    "--device numpy needs none"
)
ONLY_SIMULATOR = "there is only a simulator, which is for testing kernels"
# The kinds of device that a name stands for, in order of preference.
KINDS_BY_NAME = {
    "auto": ("gpu", "cpu", "other"),
    "gpu": ("gpu",),
    "cpu": ("cpu",),
    "simulator": ("simulator",),
}


def list_devices() -> list[DeviceInfo]:
    """All OpenCL devices, then the NumPy interpreter. A missing driver raises no error."""
    return [*(info for _, info in find()[0]), numpy_info()]


def find() -> tuple[Pairs, str | None]:
    """OpenCL's devices with their descriptions; if there are none, also the reason."""
    if cl is None:
        return [], f"pyopencl cannot be loaded ({import_failure})"
    choose_cache()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        return [], f"the OpenCL loader finds no driver ({status(error)})"
    pairs: Pairs = []
    refusals: list[str] = []
    for p, platform in enumerate(platforms):
        try:
            handles = platform.get_devices()
            pairs += [(h, _inspect(f"{p}:{d}", platform, h)) for d, h in enumerate(handles)]
        except cl.Error as error:
            refusals.append(f"{platform.name.strip()}: {status(error)}")
    return pairs, None if pairs else "; ".join(refusals) or "no driver offers a device"


def _inspect(spec: str, platform: Any, handle: Any) -> DeviceInfo:
    kinds: dict[int, Kind] = {cl.device_type.GPU: "gpu", cl.device_type.CPU: "cpu"}
    kind: Kind = next((kind for bit, kind in kinds.items() if handle.type & bit), "other")
    maker, driver = platform.name.strip(), handle.driver_version.strip()
    version = handle.version.strip()
    compiled_for = corrected_processor(handle.int_ptr, driver, version) if maker == PLATFORM else ""
    return DeviceInfo(
        spec=spec,
        platform=maker,
        name=handle.name.strip(),
        # Oclgrind claims to be of every kind, but is too slow for training.
        kind="simulator" if maker == "Oclgrind" else kind,
        compute_units=int(handle.max_compute_units),
        memory=int(handle.global_mem_size),
        local_memory=int(handle.local_mem_size),
        driver=driver,
        version=version,
        compiled_for=compiled_for,
        clock=int(handle.max_clock_frequency) if maker == NVIDIA else 0,
    )


def diagnose() -> str | None:
    """Why there is no OpenCL device, or None if there is one."""
    return find()[1]


def open_device(spec: str = "auto") -> AnyDevice:
    """Open a device by ``auto``, ``gpu``, ``cpu``, ``numpy`` or ``platform:device`` (``0:1``).

    ``auto`` takes the first GPU that works, else the first processor with an OpenCL driver that
    does, else the first OpenCL device of another kind, else NumPy, which takes many times as long;
    it warns of each that does not work, and of NumPy. ``simulator``, which is Oclgrind, is taken
    only by name: it checks every access to memory. NumPy also runs what programs are lowered to,
    checking the same: ``numpy:procedure``, ``numpy:uops`` and ``numpy:uops-group``.
    Raises DeviceError if there is no such device, or none that works, TypeError for no name.
    """
    if not isinstance(spec, str):
        raise TypeError(f"open_device takes a name such as 'auto', 'cpu' or '0:1', not {spec!r}")
    wanted = spec.strip().lower()
    if wanted in NUMPY_FORMS:
        return NumpyDevice(wanted)
    check_not_forked()
    pairs, reason = find()
    matches = _matches(wanted, pairs)
    problems: list[str] = []
    for handle, info in matches:
        opened, problem = _open_if_working(handle, info)
        if opened is not None:
            return opened
        problems.append(f"{info.describe()} does not work: {problem}")
        if wanted == "auto" or len(matches) > 1:
            _warn(f"{problems[-1]}; it is passed over. {REPAIR_HINT}")
    if wanted == "auto":
        if not problems:
            _warn(f"no OpenCL device: {reason or ONLY_SIMULATOR}; {INSTALL_HINT}")
        _warn("NumPy computes, which takes many times as long as an OpenCL driver would")
        return NumpyDevice("numpy")
    if problems:
        raise DeviceError(problems[0], hint=REPAIR_HINT)
    raise _no_device(spec, pairs, reason)


def distinct_names(place: AnyDevice, here: AnyDevice) -> tuple[str, str]:
    """Names for an error message about two devices, which may be one that was opened twice."""
    first, second = place.info.spec, here.info.spec
    if first == second:
        second = "another opening of it: call open_device once, as each has memory of its own"
    return first, second


def open_quietly(spec: str) -> Device | None:
    """Open the first working device of a kind; None, without a warning, if there is none."""
    for handle, info in _matches(spec, find()[0]):
        opened, _ = _open_if_working(handle, info)
        if opened is not None:
            return opened
    return None


def _open_if_working(handle: Any, info: DeviceInfo) -> tuple[Device | None, str]:
    """The opened device, or None and why it does not work. (It may have worked in the trial.)"""
    if problem := problem_of(handle.int_ptr, info):
        return None, problem
    try:
        return Device(handle, info), ""
    except (DeviceError, OutOfMemoryError) as error:
        forget_outcome(handle.int_ptr, info)
        return None, str(error)


def open_untried(spec: str) -> AnyDevice:
    """Open the device that open_device() would try first, without a trial, to see how it fails.

    The outcomes of earlier trials are forgotten for all devices that `spec` may stand for.
    """
    wanted = spec.strip().lower()
    if wanted in NUMPY_FORMS:
        return NumpyDevice(wanted)
    pairs, reason = find()
    matches = _matches(wanted, pairs)
    for handle, info in matches:
        forget_outcome(handle.int_ptr, info)
    if matches:
        return Device(*matches[0])
    raise _no_device(spec, pairs, reason)


def open_named(spec: str) -> Device:
    """Open the device that a spec such as "0:0" names, without a trial."""
    pairs, reason = find()
    matches = _matches(spec, pairs)
    if matches:
        return Device(*matches[0])
    raise _no_device(spec, pairs, reason)


def _matches(wanted: str, pairs: Pairs) -> Pairs:
    """The devices that a name may stand for, in order of preference."""
    order = KINDS_BY_NAME.get(wanted)
    if order is None:
        return [pair for pair in pairs if pair[1].spec == wanted]
    return [pair for kind in order for pair in pairs if pair[1].kind == kind]


def _no_device(spec: str, pairs: Pairs, reason: str | None) -> DeviceError:
    if not any(info.kind != "simulator" for _, info in pairs):
        problem = f"no OpenCL device: {reason or ONLY_SIMULATOR}"
        return DeviceError(problem, hint=INSTALL_HINT)
    there = "; ".join(f"{info.spec} is {info.describe()}" for _, info in pairs)
    wanted = spec.strip().lower()
    if wanted in KINDS_BY_NAME:
        hint = f"{there}; `imgmlp devices --check` says what is missing or wrong"
        return DeviceError(f"there is no device of the kind {wanted!r}", hint=hint)
    hint = f"name one: {there}; auto, gpu, cpu and numpy are understood too"
    return DeviceError(f"there is no device {spec!r}", hint=hint)


def _warn(text: str) -> None:
    warnings.warn(text, ImgmlpWarning, stacklevel=3)  # the caller of open_device

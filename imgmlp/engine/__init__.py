"""The OpenCL autograd engine: lazy Tensors, gradients, compiled and replayed steps.

Everybody else imports these names and no module below. May import kernels, child, source_digest.
"""

from imgmlp.engine.device.base import DeviceInfo, FreeMemory
from imgmlp.engine.device.discover import (
    AnyDevice,
    list_devices,
    open_device,
    open_quietly,
    open_untried,
)
from imgmlp.engine.device.kernel_cache import cache_folder
from imgmlp.engine.device.numpy_device import NumpyDevice
from imgmlp.engine.device.opencl import Device
from imgmlp.engine.device.probe import forget_all as forget_problems
from imgmlp.engine.device.probe import remove_damaged_kernels
from imgmlp.engine.frontend import nn, optim
from imgmlp.engine.frontend.control import cond, loop
from imgmlp.engine.frontend.device_check import Finding, check_device, missing_drivers
from imgmlp.engine.frontend.function import Context, Function
from imgmlp.engine.frontend.pages import Pages
from imgmlp.engine.frontend.raw_kernel import RawKernel, compare
from imgmlp.engine.frontend.tensor import Tensor, assign_all
from imgmlp.engine.frontend.tracing import compile, together
from imgmlp.engine.frontend.transfer import Feeder, Receiver
from imgmlp.engine.ir import dtype
from imgmlp.engine.ir.target import Precision
from imgmlp.engine.runtime.dry_run import Need, memory_needed
from imgmlp.engine.runtime.program import Program

__all__ = [
    "AnyDevice",
    "Context",
    "Device",
    "DeviceInfo",
    "Feeder",
    "Finding",
    "FreeMemory",
    "Function",
    "Need",
    "NumpyDevice",
    "Pages",
    "Precision",
    "Program",
    "RawKernel",
    "Receiver",
    "Tensor",
    "assign_all",
    "cache_folder",
    "check_device",
    "compare",
    "compile",
    "cond",
    "dtype",
    "forget_problems",
    "list_devices",
    "loop",
    "memory_needed",
    "missing_drivers",
    "nn",
    "open_device",
    "open_quietly",
    "open_untried",
    "optim",
    "remove_damaged_kernels",
    "together",
]

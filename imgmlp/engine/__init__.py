"""The OpenCL autograd engine: lazy Tensors, gradients, compiled and replayed steps."""

from imgmlp.engine import dtype, nn, optim
from imgmlp.engine.check import Finding, check_device, missing_drivers
from imgmlp.engine.control import cond, loop
from imgmlp.engine.device import AnyDevice, Device
from imgmlp.engine.discover import list_devices, open_device, open_untried
from imgmlp.engine.function import Context, Function
from imgmlp.engine.host import DeviceInfo, NumpyDevice, Room
from imgmlp.engine.probe import forget as forget_problems
from imgmlp.engine.program import Program
from imgmlp.engine.raw import RawKernel, compare
from imgmlp.engine.sketch import Need, memory_needed
from imgmlp.engine.step import compile
from imgmlp.engine.tensor import Tensor
from imgmlp.engine.transfer import Feeder, Receiver
from imgmlp.engine.uops import Precision

__all__ = [
    "AnyDevice",
    "Context",
    "Device",
    "DeviceInfo",
    "Feeder",
    "Finding",
    "Function",
    "Need",
    "NumpyDevice",
    "Precision",
    "Program",
    "RawKernel",
    "Receiver",
    "Room",
    "Tensor",
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
    "open_untried",
    "optim",
]

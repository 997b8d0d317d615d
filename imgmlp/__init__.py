"""imgmlp compresses a picture by training a small neural network on it.

The public Python API. Names are loaded when they are first used, so that `import imgmlp` and
`imgmlp --help` need neither NumPy nor an OpenCL driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from imgmlp.errors import ImgmlpError

if TYPE_CHECKING:
    from imgmlp.api import decode, devices, encode, info, train

__version__ = "0.1.0"
__all__ = ["ImgmlpError", "__version__", "decode", "devices", "encode", "info", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("imgmlp.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

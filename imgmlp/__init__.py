"""imgmlp compresses a picture by training a small neural network on it.

The public Python API. Names are loaded when they are first used, so that `import imgmlp` and
`imgmlp --help` need neither NumPy nor an OpenCL driver.
"""

from __future__ import annotations

from importlib import import_module

from imgmlp.errors import ImgmlpError

TYPE_CHECKING = False  # `typing` takes most of the time in which Ctrl-C is not yet heeded
if TYPE_CHECKING:
    from typing import Any

    from imgmlp.api import decode, devices, encode, info, train

__version__ = "0.1.0"
__all__ = ["ImgmlpError", "__version__", "decode", "devices", "encode", "info", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("imgmlp.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

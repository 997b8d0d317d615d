"""imgmlp compresses a picture by training a small neural network on it.

The public Python API. Names are loaded when they are first used, so that `import imgmlp` and
`imgmlp --help` need neither NumPy nor an OpenCL driver. This module imports nothing, because it
runs before `__main__` installs its handler for Ctrl-C.
"""

TYPE_CHECKING = False  # importing it from `typing` would take most of the import time
if TYPE_CHECKING:
    from typing import Any

    from imgmlp.api import decode, devices, encode, info, train
    from imgmlp.errors import ImgmlpError

__version__ = "0.1.0"
__all__ = ["ImgmlpError", "__version__", "decode", "devices", "encode", "info", "train"]


def __getattr__(name: str) -> "Any":
    if name not in (*__all__, "errors"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name == "errors":
        return import_module("imgmlp.errors")
    return getattr(import_module("imgmlp.errors" if name == "ImgmlpError" else "imgmlp.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

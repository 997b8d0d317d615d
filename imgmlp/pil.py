"""Pillow opens .imlp files like any others once this module is imported: `import imgmlp.pil`.

Opening reads the header and compares the checksums; the pixels are decoded when they are asked
for, as Pillow does with every format.
"""

from __future__ import annotations

import io
from typing import Any

from PIL import Image, ImageFile

from imgmlp.codec.bitstream import container
from imgmlp.codec.decoder import Stored, open_stored
from imgmlp.errors import ImgmlpError
from imgmlp.image import info_of

FORMAT = "IMLP"
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


class ImlpImageFile(ImageFile.ImageFile):
    """A compact picture. Raises OSError if it is damaged, as Pillow's other formats do."""

    format = FORMAT
    format_description = "imgmlp compact picture"

    def _open(self) -> None:
        assert self.fp is not None
        size = self.fp.seek(0, io.SEEK_END)
        self.fp.seek(0)
        try:
            found = open_stored(self.fp.read(min(size, container.MAX_FILE + 1)))
        except ImgmlpError as error:
            raise OSError(f"{error}; {error.hint}") from error
        self._stored: Stored | None = found
        self._size = found.width, found.height
        self._mode = _MODES[found.channels]
        self.info |= info_of(found.metadata)

    def load(self) -> Any:
        """Decode the pixels, once."""
        if self._stored is not None:
            from imgmlp.engine import open_device

            try:
                pixels = self._stored.decode(open_device()).tobytes()
            except ImgmlpError as error:
                raise OSError(f"{error}; {error.hint}") from error
            self._stored = None
            self.fp = io.BytesIO(pixels)
            self.tile = [ImageFile._Tile("raw", (0, 0, *self.size), 0, self.mode)]
        return super().load()

    def load_seek(self, pos: int) -> None:
        """Nowhere to go; that it exists keeps Pillow from mapping the file as if it were pixels."""


Image.register_open(FORMAT, ImlpImageFile, lambda start: start.startswith(container.SIGNATURE))
Image.register_extension(FORMAT, ".imlp")
Image.register_mime(FORMAT, "image/x-imlp")

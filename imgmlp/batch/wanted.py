"""What a user asks of an encoder, for any picture: a target, how long to try, and what is kept."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass

from imgmlp.codec import encoder
from imgmlp.codec.bitstream.container import DEFAULT_CODEC, Codec
from imgmlp.codec.training import target
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.errors import UsageError
from imgmlp.text import duration

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Wanted:
    """Targets as they were given, at most one of them; and how long to try."""

    quality: float | None = None
    bpp: float | None = None
    size: str | None = None
    psnr: float | None = None
    lmbda: float | None = None
    effort: int | None = None
    time: str | None = None
    codec: Codec = DEFAULT_CODEC
    frame: int | None = None
    strip: bool = False

    def target(self, pixels: int) -> Goal:
        """Of a picture with so many pixels. Raises UsageError."""
        return target.choose(pixels, self.quality, self.bpp, self.size, self.psnr, self.lmbda)

    def training(self) -> Workload:
        """Raises UsageError."""
        if self.time is not None and self.effort is not None:
            raise UsageError("--effort and --time are both given", hint="choose one of them")
        seconds = None if self.time is None else parse_time(self.time)
        return encoder.workload(self.codec, self.effort, seconds)

    def check(self) -> None:
        """Refuse, as a UsageError, what no picture could be encoded with."""
        self.target(1)
        self.training()

    def work(self) -> str:
        """How long to try, for people, as far as it is said before the codec has a look."""
        if self.time is not None:
            return f"about {duration(parse_time(self.time))}"
        usual = target.DEFAULT_EFFORT if self.codec == "mlp" else None
        level = usual if self.effort is None else self.effort
        return "usual effort" if level is None else f"effort {level}"

    def digest(self) -> str:
        """Stands for all of it, the same in any version of this program that has these names."""
        chosen = asdict(self).items()
        given = {name: value for name, value in chosen if value is not None and value is not False}
        return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]


def parse_time(text: str) -> float:
    """Seconds of text such as 90, 60s, 1.5m or 2h. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)(s|m|min|h)?", text)
    seconds = float(match[1]) * _SECONDS[match[2] or ""] if match else 0.0
    if not 0 < seconds <= 10**6:
        hint = "write it like 60s, 5m or 2h: above 0, up to a million seconds"
        raise UsageError(f"--time is {text!r}", hint=hint)
    return seconds

"""The options of `imgmlp encode` that hold for all pictures of a command."""

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

_SECONDS_PER_UNIT = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


@dataclass(frozen=True)
class EncodeOptions:
    """At most one target, as given on the command line, and the other options."""

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
        """The target for a picture of `pixels` pixels. Raises UsageError."""
        return target.choose(pixels, self.quality, self.bpp, self.size, self.psnr, self.lmbda)

    def workload(self) -> Workload:
        """The amount of training. Raises UsageError."""
        if self.time is not None and self.effort is not None:
            raise UsageError("--effort and --time are both given", hint="choose one of them")
        seconds = None if self.time is None else parse_time(self.time)
        return encoder.workload(self.codec, self.effort, seconds)

    def check(self) -> None:
        """Raise UsageError for options that are invalid for any picture."""
        self.target(1)
        self.workload()

    def describe_effort(self) -> str:
        """The amount of training in words, before the codec has seen the picture."""
        if self.time is not None:
            return f"about {duration(parse_time(self.time))}"
        default = target.DEFAULT_EFFORT if self.codec == "mlp" else None
        level = default if self.effort is None else self.effort
        return "usual effort" if level is None else f"effort {level}"

    def digest(self) -> str:
        """A digest of all options. Journals store it, so it must not change between versions."""
        fields = asdict(self).items()
        chosen = {name: value for name, value in fields if value is not None and value is not False}
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]


def parse_time(text: str) -> float:
    """Seconds of text such as 90, 60s, 1.5m or 2h. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)(s|m|min|h)?", text)
    seconds = float(match[1]) * _SECONDS_PER_UNIT[match[2] or ""] if match else 0.0
    if not 0 < seconds <= 10**6:
        hint = "write it like 60s, 5m or 2h: above 0, up to a million seconds"
        raise UsageError(f"--time is {text!r}", hint=hint)
    return seconds

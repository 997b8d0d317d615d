"""The options of `imgmlp encode`: their digest, and which combinations are refused."""

from __future__ import annotations

import pytest

from imgmlp.batch.encode_options import EncodeOptions
from imgmlp.errors import UsageError


def test_each_option_changes_the_digest() -> None:
    options = [
        EncodeOptions(),
        EncodeOptions(quality=0),
        EncodeOptions(quality=60),
        EncodeOptions(bpp=60),
        EncodeOptions(psnr=60),
        EncodeOptions(lmbda=60),
        EncodeOptions(size="60"),
        EncodeOptions(effort=1),
        EncodeOptions(time="60"),
        EncodeOptions(codec="mlp"),
        EncodeOptions(frame=1),
        EncodeOptions(strip=True),
    ]
    assert len({one.digest() for one in options}) == len(options)


def test_digests_equal_those_in_existing_journals() -> None:
    """If a digest changed, all pictures of an earlier run would be encoded again."""
    assert EncodeOptions(codec="mlp").digest() == "73a3968124a4abba"
    assert EncodeOptions(psnr=30.0, codec="latent", strip=True).digest() == "89e9b7c31c0e28a7"


@pytest.mark.parametrize(
    "options",
    [
        EncodeOptions(bpp=1, psnr=30),
        EncodeOptions(effort=1, time="3s"),
        EncodeOptions(effort=0),
        EncodeOptions(quality=101),
    ],
)
def test_options_that_are_invalid_for_any_picture_are_refused(options: EncodeOptions) -> None:
    with pytest.raises(UsageError):
        options.check()

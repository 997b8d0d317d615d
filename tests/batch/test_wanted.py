"""Settings are told apart by their digest, which stays the same from version to version."""

from __future__ import annotations

import pytest

from imgmlp.batch.wanted import Wanted
from imgmlp.errors import UsageError


def test_every_setting_counts() -> None:
    settings = [
        Wanted(),
        Wanted(quality=0),
        Wanted(quality=60),
        Wanted(bpp=60),
        Wanted(psnr=60),
        Wanted(lmbda=60),
        Wanted(size="60"),
        Wanted(effort=1),
        Wanted(time="60"),
        Wanted(codec="mlp"),
        Wanted(frame=1),
        Wanted(strip=True),
    ]
    assert len({one.digest() for one in settings}) == len(settings)


def test_digests_are_those_of_files_that_exist() -> None:
    """Journals hold them: another one here would have all pictures encoded again."""
    assert Wanted(codec="mlp").digest() == "73a3968124a4abba"
    assert Wanted(psnr=30.0, codec="latent", strip=True).digest() == "89e9b7c31c0e28a7"


@pytest.mark.parametrize(
    "wanted",
    [Wanted(bpp=1, psnr=30), Wanted(effort=1, time="3s"), Wanted(effort=0), Wanted(quality=101)],
)
def test_what_no_picture_can_be_encoded_with_is_refused(wanted: Wanted) -> None:
    with pytest.raises(UsageError):
        wanted.check()

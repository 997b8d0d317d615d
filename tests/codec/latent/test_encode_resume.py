"""Runs of the latent codec that are interrupted and resumed give the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import small_pixels, stops_after
from latent_encoding import encode_pixels, uninterrupted_file

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.latent import encode as latent
from imgmlp.codec.latent.training import effort
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer
from imgmlp.codec.training import passes
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import open_device
from imgmlp.errors import Interrupted

pytestmark = pytest.mark.usefixtures("trained")


@pytest.mark.usefixtures("few_trials")
@pytest.mark.parametrize(
    ("target", "stops"), [(Goal("lambda", 1e-3), (1, 3, 11)), (Goal("bytes", 420), (5, 11, 250, 0))]
)
def test_resumed_run_gives_the_bytes_of_an_uninterrupted_one(
    target: Goal, stops: tuple[int, ...], tmp_path: Path
) -> None:
    """It is stopped several times: in training, while networks are rounded and in a pass.

    The pass adds 8 steps.
    """
    checkpoint = Checkpoint(tmp_path / "c", "k")
    notes: list[str] = []
    for count in stops:
        stop = stops_after(count)
        with pytest.raises(Interrupted, match=r"stopped after \d+ of (30|38) steps"):
            encode_pixels(target, run=Run(None, stop, notes.append, checkpoint))
    encoded = encode_pixels(target, run=Run(note=notes.append, checkpoint=checkpoint))
    assert encoded.bytes == uninterrupted_file(target)
    assert encoded.resumed > 0
    messages = [note for note in notes if note.startswith("continuing after")]
    assert len(messages) == len(stops)


@pytest.mark.usefixtures("few_trials")
def test_run_resumed_in_a_pass_keeps_the_best_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the fewest steps counts as the best here, so no pass makes a better one."""
    monkeypatch.setattr(latent._Encoder, "_distance", lambda _, draft: draft.metrics["steps"])
    target, checkpoint, steps = Goal("bytes", 420), Checkpoint(tmp_path / "c", "k"), list[int]()
    best = encode_pixels(target)
    assert best.metrics["steps"] == 30

    def stop() -> bool:
        return bool(steps) and steps[-1] > 30

    stopped = Run(lambda p: steps.append(p.step), stop, checkpoint=checkpoint)
    with pytest.raises(Interrupted, match=r"stopped after 3\d of 3\d steps"):
        encode_pixels(target, run=stopped)
    assert encode_pixels(target, run=Run(checkpoint=checkpoint)).bytes == best.bytes


@pytest.mark.usefixtures("few_trials")
def test_repeated_run_can_be_interrupted_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LatentTrainer, "lmbda_was_too_low", lambda *_: True)
    target, repetition_message = (
        Goal("psnr", 20),
        "30 steps once more, as bits were too cheap at first",
    )
    monkeypatch.setattr(passes, "MAX_PASSES", 1)
    checkpoint, messages = Checkpoint(tmp_path / "c", "k"), list[str | int]()
    expected = encode_pixels(target, run=Run(note=messages.append))
    assert messages.count(repetition_message) == 1
    messages.clear()

    def stop() -> bool:
        return repetition_message in messages and messages[-1] != repetition_message

    stopped = Run(lambda p: messages.append(p.step), stop, messages.append, checkpoint)
    with pytest.raises(Interrupted, match=r"stopped after \d+ of 30 steps"):
        encode_pixels(target, run=stopped)
    assert 0 < messages[-1] < 30
    assert encode_pixels(target, run=Run(checkpoint=checkpoint)).bytes == expected.bytes


@pytest.mark.usefixtures("few_trials")
def test_run_interrupted_in_the_rounding_search_can_be_resumed(tmp_path: Path) -> None:
    checkpoint, steps = Checkpoint(tmp_path / "c", "k"), list[int]()

    def stop() -> bool:
        return steps[-1:] == [30]

    with pytest.raises(Interrupted, match="stopped after 30 of 30 steps"):
        encode_pixels(
            Goal("lambda", 1e-3),
            run=Run(lambda p: steps.append(p.step), stop, checkpoint=checkpoint),
        )
    encoded = encode_pixels(Goal("lambda", 1e-3), run=Run(checkpoint=checkpoint))
    assert encoded.resumed == 30
    assert encoded.bytes == uninterrupted_file(Goal("lambda", 1e-3))


@pytest.mark.parametrize(
    ("flag", "described"), [(64, "7-16-16-3, 27-12-12-2"), (32, "9-16-16-3, 24-12-12-2")]
)
def test_run_with_additional_grids_can_be_encoded_and_resumed(
    flag: int, described: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resumed run keeps hyperlatents or extra grids that a new run would not have."""

    def have(many: bool) -> None:
        monkeypatch.setattr(effort, "has_hyperlatents", lambda *_: many and flag == 64)
        monkeypatch.setattr(effort, "extra_grids", lambda *_: 2 * (many and flag == 32))

    pixels, target, work = small_pixels()[:6, :34].repeat(2, 1), Goal("lambda", 1e-3), Workload(8)
    have(True)
    encoded = encode_pixels(target, pixels, work)
    parts = {section.type: section.data for section in container.parse(encoded.bytes).sections}
    assert parts["N"][2] & (64 + 32 + 16) == flag
    assert encoded.metrics["network"] == described
    decoded = decoder.decode(container.parse(encoded.bytes), open_device("numpy"))
    assert (decoded == encoded.pixels).all()
    checkpoint = Checkpoint(tmp_path / "c", "k")
    stop = stops_after(2)
    with pytest.raises(Interrupted):
        encode_pixels(target, pixels, work, Run(None, stop, checkpoint=checkpoint))
    have(False)
    resumed = encode_pixels(target, pixels, work, Run(checkpoint=checkpoint))
    assert resumed.resumed > 0
    assert resumed.bytes == encoded.bytes

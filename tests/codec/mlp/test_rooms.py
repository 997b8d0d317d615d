"""Programs that networks of many sizes share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import MAPPINGS, open_mapping

from imgmlp.codec.mlp import float_render, integer_inference, opening, rate_model, rooms
from imgmlp.codec.mlp.bit_allocation import Choice
from imgmlp.codec.mlp.bit_allocation import network as rounded
from imgmlp.codec.mlp.network import Network, Shape
from imgmlp.codec.mlp.qat_step import BATCH, LearningStep
from imgmlp.engine import open_device

PROCESSOR: Any = SimpleNamespace(lanes="one")
CARD: Any = SimpleNamespace(lanes="group")


def random_network(shape: Shape, seed: int = 0) -> Network:
    generator = np.random.default_rng(seed)
    arrays = [generator.normal(0.0, 0.3, size) for size in shape.shapes]
    return rounded(arrays, [Choice(40, 1)] * (shape.hidden + 1), shape)


def test_few_programs_serve_all_networks_that_are_chosen() -> None:
    chosen = rate_model._shapes(3)
    found = {rooms.shared(shape) for shape in chosen}
    assert len(chosen) > 50
    assert len(found) == 1 + len(rooms.WIDTHS)
    small = [shape for shape in chosen if shape.parameters < 20_000]
    assert len({rooms.shared(shape) for shape in small}) == 3
    for shape in chosen:
        room = rooms.shared(shape)
        assert (room.hidden, room.channels) == (shape.hidden, shape.channels)
        assert room.width >= shape.width
        assert room.frequencies >= shape.frequencies
        assert room.parameters < 3 * shape.parameters or room.width <= rooms.WIDTHS[0]


def test_every_network_of_a_file_has_a_room() -> None:
    for shape in (Shape(1, 1, 1, 1), Shape(64, 16, 1024, 4), Shape(33, 2, 5, 2)):
        room = rooms.shared(shape)
        assert len(set(rooms.places(shape, room))) == shape.parameters


def test_a_networks_numbers_have_the_places_of_their_inputs_and_outputs() -> None:
    shape, room = Shape(1, 1, 2, 1), Shape(2, 1, 3, 1)
    places = rooms.places(shape, room)
    # features of x are those of rows 0 to 3, of y 4 to 7; 3 values in a row, biases after them
    assert places.tolist() == [0, 1, 3, 4, 12, 13, 15, 16, 24, 25, 27, 28, 30]


def test_only_processors_compile_so_long_that_rooms_pay() -> None:
    shape = Shape(16, 5, 104, 3)
    for device in (CARD, open_device("numpy")):
        assert rooms.training(shape, device) == rooms.decoding(shape, device, 10**4) == shape
        assert rooms.opening_steps(shape, device, 10**6, BATCH) == 0
    assert rooms.training(shape, PROCESSOR).width == 128


def test_long_runs_go_over_to_a_program_of_their_own() -> None:
    def opening_of(width: int, steps: int) -> int:
        return rooms.opening_steps(Shape(16, 5, width, 3), PROCESSOR, steps, BATCH)

    assert opening_of(72, 3750) == opening_of(28, 30_000) == opening_of(128, 10**6) == 0
    assert 500 < opening_of(104, 60_000) == opening_of(104, 10**6) < 1000
    assert opening_of(104, 7500) == opening_of(120, 60_000)
    many, few = (rooms.decoding(Shape(16, 5, 104, 3), PROCESSOR, n).width for n in (10**7, 10**5))
    assert (few, many) == (128, 104)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_room_decodes_the_same_bits(mapping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device, found = open_mapping(mapping), []
    networks = [random_network(Shape(3, 3, 6, 3)), random_network(Shape(4, 3, 14, 3), 1)]
    for room in (lambda shape, *_: shape, lambda shape, *_: rooms.shared(shape)):
        monkeypatch.setattr(rooms, "decoding", room)
        decoder = integer_inference.Decoder(13, 9, device)
        found.append([decoder.decode(network) for network in networks])
    for alone, shared in zip(*found, strict=True):
        assert alone.std() > 1
        assert (alone == shared).all()


def test_a_room_renders_the_same_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    device, network, found = open_device("numpy"), random_network(Shape(3, 3, 6, 3)), []
    for room in (lambda shape, *_: shape, lambda shape, *_: rooms.shared(shape)):
        monkeypatch.setattr(rooms, "decoding", room)
        found.append(float_render.render(network, (13, 9), (26, 18), device).astype(int))
    assert found[0].std() > 1
    assert np.abs(found[0] - found[1]).max() <= 1


def test_the_second_network_of_a_room_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to train nor to decode, of a picture of another size."""
    device = open_mapping("one")
    monkeypatch.setattr(rooms, "training", lambda shape, _: rooms.shared(shape))
    sources, built = set[str](), device._compile

    def compiled(source: str, options: Any) -> Any:
        sources.add(source)
        return built(source, options)

    monkeypatch.setattr(device, "_compile", compiled)
    monkeypatch.setattr(device, "_programs", {})
    counts = []
    for size, shape in (((40, 50), Shape(7, 3, 15, 3)), ((60, 33), Shape(5, 3, 11, 3))):
        pixels, room = np.zeros((*size, 3), np.uint8), rooms.training(shape, device)
        LearningStep(pixels, shape, 0, device, room=room).run(1)
        integer_inference.decode(random_network(shape), size[1], size[0], device)
        counts.append(len(sources))
    assert counts[0] == counts[1] > 1


class Compiler:
    """In the place of the other process, which has not ended before it was waited for."""

    ready = True

    def __init__(self, *_: object) -> None:
        self.working, self.waits = True, 0

    done = property(lambda self: not self.working)

    def wait(self, enough: Any) -> None:
        self.working = False

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_the_other_process_compiles_what_a_run_goes_over_to() -> None:
    device = open_device("numpy")
    step = LearningStep(np.zeros((5, 6, 3), np.uint8), Shape(3, 2, 6, 3), 0, device, batch=64)
    with opening.compiler(step) as compiler:
        assert compiler.working
        compiler.wait(lambda: False)
        assert compiler.done

"""Pages: several values of one Tensor, of which a step reads and writes the current one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import MAPPINGS, open_mapping, open_pocl, with_units

from imgmlp.engine import (
    AnyDevice,
    Feeder,
    Pages,
    Program,
    Receiver,
    Tensor,
    compile,
    optim,
)
from imgmlp.engine.ir.usage_errors import OutOfBoundsError

SHAPE = 50, 40


@pytest.fixture(scope="module", params=[*MAPPINGS, "numpy:procedure"])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def filled(value: float) -> np.ndarray:
    return np.full(SHAPE, value, np.float32)


def accumulating_program(device: AnyDevice) -> tuple[Program, Tensor, Tensor]:
    """A step that adds x to a total, and outputs one element of the total before."""
    x = Tensor(filled(1), device, name="x")
    total = Tensor(filled(0), device, name="total")

    def step() -> dict[str, Tensor]:
        total.assign(total + x)
        return {"before": total[3, 5] * 1.0}

    return compile(step, device), x, total


def test_step_reads_and_writes_only_the_current_page(device: AnyDevice) -> None:
    program, x, total = accumulating_program(device)
    pages = Pages(total)
    numbers = [0, *(pages.add(filled(value)) for value in (10, 20))]
    assert numbers == [0, 1, 2]
    assert len(pages) == 3
    for times, number in ((2, 1), (1, 2), (3, 0), (1, 1)):
        pages.turn(number)
        program.run(times)
    assert [pages.read(n).max() for n in numbers] == [3, 13, 21]
    assert [pages.read(n).min() for n in numbers] == [3, 13, 21]
    pages.turn(2)
    program.run()
    assert program.read("before") == 21
    assert np.array_equal(total.numpy(), filled(22))
    assert np.array_equal(x.numpy(), filled(1))


def test_page_may_be_given_as_a_list() -> None:
    index = Tensor(np.uint8([1, 2]), open_mapping("numpy"))
    pages = Pages(index)
    with pytest.raises(ValueError, match=r"cannot take int64\[2\]; use .astype"):
        pages.add([3, 4])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"cannot take int64\[1\]"):
        pages.write(0, [3])  # type: ignore[arg-type]
    flags = Pages(Tensor(np.array([True, False]), open_mapping("numpy")))
    assert flags.read(flags.add([False, True])).tolist() == [False, True]  # type: ignore[arg-type]


def test_indices_written_without_a_reader_are_checked_at_the_next_turn(device: AnyDevice) -> None:
    x = Tensor(np.arange(3, dtype=np.float32), device)
    index = Tensor(np.int32([0, 2]), device)
    reader = x.gather(index)
    pages = Pages(index)
    del reader
    index.write(np.int32([7, 7]))
    pages.turn(pages.add(np.int32([1, 2])))
    reader = x.gather(index)
    with pytest.raises(OutOfBoundsError, match="7 is none of them"):
        pages.turn(0)
    assert reader.numpy().tolist() == [1, 2]


def test_enqueued_steps_keep_the_page_that_was_current(device: AnyDevice) -> None:
    """The page is switched while many steps are enqueued."""
    program, _, total = accumulating_program(device)
    pages = Pages(total)
    for number in range(1, 20):
        pages.add(filled(100 * number))
    for number in range(20):
        pages.turn(number)
        program.run(1 + number % 3)
    for number in range(20):
        assert np.array_equal(pages.read(number), filled(100 * number + 1 + number % 3))


def test_several_programs_use_the_current_pages_of_several_tensors(device: AnyDevice) -> None:
    program, x, total = accumulating_program(device)
    judging = compile(lambda: {"sum": (total * x).sum()}, device, beside=program)
    pages = Pages(x), Pages(total)
    for each, value in zip(pages, (2, 7), strict=True):
        each.add(filled(value))
        each.turn(1)
    program.run()
    judging.run()
    assert judging.read("sum") == 2 * 9 * 2000
    for each in pages:
        each.turn(0)
    judging.run()
    assert judging.read("sum") == 0


def test_feeder_and_receiver_use_the_current_page(device: AnyDevice) -> None:
    program, x, total = accumulating_program(device)
    pages = Pages(x)
    pages.add(filled(0))
    feeder, received = Feeder(program, x), []
    receiver = Receiver(
        program, ["before"], lambda _, got: received.append(got["x"].max()), {"x": x}
    )
    for number, value in ((1, 5), (0, 6)):
        pages.turn(number)
        feeder.send(filled(value))
        program.run()
        receiver.send()
    receiver.wait()
    assert received == [5, 6]
    assert np.array_equal(total.numpy(), filled(11))
    pages.write(1, filled(8))
    assert [pages.read(n).max() for n in (0, 1)] == [6, 8]
    x.write(filled(9))
    assert [pages.read(n).max() for n in (0, 1)] == [9, 8]


def test_persistent_launches_of_several_steps_use_the_current_page() -> None:
    """Persistent kernels have an additional argument, the counters of their groups."""
    device, generator = with_units(open_pocl(), 2), np.random.default_rng(0)

    def drawn(*shape: int, name: str) -> Tensor:
        return Tensor(generator.normal(size=shape).astype(np.float32), device, name=name)

    x, y, w, v = (
        drawn(*shape, name=name)
        for *shape, name in ((4096, 16, "x"), (4096, 1, "y"), (16, 32, "w"), (32, 1, "v"))
    )
    adam = optim.Adam([w, v], 1e-3)

    def step() -> dict[str, Tensor]:
        loss = ((x @ w).maximum(0.0) @ v - y).square().mean()
        adam.step(loss)
        return {"loss": loss}

    program, states = compile(step, device), [w, v, *adam.state()]
    assert program.executable.steps > 1
    assert any(call.is_persistent for call in program.executable.calls)
    first, second = x.numpy(), drawn(4096, 16, name="other").numpy()
    begun = [state.numpy() for state in states]
    runs = [(0, 3), (0, 5), (1, 3), (1, 1), (1, 5), (0, 5), (0, 20)]

    def after(turn: Callable[[int], object]) -> list[np.ndarray]:
        for state, value in zip(states, begun, strict=True):
            state.write(value)
        for number, times in runs:
            turn(number)
            program.run(times)
        return [state.numpy() for state in states]

    written = after(lambda number: x.write((first, second)[number]))
    x.write(first)
    pages = Pages(x)
    pages.add(second)
    for actual, expected in zip(after(pages.turn), written, strict=True):
        assert np.array_equal(actual, expected)


def test_row_indices_are_bounds_checked_in_every_page(device: AnyDevice) -> None:
    table = Tensor(np.arange(8, dtype=np.float32), device)
    at = Tensor(np.array([1, 2], np.int32), device, name="at")
    program = compile(lambda: {"rows": table.gather(at)}, device)
    pages = Pages(at)
    pages.turn(pages.add(np.array([7, 0], np.int32)))
    program.run()
    assert program.read("rows").tolist() == [7, 0]
    with pytest.raises(OutOfBoundsError, match="8 is none of them"):
        pages.add(np.array([8, 0], np.int32))
    with pytest.raises(OutOfBoundsError, match="8 is none of them"):
        pages.write(0, np.array([0, 8], np.int32))
    assert pages.read(0).tolist() == [1, 2]


@pytest.mark.parametrize("computed", [False, True])
def test_pages_added_before_compilation_are_bounds_checked(
    device: AnyDevice, computed: bool
) -> None:
    """The current page is checked at compilation, others at their turn; page 0 may be computed."""
    table = Tensor(np.arange(8, dtype=np.float32), device)
    at = Tensor(np.array([1, 2], np.int32), device, name="at")
    if computed:
        at = (at * 1).realize()
    pages = Pages(at)
    good, bad = (pages.add(np.array(values, np.int32)) for values in ([7, 0], [8, 0]))

    def step() -> dict[str, Tensor]:
        return {"rows": table.gather(at)}

    pages.turn(bad)
    with pytest.raises(OutOfBoundsError, match="8"):
        compile(step, device)
    pages.turn(good)
    program = compile(step, device)
    with pytest.raises(OutOfBoundsError, match="8 is none of them"):
        pages.turn(bad)
    program.run()
    assert program.read("rows").tolist() == [7, 0]  # the good page is still the current one
    for number, rows in ((0, [1, 2]), (good, [7, 0])):
        pages.turn(number)
        program.run()
        assert program.read("rows").tolist() == rows


def test_nested_indices_are_checked_for_each_pair_of_current_pages(device: AnyDevice) -> None:
    table = Tensor(np.arange(8, dtype=np.float32), device)
    at, of = (Tensor(np.array(values, np.int32), device) for values in ([3, 4, 5], [0, 1]))
    program = compile(lambda: {"rows": table.gather(at.gather(of))}, device)
    places, choices = Pages(at), Pages(of)
    far = places.add(np.array([6, 7, 8], np.int32))  # nothing selects its last element
    last = choices.add(np.array([2, 2], np.int32))  # element 2 of page 0, which is 5
    choices.turn(last)
    with pytest.raises(OutOfBoundsError, match="8 is none of them"):
        places.turn(far)
    program.run()
    assert program.read("rows").tolist() == [5, 5]
    choices.turn(0)
    places.turn(far)
    with pytest.raises(OutOfBoundsError, match="8 is none of them"):
        choices.turn(last)
    program.run()
    assert program.read("rows").tolist() == [6, 7]


def test_pages_need_a_buffer_and_have_equal_shapes_and_dtypes(device: AnyDevice) -> None:
    x = Tensor(filled(1), device)
    for none in (x * 2, Tensor(np.zeros((0, 3), np.float32), device)):
        with pytest.raises(ValueError, match="no memory that could have pages"):
            Pages(none)
    pages = Pages(x)
    for wrong in (np.zeros((3, 3), np.float32), np.zeros(SHAPE, np.float64)):
        with pytest.raises(ValueError, match="cannot take"):
            pages.add(wrong)
        with pytest.raises(ValueError, match="cannot take"):
            pages.write(0, wrong)
    assert len(pages) == 1
    for number in (-1, 1):
        for use in (pages.turn, pages.read, lambda n: pages.write(n, filled(0))):
            with pytest.raises(ValueError, match="there are pages 0 to 0"):
                use(number)


def test_pages_count_as_live_device_memory_until_deleted(device: AnyDevice) -> None:
    x = Tensor(filled(1), device).realize()
    pages = Pages(x)
    before = device.usage.live_bytes
    for _ in range(3):
        pages.add(filled(2))
    assert device.usage.live_bytes == before + 3 * 4 * SHAPE[0] * SHAPE[1]
    del pages
    assert device.usage.live_bytes == before

"""`imgmlp bench`: every contender does the same job, and the figures follow from their times."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import Command, open_mapping
from reference import close

from imgmlp.bench import report, speed
from imgmlp.bench.by_hand import ByHand
from imgmlp.bench.job import Job, Ours, standard_job
from imgmlp.bench.peak import MULTIPLIER, Peak, described
from imgmlp.bench.speed import Measured, Times, Turns
from imgmlp.bench.start import seconds_to_first_step
from imgmlp.codec.float_mlp import model
from imgmlp.engine import Device, Tensor, compile, open_device, optim
from imgmlp.errors import DeviceError
from imgmlp.terminal import Terminal

ROWS = 3000  # more than a chunk, so that NumPy by hand adds the gradients of two


def small_job() -> Job:
    job = standard_job(20)
    return replace(job, settings=replace(job.settings, features=8, hidden=6, lr=0.01))


def test_turn_warms_up_fills_its_time_and_returns_seconds_per_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, counts = [0.0], []

    def run(count: int) -> None:
        counts.append(count)
        clock[0] += 0.01 * count

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    monkeypatch.setattr("time.sleep", lambda _: None)
    turn = speed._Turn(run, 0.4)
    counts.clear()
    assert turn.time() == pytest.approx(0.01)
    assert counts == [40 // speed.WARM_UP_DIVISOR, 40]


def test_training_step_of_512_rows_takes_34_megaflops() -> None:
    assert standard_job().flops(512) == 34_144_256 == 512 * (3 * 2 * 12_480 - 2 * 4096)


def test_numpy_by_hand_trains_to_the_parameters_of_the_engine() -> None:
    """float32 sums in another order: parameters within 1e-4 after three steps of about 0.01."""
    job, device = small_job(), open_device("numpy")
    by_hand = ByHand(job)
    flat, random = Tensor(by_hand.flat.copy(), device), np.random.default_rng(0)
    random.bit_generator.state = by_hand.random.bit_generator.state
    settings = job.settings
    options = {"betas": settings.betas, "weight_decay": settings.weight_decay}
    optimizer = optim.AdamW([flat], settings.lr, **options)
    features = Tensor(np.zeros((ROWS, 8), np.float32), device, name="features")
    targets = Tensor(np.zeros((ROWS, 3), np.float32), device, name="targets")

    def step() -> dict[str, Tensor]:
        output = model.forward(flat, job.architecture, features)
        optimizer.step((output - targets).square().sum())
        return {}

    program = compile(step, device)
    for _ in range(3):
        chosen = random.integers(0, len(by_hand.features), ROWS)
        features.write(by_hand.features[chosen])
        targets.write(by_hand.targets[chosen])
        program.run()
    by_hand.steps(ROWS, 3)
    assert close(by_hand.flat, flat.numpy(), roundings=256)
    assert np.abs(by_hand.flat).max() > 0.1


def test_numpy_by_hand_decodes_to_the_pixels_of_the_engine() -> None:
    job = small_job()
    by_hand, ours = ByHand(job), Ours(job, open_device("numpy"))
    by_hand.flat[:] = ours.decoder.weights.flat
    difference = by_hand.decode().astype(int) - ours.decode().reshape(-1, 3)
    assert np.abs(difference).max() <= 1


@pytest.mark.parametrize(
    ("mapping", "vector", "chains", "items"),
    [("one", 8, 12, 1), ("one", 16, 12, 1), ("group", 1, 16, 4096)],
)
def test_peak_kernel_does_all_operations_that_are_counted(
    mapping: str, vector: int, chains: int, items: int
) -> None:
    device = open_mapping(mapping)
    assert isinstance(device, Device)
    if vector > device.peak_width:
        pytest.skip(f"{device.info.name} has no vectors of {vector}")
    device.peak_width = vector
    peak = Peak(device)
    peak.kernel(peak.items, peak.group_size, peak.out, MULTIPLIER, peak.rounds)
    expected = sum(range(1, chains + 1)) * math.exp(MULTIPLIER * peak.rounds)
    assert np.allclose(peak.out, expected, rtol=1e-2)  # float32 cannot hold 1 + 1e-9 exactly
    assert peak.items == items * device.info.compute_units
    assert peak.flops == 2 * chains * vector * peak.rounds * peak.items
    gflops = peak.gflops(runs=1)
    assert math.isfinite(gflops)
    assert gflops > 0
    names_vectors = f"multiply-adds in vectors of {vector}" in described(gflops, device)
    assert names_vectors is (vector > 1)


def measured() -> Measured:
    ours = Times({512: [100.0, 300.0, 200.0]}, [10.0, 30.0, 20.0])
    theirs = Times({512: [500.0]}, [50.0])
    return Measured(
        standard_job(), {"imgmlp": ours, "other": theirs}, [], {512: [100.0, 400.0, 500.0]}, [1.5]
    )


def test_json_has_medians_of_turns_and_fractions_of_the_peak() -> None:
    figures = speed.as_json(measured(), open_device("numpy"))
    assert figures["us_per_step"] == {"512": 200}
    assert figures["rows_per_second"] == {"512": 512 / 200e-6}
    assert figures["share_of_peak"]["512"] == pytest.approx(34_144_256 / 200e-6 / 500e9)
    assert (figures["decode_ms"], figures["start_s"]) == (20, 1.5)
    assert figures["others"]["other"]["us_per_step"] == {"512": 500}


def test_table_has_ratios_of_others_to_imgmlp() -> None:
    heading, rows = report.table(measured())
    assert heading == ["", "imgmlp", "Mrow/s", "of peak", "other"]
    assert rows[0] == ["step of 512 rows", "200 µs", "2.56", "34%", "500 µs, 2.5×"]
    assert rows[1][1:] == ["20.0 ms", "–", "–", "50.0 ms, 2.5×"]
    assert rows[2][1] == "1.50 s"


def test_all_contenders_have_all_turns_in_table_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A small job on NumPy, without PyTorch. The start-up time is that of a real process."""
    monkeypatch.setattr(speed, "is_installed", lambda: False)
    device = open_device("numpy")
    results = report.run(Terminal(), device, small_job(), [32, 64], Turns(2, 0.001, 1))
    assert list(results.times) == ["imgmlp", "NumPy by hand"]
    for times in results.times.values():
        assert {batch: len(turns) for batch, turns in times.step.items()} == {32: 2, 64: 2}
        assert min(min(turns) for turns in times.step.values()) > 0
        assert len(times.decode) == 2
    assert len(results.start) == 1
    assert results.start[0] > 0.1
    assert results.peak == {}
    report.show(results, device, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert {"device", "us_per_step", "decode_ms", "start_s"} <= set(shown)
    report.show(results, device, as_json=False)
    assert "NumPy by hand" in capsys.readouterr().out


def test_contender_that_fails_is_left_out_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ByHand, batch: int, count: int) -> None:
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(speed, "is_installed", lambda: False)
    monkeypatch.setattr(ByHand, "steps", fail)
    job, device = small_job(), open_device("numpy")
    results = speed.measure(job, device, [32], Turns(1, 0.001, 1), print)
    assert list(results.times) == ["imgmlp"]
    assert results.left_out == ["NumPy by hand failed: no compiler"]
    assert results.left_out[0] in report.caption(results, device)


def test_start_up_process_that_fails_raises_its_error() -> None:
    with pytest.raises(DeviceError, match=r"on 7:7: .*no device '7:7'"):
        seconds_to_first_step("7:7")


def test_unknown_device_exits_with_code_6(in_process: Command) -> None:
    assert "no device '7:7'" in in_process("bench", "--quick", "--device", "7:7", check=6).stderr

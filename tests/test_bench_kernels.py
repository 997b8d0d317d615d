"""`imgmlp bench kernels`: providers compute the same, and the figures follow from their times."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from reference import close

from imgmlp.bench import kernels_report
from imgmlp.bench.kernels import CASES, COPY, Case, Point, measure, providers, rows
from imgmlp.bench.kernels_report import as_csv, bench_kernels, table
from imgmlp.engine import Tensor, open_device
from imgmlp.errors import OutputError, UsageError
from imgmlp.terminal import Terminal

CASE_BY_NAME = {case.name: case for case in CASES}


def point(case: str, side: int, **seconds: list[float]) -> Point:
    return Point(
        CASE_BY_NAME[case], side, {COPY if n == "copy" else n: s for n, s in seconds.items()}
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_numpy_and_the_engine_compute_the_same_case(case: Case) -> None:
    x, out = np.random.default_rng(0).random((5, 5), np.float32), np.zeros((5, 5), np.float32)
    answer = case.by_numpy(x, out)
    wanted = answer if case.name == "sum" else out
    assert close(case.ours(Tensor(x, open_device("numpy"))).numpy(), wanted, wanted)


def test_all_providers_have_all_turns_and_products_have_no_copy() -> None:
    all_providers = providers(open_device("numpy"))
    timed = measure(CASE_BY_NAME["transpose"], 8, all_providers, turns=3)
    assert [len(s) for s in timed.seconds.values()] == [3] * len(all_providers)
    assert all(s > 0 for turns in timed.seconds.values() for s in turns)
    assert COPY not in measure(CASE_BY_NAME["product"], 8, all_providers, turns=1).seconds


def test_speeds_are_medians_and_fractions_of_the_copy_or_the_peak() -> None:
    softmax = point("row softmax", 1000, imgmlp=[4e-3, 1e-3, 2e-3], copy=[1e-3, 1e-3, 1e-3])
    assert softmax.speed("imgmlp") == pytest.approx(8e6 / 2e-3 / 1e9)
    assert softmax.fraction_of_ceiling("imgmlp", peak=7.0) == pytest.approx(0.5)
    product = point("product", 100, imgmlp=[1e-4])
    assert product.fraction_of_ceiling("imgmlp", peak=40.0) == pytest.approx(0.5)
    assert product.fraction_of_ceiling("imgmlp", peak=None) is None
    _, (first, second) = table([softmax, product], 40.0)
    assert first == ["row softmax 1000 × 1000", "GB/s", "4.0", "8.0", "50%"]
    assert second == ["product 100 × 100", "GFLOP/s", "20.0", "–", "50%"]
    lines = list(csv.DictReader(as_csv([softmax, product], 40.0).splitlines()))
    assert [line["provider"] for line in lines] == ["imgmlp", COPY, "imgmlp"]
    assert float(lines[0]["least"]) == pytest.approx(1000)
    assert rows([product], None)[0]["share"] is None


def test_command_prints_json_and_writes_csv(imgmlp: Command, picture: Path) -> None:
    done = imgmlp("bench", "kernels", "--quick", "--side", "8", "--json", "--csv", "speeds.csv")
    printed = json.loads(done.stdout)
    assert {row["case"] for row in printed} == set(CASE_BY_NAME)
    assert {"imgmlp", "NumPy", COPY} <= {row["provider"] for row in printed}
    written = (picture.parent / "speeds.csv").read_text("utf-8").splitlines()
    assert len(written) == len(printed) + 1
    imgmlp("bench", "kernels", "--side", "8", "--csv", "speeds.csv", check=8)


@pytest.mark.parametrize("kind", ["--csv", "--plot"])
def test_json_has_only_the_error_if_a_file_cannot_be_written(
    in_process: Command, picture: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object) -> None:
        raise OutputError(f"cannot write {path}", hint="free some space")

    monkeypatch.setattr(kernels_report, "find_spec", lambda _: True)
    monkeypatch.setattr(kernels_report.output_files, "write_atomically", full)
    arguments = ("bench", "kernels", "--quick", "--side", "8", "--json", "--device", "numpy")
    done = in_process(*arguments, kind, "a.svg", check=8)
    assert json.loads(done.stdout)["problem"] == "cannot write a.svg"


def test_matrix_that_does_not_fit_in_memory_exits_with_code_7(in_process: Command) -> None:
    error = in_process(
        "bench", "kernels", "--side", "100000000", "--device", "numpy", check=7
    ).stderr
    assert "smaller --side" in error


@pytest.mark.parametrize("side", [0, -1, 10**10])
def test_side_outside_its_limits_raises_usage_error(side: int) -> None:
    with pytest.raises(UsageError, match="--side is ") as refused:
        bench_kernels(Terminal(), "no device", True, [side], False, None, None, False)
    assert "from 1 to 1,000,000,000" in refused.value.hint


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        (("--csv", "-"), 2, "standard output"),
        (("--plot", "a.xyz"), 2, ".png or .svg"),
        (("--plot", "a"), 2, ".png or .svg"),
        (("--csv", "a.svg", "--plot", "./a.svg"), 8, "overwrite another file"),
    ],
)
def test_invalid_output_files_are_refused_before_a_device_is_opened(
    in_process: Command, files: tuple[str, ...], code: int, words: str
) -> None:
    done = in_process("bench", "kernels", "--quick", "--force", *files, check=code)
    assert words in done.stderr
    assert "NumPy" not in done.stderr  # the name of the device, once it is opened

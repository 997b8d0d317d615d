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

NAMED = {case.name: case for case in CASES}


def point(case: str, side: int, **seconds: list[float]) -> Point:
    return Point(NAMED[case], side, {COPY if n == "copy" else n: s for n, s in seconds.items()})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_numpy_computes_what_the_engine_does(case: Case) -> None:
    x, out = np.random.default_rng(0).random((5, 5), np.float32), np.zeros((5, 5), np.float32)
    answer = case.by_numpy(x, out)
    wanted = answer if case.name == "sum" else out
    assert close(case.ours(Tensor(x, open_device("numpy"))).numpy(), wanted, wanted)


def test_every_provider_has_its_turns_and_the_copy_is_none_of_a_product() -> None:
    there = providers(open_device("numpy"))
    found = measure(NAMED["transpose"], 8, there, turns=3)
    assert [len(s) for s in found.seconds.values()] == [3] * len(there)
    assert all(s > 0 for turns in found.seconds.values() for s in turns)
    assert COPY not in measure(NAMED["product"], 8, there, turns=1).seconds


def test_speeds_are_medians_and_shares_are_of_the_copy_or_the_peak() -> None:
    softmax = point("row softmax", 1000, imgmlp=[4e-3, 1e-3, 2e-3], copy=[1e-3, 1e-3, 1e-3])
    assert softmax.speed("imgmlp") == pytest.approx(8e6 / 2e-3 / 1e9)
    assert softmax.share("imgmlp", peak=7.0) == pytest.approx(0.5)
    product = point("product", 100, imgmlp=[1e-4])
    assert product.share("imgmlp", peak=40.0) == pytest.approx(0.5)
    assert product.share("imgmlp", peak=None) is None
    _, (first, second) = table([softmax, product], 40.0)
    assert first == ["row softmax 1000 × 1000", "GB/s", "4.0", "8.0", "50%"]
    assert second == ["product 100 × 100", "GFLOP/s", "20.0", "–", "50%"]
    lines = list(csv.DictReader(as_csv([softmax, product], 40.0).splitlines()))
    assert [line["provider"] for line in lines] == ["imgmlp", COPY, "imgmlp"]
    assert float(lines[0]["least"]) == pytest.approx(1000)
    assert rows([product], None)[0]["share"] is None


def test_the_command_prints_json_and_writes_csv(imgmlp: Command, picture: Path) -> None:
    done = imgmlp("bench", "kernels", "--quick", "--side", "8", "--json", "--csv", "speeds.csv")
    found = json.loads(done.stdout)
    assert {row["case"] for row in found} == set(NAMED)
    assert {"imgmlp", "NumPy", COPY} <= {row["provider"] for row in found}
    written = (picture.parent / "speeds.csv").read_text("utf-8").splitlines()
    assert len(written) == len(found) + 1
    imgmlp("bench", "kernels", "--side", "8", "--csv", "speeds.csv", check=8)


@pytest.mark.parametrize("kind", ["--csv", "--plot"])
def test_a_file_that_cannot_be_written_is_all_that_json_tells(
    in_process: Command, picture: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object) -> None:
        raise OutputError(f"cannot write {path}", hint="free some space")

    monkeypatch.setattr(kernels_report, "find_spec", lambda _: True)
    monkeypatch.setattr(kernels_report.output_files, "write_atomically", full)
    asked = ("bench", "kernels", "--quick", "--side", "8", "--json", "--device", "numpy")
    done = in_process(*asked, kind, "a.svg", check=8)
    assert json.loads(done.stdout)["problem"] == "cannot write a.svg"


def test_sides_that_do_not_fit_are_too_large(in_process: Command) -> None:
    told = in_process(
        "bench", "kernels", "--side", "100000000", "--device", "numpy", check=7
    ).stderr
    assert "smaller --side" in told


@pytest.mark.parametrize("side", [0, -1, 10**10])
def test_sides_that_no_matrix_has_are_refused(side: int) -> None:
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
def test_files_that_cannot_be_written_are_refused_before_anything_is_measured(
    in_process: Command, files: tuple[str, ...], code: int, words: str
) -> None:
    done = in_process("bench", "kernels", "--quick", "--force", *files, check=code)
    assert words in done.stderr
    assert "NumPy" not in done.stderr  # nor was a device opened

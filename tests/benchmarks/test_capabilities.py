"""Benchmarks name the processor first and leave out, with the reason, what it cannot do quickly."""

from pathlib import Path

import pytest

from benchmarks import data_path, decoding, roof, step_profile, timing, translation_training
from benchmarks.capabilities import announce, quick_ones, why_slow
from common.kernels import processor

ROOT = Path(__file__).resolve().parent.parent.parent
OLD = {"bf16_gain": lambda rows=1: 0.37, "bf16_pays": lambda rows=1: False, "int8_sums_are_exact": lambda: False}
NEW = {"bf16_gain": lambda rows=1: 2.9, "bf16_pays": lambda rows=1: True, "int8_sums_are_exact": lambda: True}
NO_BF16 = "this processor computes a layer in bf16 at 0.37 times the speed of fp32"
NO_INT8 = "this processor lacks VNNI"


@pytest.fixture
def machine(monkeypatch):
    """A function that gives the processor other capabilities."""

    def become(capabilities):
        for name, answer in capabilities.items():
            monkeypatch.setattr(processor, name, answer)

    return become


def test_the_first_line_names_the_processor(capsys):
    announce()
    assert capsys.readouterr().out == processor.describe() + "\n"


def test_an_older_processor_is_slow_in_bf16_and_int8(machine):
    machine(OLD)
    assert [why_slow(name) for name in ("fp32", "bf16", "int8")] == [None, NO_BF16, NO_INT8]


def test_a_newer_processor_is_slow_in_nothing(machine):
    machine(NEW)
    assert [why_slow(name) for name in ("fp32", "bf16", "int8")] == [None, None, None]


def test_torch_without_8_bit_products_is_a_reason(machine):
    def missing():
        raise AttributeError("qlinear_prepack")

    machine({"int8_sums_are_exact": missing})
    assert why_slow("int8") == "torch has no 8-bit products here"


def test_whether_bf16_pays_is_asked_for_the_rows_of_the_products(machine):
    machine({"bf16_pays": lambda rows: rows > 100, "bf16_gain": lambda rows: 0.5})
    assert why_slow("bf16", 101) is None
    assert why_slow("bf16", 7) is not None


def test_what_is_left_out_is_named_with_its_reason(machine, capsys):
    machine(OLD)
    assert quick_ones(decoding.OURS) == ["patchwords"]
    assert capsys.readouterr().out.splitlines() == [
        f"left out: patchwords bf16 ({NO_BF16})",
        f"left out: patchwords int8 ({NO_INT8})",
    ]
    machine(NEW)
    assert quick_ones(decoding.OURS) == list(decoding.OURS)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("capabilities", "expected"), [(OLD, False), (NEW, True)])
def test_comparisons_run_without_the_rows_left_out(machine, monkeypatch, capabilities, expected):
    """Every contender takes a second and a megabyte."""
    machine(capabilities)

    def in_processes(contenders, rounds, **_):
        return {task: {name: timing.Timing(1.0, 1.0) for name in contenders} for task in rounds}

    for module in (decoding, translation_training):
        monkeypatch.setattr(module, "in_processes", in_processes)
    names = {one.peer for one in decoding.measure(decoding.Options())}
    assert ("patchwords bf16" in names, "patchwords int8" in names) == (expected, expected)
    assert {"CTranslate2", "CTranslate2 int8", "Marian"} <= names
    names = {one.peer for one in translation_training.measure(translation_training.Options())}
    assert (translation_training.HALF in names) == expected
    assert "Marian" in names


@pytest.mark.parametrize(("capabilities", "expected"), [(OLD, ["fp32"]), (NEW, ["fp32", "bf16"])])
def test_pictures_are_compared_with_training_in_quick_precisions(machine, monkeypatch, capabilities, expected):
    machine(capabilities)
    monkeypatch.setattr(data_path, "interleaved", lambda contenders, rounds: dict.fromkeys(contenders, 1.0))
    found = data_path.batches(data_path.Options(pictures=31, batch_size=7, size="micro"))
    assert [one.peer for one in found[: len(expected)]] == [f"training micro {name}" for name in expected]
    assert len(found) == len(expected) * len(data_path.AUGMENTATIONS)


@pytest.mark.parametrize(("capabilities", "expected"), [(OLD, ["fp32"]), (NEW, ["fp32", "bf16"])])
def test_steps_are_profiled_in_quick_precisions(machine, monkeypatch, capsys, capabilities, expected):
    machine(capabilities)
    asked = []
    monkeypatch.setattr(step_profile, "in_processes", lambda _, rounds, **__: asked.extend(rounds) or {})
    monkeypatch.setattr("sys.argv", ["step_profile", "--size", "micro", "--batch-size", "2"])
    step_profile.main()
    assert asked == expected
    assert ("left out: bf16" in capsys.readouterr().out) == (capabilities is OLD)


def test_products_are_measured_in_quick_precisions():
    assert list(roof.gflops(3, 5, 7, 0.0, [])) == ["fp32", "fp32, packed"]
    assert list(roof.gflops(3, 5, 7, 0.0, ["bf16"])) == ["fp32", "fp32, packed", "bf16"]


def test_every_command_that_measures_names_the_processor():
    commands = [path for path in (ROOT / "benchmarks").glob("*.py") if "def main(" in path.read_text(encoding="utf-8")]
    silent = {path.stem for path in commands if "    announce()\n" not in path.read_text(encoding="utf-8")}
    assert silent == {"projection"}  # computed on paper


def test_the_line_comes_before_all_others(monkeypatch, capsys):
    monkeypatch.setattr(roof, "SHAPES", {"small": (3, 5, 7)})
    monkeypatch.setattr("sys.argv", ["roof", "--seconds", "0", "--threads", "1"])
    roof.main()
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == processor.describe()

"""Both commands as a person meets them: run folders, refusals in one line, exit codes."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import seq2seq.train
import vit.train
from common.errors import UserError
from common.training.checkpoint import load_state, read_weights
from common.training.run import CONFIG, CURVES, LOG, METRICS, REPLACED, STATE, TENSORBOARD, WEIGHTS, run_folder
from tests.training.helpers import MODALITIES, picture_data, sentences

Run = Callable[..., tuple[int, list[str]]]


@dataclass
class Command:
    """A training command over tiny data; calling it gives the exit code and the lines on stderr."""

    modality: str
    out: Path
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str, out: Path | None = None) -> tuple[int, list[str]]:
        tiny = (
            ["--image-size", "8", "8", "--batch-size", "7"] if self.modality == "pictures" else ["--batch-tokens", "15"]
        )
        common = ["--epochs", "2", "--device", "cpu", "--out", str(out or self.out)]
        if "--resume" not in arguments:
            common += [*tiny, "--size", {"pictures": "micro", "sentences": "toy"}[self.modality]]
        self.patch.setattr("sys.argv", ["train", *common, *arguments])
        main = vit.train.main if self.modality == "pictures" else seq2seq.train.main
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        captured = self.capture.readouterr()
        assert captured.out == ""
        return code, captured.err.splitlines()

    def refused(self, *arguments: str, out: Path | None = None) -> str:
        """The one line that a run is refused with, after those that say what is being trained."""
        code, lines = self(*arguments, out=out)
        assert code == 2, lines
        assert [line.startswith("error: ") for line in lines].count(True) == 1, lines
        assert lines[-1].startswith("error: "), lines
        return lines[-1]


@pytest.fixture(params=MODALITIES)
def command(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    monkeypatch.setattr(vit.train, "load_data", lambda *_, **__: picture_data())
    monkeypatch.setattr(seq2seq.train, "load_data", lambda *_, **__: sentences()[1].data)
    return Command(request.param, tmp_path / "run", monkeypatch, capsys)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_and_its_folder(command: Command) -> None:
    assert command()[0] == 0
    assert {CONFIG, LOG, METRICS, STATE, WEIGHTS} <= contents(command.out).keys()
    metrics = json.loads((command.out / METRICS).read_text())
    unit = {"pictures": "images", "sentences": "tokens"}[command.modality]
    for name in ("data", "epochs", "train_seconds", f"{unit}_per_second", "parameters", "processes"):
        assert name in metrics
    assert 100 < metrics["peak_memory_mb"] < 100_000
    rows = [json.loads(line) for line in (command.out / LOG).read_text().splitlines()]
    assert {"step", "epoch", "loss", "learning_rate", "val_loss", "seconds"} <= rows[0].keys()
    # Finished: says so, and touches nothing.
    before = contents(command.out)
    code, lines = command("--resume")
    assert code == 0
    assert lines == [f"the run in {command.out} is finished; its figures are in {command.out / METRICS}"]
    assert contents(command.out) == before
    # It is not overwritten unasked.
    assert "holds a run; add --resume to go on, --overwrite to start again" in command.refused()
    assert contents(command.out) == before
    assert command("--overwrite", "--max-steps", "1", "--seed", "5")[0] == 0
    assert contents(command.out).keys().isdisjoint({LOG, METRICS, WEIGHTS})


def test_what_resume_refuses(command: Command) -> None:
    assert "no run to resume at" in command.refused("--resume")
    assert command("--max-steps", "1")[0] == 0
    size = {"pictures": "mini", "sentences": "tiny"}[command.modality]
    other_size = command.refused("--resume", "--size", size)
    assert f"{command.out / STATE} belongs to another run: model.config." in other_size
    assert "training.learning_rate: saved 0.00" in command.refused("--resume", "--learning-rate", "0.5")
    name, value = {"pictures": ("batch-size", 7), "sentences": ("batch-tokens", 15)}[command.modality]
    expected = f"data.{name.replace('-', '_')}: saved {value}, asked 33"
    assert expected in command.refused("--resume", f"--{name}", "33")
    state = load_state(command.out / STATE)
    torch.save({**state, "format": 0}, command.out / STATE)
    assert "has format 0, this program reads format 1" in command.refused("--resume")


def test_changed_pictures_are_told_by_their_hash(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    if command.modality == "sentences":
        pytest.skip("sentences have a test of their own")
    monkeypatch.setattr(vit.train, "load_data", lambda *_, **__: replace(picture_data(), content="abc"))
    assert command("--max-steps", "1")[0] == 0
    about = json.loads((command.out / CONFIG).read_text())["data"]
    sizes = {"train": 19, "valid": 5, "test": 3}
    assert about == {"name": "noise", "content": "abc", "pictures": sizes, "skipped": []}
    monkeypatch.setattr(vit.train, "load_data", lambda *_, **__: replace(picture_data(), content="def"))
    assert "data.content: saved abc, asked def" in command.refused("--resume")
    assert command("--overwrite")[0] == 0
    assert json.loads((command.out / METRICS).read_text())["content"] == "def"


def test_changed_sentences_are_told_by_their_hash(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    if command.modality == "pictures":
        pytest.skip("pictures have a test of their own")
    data = sentences()[1].data
    assert command("--max-steps", "1")[0] == 0
    about = json.loads((command.out / CONFIG).read_text())["data"]
    sizes = {"train": 7, "valid": 3, "test": 2}
    assert about == {"name": "few", "content": data.content, "pairs": sizes, "blank": 0, "long": 0}
    other = replace(data, train=[data.train[1], data.train[0], *data.train[2:]])  # as many, and the same words
    monkeypatch.setattr(seq2seq.train, "load_data", lambda *_, **__: other)
    told = command.refused("--resume")
    assert f"data.content: saved {data.content[:9]}" in told
    assert told.endswith("; leave that as it was, or name another --out")
    assert command("--overwrite")[0] == 0
    assert json.loads((command.out / METRICS).read_text())["content"] == other.content


def test_a_run_is_found_by_the_name_of_its_data(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.pictures").mkdir()
    (tmp_path / "my.tsv").write_text("")
    data, name = {"pictures": ("my.pictures", "my.pictures"), "sentences": ("my.tsv", "my")}[command.modality]
    place = tmp_path / "runs" / name
    assert run_folder(None, data) == place.relative_to(tmp_path)
    assert command("--max-steps", "1", "--data", data, "--seed", "5", out=place)[0] == 0
    main = vit.train.main if command.modality == "pictures" else seq2seq.train.main
    monkeypatch.setattr("sys.argv", ["train", "--data", data, "--resume"])
    main()
    assert json.loads((place / METRICS).read_text())["epochs"] == 2.0


def test_uneven_classes_and_notes_are_lines(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    if command.modality == "sentences":
        pytest.skip("sentences have no classes")
    data = picture_data()
    uneven = replace(data, train=data.train[torch.tensor([0, 3, 6, 9, 1, 4, 7, 2, 5])], notes=("a note",))
    monkeypatch.setattr(vit.train, "load_data", lambda *_, **__: uneven)
    told = "classes are uneven: 4 training pictures of 'a', 2 of 'c'; --balanced shows each class equally often"
    lines = command("--max-steps", "1")[1]
    assert {told, "a note"} <= set(lines)
    lines = command("--max-steps", "1", "--balanced", "--overwrite")[1]
    assert told not in lines
    assert "a note" in lines


def test_another_kind_of_run_is_not_resumed(command: Command, tmp_path: Path) -> None:
    other = Command({"pictures": "sentences", "sentences": "pictures"}[command.modality], tmp_path / "other",
                    command.patch, command.capture)  # fmt: skip
    for one in (command, other):
        assert one("--max-steps", "1")[0] == 0
    shutil.copy(other.out / STATE, command.out / STATE)
    assert "belongs to another run: model.kind: saved" in command.refused("--resume")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--optimizer", "adamx"], "unknown optimizer 'adamx'; choose one that timm.optim lists"),
        (["--device", "mps"], "this machine has no mps device; use --device auto"),
        (["--preset", "nonsense"], "unknown preset 'nonsense'; choose one of"),
        (["--epochs", "0"], "epochs=0 must be at least 1"),
        (["--minutes", "nan"], "minutes=nan must be above 0"),
        (["--minutes", "inf"], "minutes=inf must be above 0"),
        (["--betas", "0.9", "1"], "betas=(0.9, 1.0) must lie in [0, 1)"),
        (["--optimizer", "sgd", "--betas", "0.8", "0.9"], "betas=(0.8, 0.9) are nothing that sgd has; leave them out"),
        (["--optimizer", "fusedadam"], "optimizer 'fusedadam' cannot be made here ("),
        (["--resume", "--overwrite"], "--resume goes on and --overwrite starts again; give one of them"),
        (["--ema", "1.5"], "ema=1.5 must lie in [0, 1)"),
        (["--learning-rate", "-1"], "learning_rate=-1.0 must be 0 or more"),
        (["--shard"], "--shard cuts a model over several processes"),
        (["--shard", "--ema", "0.9"], "shard and ema=0.9 do not go together"),
        (["--epochs", "many"], "many"),
        (["--learnin-rate", "1"], "--learnin-rate"),
        (["--precision", "fp8"], "fp8"),
    ],
)
def test_mistakes_are_one_line(command: Command, arguments: list[str], told: str) -> None:
    if arguments == ["--device", "mps"] and torch.backends.mps.is_available():
        pytest.skip("this machine has an mps device")
    assert told in command.refused(*arguments)
    assert not (command.out / STATE).exists()
    assert command("--max-steps", "1")[0] == 0  # a start that failed stands in nobody's way


def test_what_compile_needs_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "--compile needs a C++ compiler" in command.refused("--compile")


def test_tensorboard_s_extra_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    assert 'pip install "patchwords[tensorboard]"' in command.refused("--tensorboard")


def test_tensorboard(command: Command) -> None:
    pytest.importorskip("tensorboard")
    assert command("--tensorboard")[0] == 0
    assert any((command.out / TENSORBOARD).iterdir())


@pytest.mark.parametrize("name", ["with blanks", "[ab]*?", "Übungsläufe é", "deep/er/run"])
def test_any_path_will_do(command: Command, name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    for arguments in (["--max-steps", "2"], ["--resume"], ["--resume"]):
        assert command(*arguments, "--average-last", "1", out=out)[0] == 0
    assert (out / METRICS).exists()
    assert read_weights(out / WEIGHTS)[1]["step"] > 0


def test_what_a_killed_process_left_is_cleaned_up(command: Command) -> None:
    assert command("--max-steps", "1")[0] == 0
    (command.out / ".last.pt.1.part").write_bytes(b"half")
    assert command("--resume")[0] == 0
    assert not list(command.out.glob(".*.part"))


def test_a_place_below_a_file_is_refused_before_training(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    told = command.refused(out=tmp_path / "file" / "run")
    assert f"cannot write to {tmp_path / 'file' / 'run'}" in told
    assert "choose another --out" in told
    assert command.refused(out=tmp_path / "file").startswith("error: cannot write to")


def test_a_loss_that_is_not_finite_stops_the_run(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from common.training.step import Stepper

    step = Stepper.__call__

    def broken(self: Stepper, parts: list, n: int, *rest: object) -> object:
        result = step(self, parts, n, *rest)  # pyright: ignore[reportArgumentType]
        return result._replace(loss=float("nan")) if n == 4 else result

    monkeypatch.setattr(Stepper, "__call__", broken)
    told = command.refused("--save-minutes", "0")
    assert told.startswith("error: step 4: loss nan, gradient norm ")
    assert str(command.out / STATE) in told
    assert load_state(command.out / STATE)["progress"]["step"] == 4  # after steps 0 to 3
    monkeypatch.setattr(Stepper, "__call__", step)
    assert command("--resume")[0] == 0


@pytest.mark.parametrize(
    "mistake", [["--optimizer", "adamx"], ["--optimizer", "fusedadam"], ["--device", "mps"], ["--compile"], ["--data"]]
)
def test_what_is_to_be_overwritten_stays_where_the_new_run_cannot_begin(
    command: Command, monkeypatch: pytest.MonkeyPatch, mistake: list[str]
) -> None:
    if mistake == ["--device", "mps"] and torch.backends.mps.is_available():
        pytest.skip("this machine has an mps device")
    assert command("--seed", "5", "--max-steps", "3")[0] == 0
    before = contents(command.out)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.which", lambda _: None)  # no compiler
        if mistake == ["--data"]:
            module = vit.train if command.modality == "pictures" else seq2seq.train
            patch.setattr(module, "load_data", no_data)
        assert command.refused("--overwrite", *([] if mistake == ["--data"] else mistake))
        after = contents(command.out)
        assert after.pop(REPLACED, b"") == b""
        assert after == before
        if mistake[0] == "--optimizer":  # torchrun, starting again, still has the old run to replace
            patch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
            code, lines = command("--overwrite", "--max-steps", "1")
            assert code == 0
            assert not any("resuming" in line for line in lines)
    assert command("--resume")[0] == 0  # of the old run, or of the one that took its place
    assert not (command.out / REPLACED).exists()


def no_data(*_: object, **__: object) -> None:
    raise UserError("no data")


def test_what_a_run_began_with_is_not_changed_by_resuming(command: Command) -> None:
    assert command("--max-steps", "1")[0] == 0
    preset = {"pictures": "cpu20", "sentences": "seed"}[command.modality]
    assert f"preset={preset} is not that of the run in" in command.refused("--resume", "--preset", preset)
    weights = command.out / WEIGHTS
    assert f"init={weights} is not that of the run in" in command.refused("--resume", "--init", str(weights))


def test_a_dry_run_leaves_nothing(command: Command) -> None:
    code, lines = command("--dry-run")
    assert code == 0
    assert "the whole run" in lines[-1]
    assert "minutes" in lines[-1]
    assert "a step takes" in lines[-2]
    assert not command.out.exists()


def test_torchrun_starts_again_where_it_was(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("--max-steps", "3")[0] == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    code, lines = command("--overwrite")  # of the first start, not of the later ones
    assert code == 0
    assert any(line.startswith("resuming at step 3 of ") for line in lines)


def test_torchrun_starts_again_before_there_was_anything(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert command()[0] == 0


def test_curves_are_drawn(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from common.training import run

    monkeypatch.setattr("common.training.evaluation.draw_curves", run.draw_curves)
    assert command("--max-steps", "4")[0] == 0
    first = (command.out / CURVES).read_bytes()
    assert first.startswith(b"\x89PNG")
    assert command("--resume")[0] == 0
    assert (command.out / CURVES).read_bytes() != first


def test_curves_are_drawn_at_evaluations_where_that_is_cheap(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr("common.training.evaluation.draw_curves", lambda _, history, *__: drawn.append(len(history)))
    assert command("--epochs", "3")[0] == 0
    assert drawn == [3]
    monkeypatch.setattr("common.training.evaluation.DRAWING_SHARE", 1e9)
    assert command("--epochs", "3", "--overwrite")[0] == 0
    assert drawn == [3, 1, 2, 3, 3]

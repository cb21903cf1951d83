"""A training command over tiny data, as a person calls it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import seq2seq.train
import vit.train

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


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

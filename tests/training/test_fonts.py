"""Names in any script are drawn, without a warning (which is an error here) and without a message on stderr."""

from pathlib import Path

import pytest
import torch
from matplotlib import font_manager
from matplotlib.figure import Figure

from common.training import fonts
from common.training.fonts import drawable, fonts_for
from vit.evaluate import draw
from vit.metrics import calibration
from vit.report import draw_confusion_matrix
from vit.splits import Pictures

NAMES = [
    "犬",
    "قطة",
    "แมว",
    "😀🐱",
    "$x_1$",
    "$\\frac$",
    "é",
    "a\nb",
    "\u202eabc",
    "नमस्ते",
    "한국어",
    "w" * 255,
    "犬" * 85,
]


def test_pictures_of_an_evaluation(tmp_path: Path, capsys, caplog) -> None:
    n = len(NAMES)
    labels = torch.arange(n)
    chances = torch.full((n, n), 0.1).scatter(1, ((labels + 1) % n).unsqueeze(1), 0.7)
    confidence, predicted = chances.max(dim=1)
    pictures = Pictures(torch.zeros(n, 5, 7, 3, dtype=torch.uint8), labels)
    draw(tmp_path, pictures, labels, chances, calibration(confidence, predicted == labels), NAMES)
    for name in ("confusion_matrix.png", "mistakes.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().err == ""
    assert caplog.records == []


@pytest.mark.parametrize("name", ["犬" * 85, "😀🐱", "w" * 255, "$\\frac$"])
def test_two_classes_with_a_long_or_foreign_name(name: str, tmp_path: Path) -> None:
    draw_confusion_matrix(tmp_path / "a.png", torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), [name, f"{name}2"])


def test_another_installed_font_is_taken_for_what_the_usual_one_lacks(tmp_path: Path) -> None:
    usual = font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap()
    other = font_manager.get_font(font_manager.findfont("STIXGeneral")).get_charmap()  # comes with matplotlib
    letter = next(chr(c) for c in sorted(other.keys() - usual.keys()) if chr(c).isalpha())
    nowhere = "犬" if 0x72AC not in usual | other else "\U0001fae8"
    with fonts_for([f"a{letter}", nowhere]) as shown:
        assert shown(f"a{letter}") == f"a{letter}"
        text = Figure().text(0, 0, f"a{letter}")
        assert len(text.get_fontfamily()) > 1
        assert shown(nowhere) == ascii(nowhere)[1:-1]  # and no box of the last resort
    assert Figure().text(0, 0, "a").get_fontfamily() == ["sans-serif"]


def test_other_fonts_are_not_opened_if_the_usual_one_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "_regular_faces", lambda: pytest.fail("looked for other fonts"))
    with fonts_for(["abc", "ß", "a\nb"]) as shown:
        assert [shown(text) for text in ("ß", "a\nb")] == ["ß", "a\\nb"]


def test_a_font_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    assert fonts._characters(str(tmp_path / "broken.ttf")) == frozenset()
    assert fonts._characters(str(tmp_path / "gone.ttf")) == frozenset()


def test_what_no_font_has_is_escaped_and_a_long_text_is_cut() -> None:
    known = {*map(ord, "abß…"), 0x200B}
    assert drawable("aßb", known) == "aßb"
    assert drawable("a日\u200b\n", known) == "a\\u65e5\\u200b\\n"
    assert drawable("a" * 21, known) == "a" * 19 + "…"
    assert drawable("a" * 20, known) == "a" * 20

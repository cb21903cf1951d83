"""Names in any script in matplotlib's figures: fonts that have their characters, and escapes for what no font has."""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

LONGEST = 20


@contextmanager
def fonts_for(texts: Iterable[str]) -> Iterator[Callable[[str], str]]:
    """Inside, figures are drawn in the usual font and, for what that lacks, in other installed fonts.

    Yields:
        What to draw of each text: itself, with the characters escaped that no installed font has, and not too long.
    """
    import matplotlib
    from matplotlib.font_manager import FontProperties, findfont

    usual = matplotlib.rcParams["font.family"]
    known = _characters(findfont(FontProperties(family=usual)))
    missing = frozenset(ord(c) for text in texts for c in text if c.isprintable()) - known
    families, found = _families_with(missing) if missing else ((), frozenset())
    known |= found
    with matplotlib.rc_context({"font.family": [*usual, *families]}):
        yield lambda text: drawable(text, known)


@functools.lru_cache(maxsize=8)  # there may be hundreds of fonts to look into
def _families_with(missing: frozenset[int]) -> tuple[tuple[str, ...], frozenset[int]]:
    """Families of fonts that have some of these code points, and which of them they have together."""
    families, found = [], set()
    for family, file in _regular_faces():
        if some := (missing - found) & _characters(file):
            families.append(family)
            found |= some
        if len(found) == len(missing):
            break
    return tuple(families), frozenset(found)


def _regular_faces() -> list[tuple[str, str]]:
    """Installed families and the files of their regular faces, sans serif first.

    matplotlib logs a complaint about a family that has none.
    """
    from matplotlib.font_manager import fontManager

    regular = {
        font.name: font.fname
        for font in fontManager.ttflist
        if (font.style, font.stretch) == ("normal", "normal") and font.weight in (400, "normal")
    }
    # The last resort has a box for every character, of which matplotlib warns.
    usable = [(name, file) for name, file in regular.items() if "Last Resort" not in name]
    return sorted(usable, key=lambda face: ("Sans" not in face[0], face))


def _characters(file: str) -> frozenset[int]:
    """The code points of a font file; none if it cannot be read."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(get_font(file).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


def drawable(text: str, known: Collection[int], longest: int = LONGEST) -> str:
    """A text as a figure can show it: characters without a glyph, or that cannot be seen, are written as in Python.

    Args:
        text: any.
        known: the code points that the fonts have.
        longest: a longer text is cut.
    """
    shown = "".join(
        c if c.isprintable() and ord(c) in known else c.encode("unicode_escape").decode("ascii") for c in text
    )
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"

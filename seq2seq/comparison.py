"""Two systems on the same references by paired bootstrap, and BLEU by the length of the source."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from common import UserError
from seq2seq.bleu_tokens import LATIN, bleu_tokenizer

if TYPE_CHECKING:
    from rich.table import Table

BINS = ((1, 5), (6, 10), (11, 15), (16, 20), (21, 30), (31, None))
"""First and last number of source words, between white space; the last bin is open."""
RESAMPLES, SEED = 1000, 12345


def paired_bootstrap(
    hypotheses: Sequence[str],
    against: Sequence[str],
    references: Sequence[str],
    names: tuple[str, str],
    language: str | None = None,
) -> dict[str, Any]:
    """Is the difference between two systems more than chance? (Koehn 2004, 4; by sacreBLEU.)

    Args:
        hypotheses: of the system in question.
        against: of the one it is compared with.
        references: raw text; all three of one length.
        names: of the two systems.
        language: of the references, see ``bleu_tokenizer``.

    Returns:
        By metric, bleu and chrf (cased): ``score``, ``mean`` over the resamples and ``ci``, half
        the width of the interval that holds 95 % of them, of the system; the same of the one it is compared with under
        ``against``; the probability ``p`` that a difference as great is chance; and the signature.

    Raises:
        ValueError: there is one pair only.
    """
    from sacrebleu.metrics import BLEU, CHRF
    from sacrebleu.significance import PairedTest

    assert len(hypotheses) == len(against) == len(references)
    if len(references) < 2:
        raise UserError("one pair has no other to be drawn in its place; give more pairs, or leave --against out")
    with _seed(SEED):
        # The first system is the one that the others are compared with.
        test = PairedTest(
            [("against", against), ("system", hypotheses)],
            {"BLEU": BLEU(tokenize=bleu_tokenizer(language, references)), "chrF": CHRF()},
            [references],
            test_type="bs",
            n_samples=RESAMPLES,
        )
        signatures, scores = test()
    figures: dict[str, Any] = {"system": names[0], "against": names[1], "resamples": RESAMPLES, "seed": SEED}
    for key, metric in (("bleu", "BLEU"), ("chrf", "chrF2")):
        results: list[Any] = scores[metric]
        one, other = ({"score": r.score, "mean": float(r.mean), "ci": float(r.ci)} for r in reversed(results))
        # sacreBLEU finds equal systems significantly different, for no resample differs more than not at all.
        p_value = 1.0 if one["score"] == other["score"] else results[1].p_value
        figures[key] = {**one, "against": other, "p": p_value, "signature": str(signatures[metric])}
    return figures


@contextmanager
def _seed(seed: int) -> Iterator[None]:
    """sacreBLEU takes its seed from the environment."""
    name = "SACREBLEU_SEED"
    before = os.environ.get(name)
    os.environ[name] = str(seed)
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def bleu_by_length(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], languages: tuple[str, str] = ("", "")
) -> list[dict[str, Any]]:
    """For each of ``BINS`` its ``words`` (of a language without spaces: characters), the number of ``sentences``, and
    their BLEU as a corpus, None if there are none."""
    from sacrebleu import corpus_bleu

    found = []
    tokenizer = bleu_tokenizer(languages[1], references)
    spaced = bleu_tokenizer(languages[0], sources) == LATIN
    lengths = [len(source.split()) if spaced else len("".join(source.split())) for source in sources]
    for first, last in BINS:
        rows = [i for i, length in enumerate(lengths) if first <= length <= (last or length)]
        chosen = [hypotheses[i] for i in rows], [[references[i] for i in rows]]
        words = f"{first}+" if last is None else f"{first}-{last}"
        bleu = corpus_bleu(*chosen, tokenize=tokenizer).score if rows else None
        found.append({"words": words, "sentences": len(rows), "bleu": bleu})
    return found


def comparison_table(figures: Mapping[str, Any]) -> "Table":
    """What ``paired_bootstrap`` found, for a person."""
    from rich.table import Table
    from rich.text import Text

    title = f"{figures['system']} against {figures['against']}, {figures['resamples']} resamples"
    table = Table(title=Text(title))
    for column in ("", "system", "mean, 95 %", "against", "mean, 95 %", "p"):
        table.add_column(column)
    for key, name in (("bleu", "BLEU"), ("chrf", "chrF")):
        row = figures[key]
        cells = [(f"{s['score']:.2f}", f"{s['mean']:.2f} ± {s['ci']:.2f}") for s in (row, row["against"])]
        table.add_row(name, *cells[0], *cells[1], f"{row['p']:.4f}")
    return table


def length_table(bins: Sequence[Mapping[str, Any]]) -> "Table":
    """What ``bleu_by_length`` found, for a person."""
    from rich.table import Table

    table = Table(title="by source words")
    for column in ("words", "sentences", "BLEU"):
        table.add_column(column)
    for row in bins:
        table.add_row(row["words"], str(row["sentences"]), "" if row["bleu"] is None else f"{row['bleu']:.2f}")
    return table

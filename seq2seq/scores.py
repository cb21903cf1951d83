"""How good translations are: BLEU and chrF by sacreBLEU, on raw text and by the protocol of the papers on Multi30k."""

from collections.abc import Sequence
from typing import Any

from common import UserError
from common.training.run import say
from seq2seq.bleu_tokens import LATIN, bleu_tokenizer


def raw_scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str | None = None, *, lowercase: bool = False
) -> dict[str, Any]:
    """BLEU (tokens as the target language needs them, see ``bleu_tokenizer``) and chrF of raw text, each with
    sacreBLEU's signature."""
    from sacrebleu.metrics import BLEU, CHRF

    bleu = BLEU(lowercase=lowercase, tokenize=bleu_tokenizer(language, references))
    chrf = CHRF(lowercase=lowercase)
    return {
        "bleu": bleu.corpus_score(hypotheses, [references]).score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf": chrf.corpus_score(hypotheses, [references]).score,
        "chrf_signature": str(chrf.get_signature()),
    }


def moses(texts: Sequence[str], language: str) -> list[str]:
    """Text lowercased, its punctuation normalised, and cut into tokens as Moses does it, a space between them.

    Raises:
        ValueError: the package sacremoses is not installed.
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            "BLEU on lowercased Moses tokens needs sacremoses, the extra moses: pip install 'patchwords[moses]'"
        ) from None
    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return [str(tokenizer.tokenize(normalizer.normalize(text.lower()), return_str=True)) for text in texts]


def token_scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str, reference_tokens: Sequence[str] | None = None
) -> dict[str, Any]:
    """lc-tok BLEU, the papers' protocol: of lowercased Moses tokens.

    Args:
        hypotheses: raw text.
        references: raw text.
        language: whose rules the tokenizer follows.
        reference_tokens: the references as lowercased tokens where they are published so; else made here.

    Returns:
        BLEU with its signature, and the number of tokens on both sides, which tells the protocol.
    """
    from sacrebleu.metrics import BLEU

    tokens, expected = moses(hypotheses, language), reference_tokens or moses(references, language)
    bleu = BLEU(tokenize="none", force=True)
    score = bleu.corpus_score(tokens, [expected])
    return {
        "bleu": score.score,
        "bleu_signature": str(bleu.get_signature()),
        "hypothesis_tokens": score.sys_len,  # pyright: ignore[reportAttributeAccessIssue]
        "reference_tokens": score.ref_len,  # pyright: ignore[reportAttributeAccessIssue]
        "references": "made here" if reference_tokens is None else "published",
    }


def all_scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str, reference_tokens: Sequence[str] | None
) -> dict[str, Any]:
    """cased, lowercased and lc_tok. The last is None if its package is missing, with a message, and for a language in
    which spaces do not separate words: Moses would not find any."""
    figures: dict[str, Any] = {
        "cased": raw_scores(hypotheses, references, language),
        "lowercased": raw_scores(hypotheses, references, language, lowercase=True),
        "lc_tok": None,
    }
    if bleu_tokenizer(language, references) != LATIN:
        return figures
    try:
        figures["lc_tok"] = token_scores(hypotheses, references, language, reference_tokens)
    except UserError as error:
        say(f"left out: {error}")
    return figures

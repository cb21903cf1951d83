"""Which tokens BLEU counts: words for most languages, characters for those in which spaces do not separate words.

13a, sacreBLEU's default, takes a whole Chinese sentence for one word, and BLEU is 0 unless sentences are equal. The
choice follows from the language and the references alone, never from what is installed: sacreBLEU's ja-mecab, ko-mecab
and flores200 need extras or a download.
"""

from collections import Counter
from collections.abc import Sequence

LATIN = "13a"
BY_LANGUAGE = {
    "zh": ("zh", "zho", "chi", "cmn", "yue", "chinese"),
    "char": (
        *("ja", "jpn", "japanese", "ko", "kor", "korean", "th", "tha", "thai", "km", "khm", "khmer", "lo", "lao"),
        *("my", "mya", "bur", "burmese", "bo", "bod", "tib", "tibetan", "dz", "dzo", "dzongkha"),
    ),
}
"""sacreBLEU's tokenizers and the languages, by ISO 639 code or name, that they are for."""
BY_SCRIPT = {
    "zh": ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF)),
    "char": (
        *((0x0E00, 0x0E7F), (0x0E80, 0x0EFF), (0x0F00, 0x0FFF), (0x1000, 0x109F)),  # Thai, Lao, Tibetan, Burmese
        *((0x1780, 0x17FF), (0x1100, 0x11FF), (0x3130, 0x318F), (0xAC00, 0xD7FF)),  # Khmer, Korean
        *((0x3040, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),  # Japanese
    ),
}
"""Code points, first and last, of the scripts in which these languages are written."""
KANA = 0.05
"""The share of a text's East Asian letters from which on it is Japanese, whose other letters are Chinese ones."""


def bleu_tokenizer(language: str | None, references: Sequence[str]) -> str:
    """The name of sacreBLEU's tokenizer for a target language: zh, char or 13a.

    Args:
        language: a code such as zh, zh-CN or zh_Hant, or a name; if it is none of ``BY_LANGUAGE``, the script decides:
            a person's own files need not say what they are.
        references: raw text.
    """
    code = (language or "").lower().replace("_", "-").split("-")[0]
    for tokenizer, languages in BY_LANGUAGE.items():
        if code in languages:
            return tokenizer
    return _by_script(references)


def _by_script(texts: Sequence[str]) -> str:
    letters = Counter[str]()
    for text in texts:
        letters.update(c for c in text if c.isalpha())
    counts = Counter({LATIN: 0})
    for letter, count in letters.items():
        ranges = ((name, *one) for name, some in BY_SCRIPT.items() for one in some)
        counts[next((name for name, first, last in ranges if first <= ord(letter) <= last), LATIN)] += count
    if counts["zh"] + counts["char"] <= counts[LATIN]:
        return LATIN
    return "char" if counts["char"] >= KANA * (counts["zh"] + counts["char"]) else "zh"

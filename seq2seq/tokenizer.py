"""From text to ids and back, by the ``tokenizers`` library; the whole tokenizer travels inside the weights file."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Library
from tokenizers import decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE, WordLevel

from common import UserError

PAD_ID = 0
UNKNOWN = "<unk>"
MOST = 1_000_000
"""Ids of byte pairs: the library takes room for all that are asked for."""
_VISIBLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_BYTE_OF = {chr(byte): byte for byte in _VISIBLE} | {
    chr(0x100 + n): byte for n, byte in enumerate(sorted({*range(0x100)} - {*_VISIBLE}))
}
"""Which byte each letter of the library's byte-level pieces stands for."""


class Tokenizer:
    """Ids of a text: 0 is padding, then the vocabulary, then (if it has them) the start and the end symbol.

    The symbols are not in the library's vocabulary: whatever a person writes, ``</s>`` included, is text.
    """

    def __init__(self, library: Library, symbols: bool = True) -> None:
        self.library = library
        self.symbols = symbols
        self._words = library.get_vocab_size()
        self.start_id = self._words + 1 if symbols else None
        self.end_id = self._words + 2 if symbols else None

    @classmethod
    def of_words(cls, texts: Iterable[str], *, symbols: bool = True, unknown: bool = True) -> "Tokenizer":
        """One id a word of normal form C, in the order of first appearance; white space separates words."""
        vocabulary, form = ({UNKNOWN: 0} if unknown else {}), normalizers.NFC()
        for text in texts:
            for word in form.normalize_str(text).split():
                vocabulary.setdefault(word, len(vocabulary))
        library = Library(WordLevel(vocabulary, unk_token=UNKNOWN))
        library.normalizer = form  # pyright: ignore[reportAttributeAccessIssue]
        library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
        return cls(library, symbols)

    @classmethod
    def of_bpe(cls, texts: Iterable[str], size: int) -> "Tokenizer":
        """Byte-pair encoding over UTF-8 bytes, so that no text is unknown (Sennrich et al. 2016; GPT-2's pieces).

        Decoding gives back the text in its normal form C, and otherwise character for character. A space is put before
        the text and taken away again, so that a word is the same at the beginning as in the middle.

        Args:
            texts: what the merges are learnt from, the training side only.
            size: the largest number of ids, padding, start and end included.

        Raises:
            ValueError: size has no room for the 256 bytes and the three symbols, or is above ``MOST``.
        """
        if size < 256 + 3:
            raise UserError(f"a vocabulary of {size} is too small; 256 bytes and three symbols need 259")
        if size > MOST:
            raise UserError(f"a vocabulary of {size} is too large; give at most {MOST:,}")
        library = Library(BPE())
        library.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend(" ")])  # pyright: ignore[reportAttributeAccessIssue]
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
        library.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])  # pyright: ignore[reportAttributeAccessIssue]
        trainer = trainers.BpeTrainer(
            vocab_size=size - 3, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
        )
        library.train_from_iterator(texts, trainer)
        return cls(library)

    @property
    def unknown_id(self) -> int | None:
        """The id of words that are in no vocabulary; None where there are no such words, or they are refused."""
        found = self.library.token_to_id(getattr(self.library.model, "unk_token", None) or "")
        return None if found is None else found + 1

    def __len__(self) -> int:
        return 1 + self._words + 2 * self.symbols

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without start and end. Raises ValueError at a word no id can stand for."""
        try:
            encoded = self.library.encode_batch(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises the bare class
            for text in texts:
                if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
                    raise UserError(f"{text[:60]!r} has half a letter, which no text in UTF-8 has") from None
            known = self.library.get_vocab()
            for text in texts:
                for word in text.split():
                    if word not in known:
                        words = ", ".join(sorted(known, key=known.__getitem__))
                        raise UserError(f"unknown word {word!r}; this model knows {words}") from None
            raise error
        return [[i + 1 for i in one.ids] for one in encoded]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids; padding, start and end are left out."""
        words = [[i - 1 for i in row if 0 < i <= self._words] for row in ids]
        return self.library.decode_batch(words, skip_special_tokens=False)

    def names(self, ids: Sequence[int]) -> list[str]:
        """What to write beside each id: S, E and P for the symbols, else the word, or the piece as it is.

        Of byte pairs a space is written as a dot, and a byte that is no whole letter as Python writes it.
        """
        symbols = {PAD_ID: "P", self.start_id: "S", self.end_id: "E"}
        return [symbols[i] if i in symbols else self._piece(self.library.id_to_token(i - 1) or "") for i in ids]

    def _piece(self, token: str) -> str:
        if not isinstance(self.library.model, BPE):
            return token
        return bytes(_BYTE_OF[c] for c in token).decode("utf-8", "backslashreplace").replace(" ", "·")

    def to_json(self) -> dict[str, object]:
        """What ``from_json`` takes."""
        return {"symbols": self.symbols, "library": self.library.to_str()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], origin: str = "the tokenizer") -> "Tokenizer":
        """The tokenizer of a weights file. Raises UserError if the values describe none, naming their origin."""
        library, symbols = values.get("library"), values.get("symbols")
        if not isinstance(library, str) or not isinstance(symbols, bool):
            raise UserError(f"{origin}: expected the fields library and symbols; the file is damaged")
        try:
            read = Library.from_str(library)
        except BaseException as error:  # the library raises the bare class; its panics are no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            raise UserError(f"{origin}: the library tokenizers cannot read it; the file is damaged") from None
        if read.padding is not None or read.truncation is not None:
            raise UserError(f"{origin}: it pads or truncates texts, which ours never do; the file is damaged")
        ids = sorted(read.get_vocab().values())
        if ids != list(range(len(ids))):
            raise UserError(f"{origin}: the ids of its {len(ids)} entries are not 0 to {len(ids) - 1}, each used once")
        return cls(read, symbols)

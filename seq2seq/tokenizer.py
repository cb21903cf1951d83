"""From text to ids and back, by the ``tokenizers`` library; the whole tokenizer travels inside the weights file."""

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer as Library
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from common import UserError

PAD_ID = 0
UNKNOWN = "<unk>"


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
        """One id a word, in the order of their first appearance; words are what white space separates."""
        vocabulary = {UNKNOWN: 0} if unknown else {}
        for text in texts:
            for word in text.split():
                vocabulary.setdefault(word, len(vocabulary))
        library = Library(WordLevel(vocabulary, unk_token=UNKNOWN))
        library.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
        return cls(library, symbols)

    def __len__(self) -> int:
        return 1 + self._words + 2 * self.symbols

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without start and end. Raises ValueError at a word no id can stand for."""
        try:
            encoded = self.library.encode_batch(list(texts))
        except Exception as error:  # the library raises the bare class
            known = self.library.get_vocab()
            for text in texts:
                for word in text.split():
                    if word not in known:
                        raise UserError(f"unknown word {word!r}; this model knows {', '.join(known)}") from None
            raise error
        return [[i + 1 for i in one.ids] for one in encoded]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids; padding, start and end are left out."""
        words = [[i - 1 for i in row if 0 < i <= self._words] for row in ids]
        return self.library.decode_batch(words, skip_special_tokens=False)

    def names(self, ids: Sequence[int]) -> list[str]:
        """What to write beside each id in a picture."""
        symbols = {PAD_ID: "P", self.start_id: "S", self.end_id: "E"}
        return [symbols[i] if i in symbols else str(self.library.id_to_token(i - 1)) for i in ids]

    def to_json(self) -> dict[str, object]:
        """What ``from_json`` takes."""
        return {"symbols": self.symbols, "library": self.library.to_str()}

    @classmethod
    def from_json(cls, values: dict) -> "Tokenizer":
        """The tokenizer of a weights file."""
        return cls(Library.from_str(values["library"]), values["symbols"])

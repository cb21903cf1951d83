"""The translator: a sentence in, a sentence out."""

from seq2seq.decoding import greedy, translate
from seq2seq.model import SIZES, Seq2Seq, Seq2SeqConfig

__all__ = ["SIZES", "Seq2Seq", "Seq2SeqConfig", "greedy", "translate"]

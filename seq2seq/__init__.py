"""The translator: a sentence in, a sentence out."""

import seq2seq._origin  # noqa: F401 (before common)

# isort: split

import common  # noqa: F401 (before torch, whose threads it keeps from spinning)
from seq2seq.decoding import greedy, translate
from seq2seq.model import SIZES, Seq2Seq, Seq2SeqConfig
from seq2seq.rnn import RNN, RNNConfig

__all__ = ["RNN", "SIZES", "RNNConfig", "Seq2Seq", "Seq2SeqConfig", "greedy", "translate"]

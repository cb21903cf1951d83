"""What several tests of the translator share: small models of prime sizes, and a command run in this process."""

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from common import TransformerConfig
from seq2seq.model import Seq2Seq, Seq2SeqConfig
from seq2seq.tokenizer import PAD_ID

SOURCE, TARGET, JOINT = 11, 13, 17  # vocabularies; start and end are the last two entries


def tiny_config(tie: str = "none", **options) -> Seq2SeqConfig:
    joint = tie in ("embeddings", "all")
    target = JOINT if joint else TARGET
    given = {"dropout": options.pop("dropout", 0.0), "norm_first": options.pop("norm_first", True)}
    layers = TransformerConfig(d_model=14, n_heads=2, d_ff=19, **given)
    return Seq2SeqConfig(
        source_vocabulary=JOINT if joint else SOURCE,
        target_vocabulary=target,
        start_id=target - 2,
        end_id=target - 1,
        n_encoder_layers=2,
        n_decoder_layers=3,
        tie=tie,
        layers=layers,
        **options,
    )


def tiny_model(tie: str = "none", seed: int = 0, scale: float = 3.0, **options) -> Seq2Seq:
    """A random translator; ``scale`` widens its embeddings, so that its next tokens differ clearly."""
    torch.manual_seed(seed)
    model = Seq2Seq(tiny_config(tie, **options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embedding" in name or "projection" in name:
                parameter.mul_(scale)
    return model.eval()


def sources(lengths: Sequence[int], seed: int = 1, vocabulary: int = SOURCE) -> Tensor:
    """Random source ids, one row a length, padded at the end."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.full((len(lengths), max(lengths)), PAD_ID)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = torch.randint(1, vocabulary, (length,), generator=random)
    return ids


@dataclass
class Result:
    code: int
    out: str
    err: str


class Stream(io.TextIOWrapper):
    """Standard input, its bytes beneath."""


def run_main(main, arguments: Sequence[object], capsys: pytest.CaptureFixture[str], stdin: bytes = b"") -> Result:
    """Runs a command's main function as if called from a shell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["command", *map(str, arguments)])
        patch.setattr(sys, "stdin", Stream(io.BytesIO(stdin)))
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    captured = capsys.readouterr()
    return Result(code, captured.out, captured.err)

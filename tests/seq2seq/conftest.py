"""A trained translator for the tests of the commands."""

import pytest

from seq2seq.toy import toy_split
from seq2seq.train import main as train


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A short run on a part of the toy world: too short to translate well."""
    part = {name: pairs[::9] for name, pairs in toy_split().items()}
    out = tmp_path_factory.mktemp("runs") / "the toy (ü)"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seq2seq.data.toy_split", lambda: part)
        options = [
            "--data",
            "toy",
            "--epochs",
            "4",
            "--evaluate-every",
            "4",
            "--batch-tokens",
            "1024",
            "--device",
            "cpu",
            "--out",
            str(out),
        ]
        patch.setattr("sys.argv", ["train", *options])
        train()
    return out


@pytest.fixture(scope="session")
def weights(run):
    return run / "best.safetensors"

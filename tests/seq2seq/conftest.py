"""A part of the toy world, and a translator trained on another for the tests of the commands."""

from dataclasses import replace

import pytest

from seq2seq.data import CorpusOptions, load_data
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


@pytest.fixture(scope="session")
def toy():
    """A fortieth of the toy world."""
    data = load_data(["toy"], None, CorpusOptions())  # pyright: ignore[reportArgumentType]
    return replace(data, train=data.train[::40], valid=data.valid[::40])

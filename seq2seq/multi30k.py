"""Multi30k, task 1: captions of pictures in German, English and French (Elliott et al. 2016), as published."""

import hashlib
import http.client
import urllib.request
from pathlib import Path

from common import UserError
from common.training.checkpoint import write_atomically
from seq2seq.text_files import Pair, read_pairs

LANGUAGES = ("de", "en", "fr")
URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
STALLED = 30.0
"""Seconds after which a silent network is given up."""

# split -> the SHA-256 of its file in each of LANGUAGES
SPLITS = {
    "train": (
        "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
        "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
        "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    ),
    "val": (
        "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
        "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
        "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    ),
    "test_2016_flickr": (
        "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
        "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
        "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
    ),
    "test_2017_flickr": (
        "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
        "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
        "3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496",
    ),
    "test_2017_mscoco": (
        "799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338",
        "aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58",
        "754f3072ba9f124569ba5258b32730fc1d214bbf8e0c6dfb2b74401676220db0",
    ),
    "test_2018_flickr": (
        "ddd0130c7d97482dc5197a02141dae8dd79f20f03586c480d675c09a32daf608",
        "ef4f4844037d4c5dea75c9a8ed5fd78905967a26f67c255e230cc9780032654d",
        "fb2b83fcceb937a4f7e3e93c1c51c22aba92f1e342391e6b5ba392b16a920501",
    ),
}


def read_multi30k(data_dir: Path, split: str, source: str, target: str) -> list[Pair]:
    """The pairs of a split, from the files in ``data_dir``/multi30k or from the network.

    Raises:
        ValueError: an unknown split or language, or a file that is damaged or can be got from nowhere.
    """
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    for language in (source, target):
        if language not in LANGUAGES:
            raise UserError(f"Multi30k has no language {language!r}; choose two of {', '.join(LANGUAGES)}")
    if source == target:
        raise UserError(f"source and target are both {source}; choose two of {', '.join(LANGUAGES)}")
    return read_pairs([_checked_file(data_dir / "multi30k", split, language) for language in (source, target)])[0]


def _checked_file(folder: Path, split: str, language: str) -> Path:
    """The split's file, which is downloaded where it is missing."""
    name = f"{split}.{language}.gz"
    path, url = folder / name, URL + name
    expected = SPLITS[split][LANGUAGES.index(language)]
    if not path.exists():
        try:
            with urllib.request.urlopen(url, timeout=STALLED) as answer:
                content = answer.read()
            _save(path, content, expected)
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)).strip(".")
            raise UserError(
                f"{path} is missing and cannot be downloaded ({reason}): get {url} and put it into {folder}, "
                "or use --data toy"
            ) from None
    if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
        raise UserError(f"{path} is damaged (wrong SHA-256): delete it and start again, or get {url}")
    return path


def _save(path: Path, content: bytes, expected: str) -> None:
    """Keeps what came if it is whole."""
    if hashlib.sha256(content).hexdigest() != expected:
        raise OSError(f"what came has {len(content)} bytes and a wrong SHA-256")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)

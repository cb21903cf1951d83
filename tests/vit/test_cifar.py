"""CIFAR from its archive, its files, or a download, from a small set in the very format of the large ones."""

import http.server
import io
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import UserError
from common.training.command import run_command
from vit.data import load_data

PUBLISHED = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def cifar_files(name, rng):
    """The files of the set and the pixels and labels they hold: {path: bytes}, train, test."""
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"] if name == "cifar10" else ["train", "test"]
    classes = ["cat", "dog", "cow"]
    key, meta = ("labels", "batches.meta") if name == "cifar10" else ("fine_labels", "meta")
    folder = "cifar-10-batches-py" if name == "cifar10" else "cifar-100-python"
    files, batches = {}, []
    for batch in names:
        pixels = rng.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
        labels = rng.permutation([0, 1, 2] * 4).tolist()
        entry = {"data": pixels.reshape(12, 3072), key: labels, "coarse_labels": [7] * 12}
        files[f"{folder}/{batch}"] = pickle.dumps(entry, protocol=2)
        batches.append((pixels.transpose(0, 2, 3, 1), labels))
    label_key = "label_names" if name == "cifar10" else "fine_label_names"
    files[f"{folder}/{meta}"] = pickle.dumps({label_key: classes, "coarse_label_names": ["pet"]}, protocol=2)
    files[f"{folder}/readme.html"] = b"<html></html>"
    train = np.concatenate([pixels for pixels, _ in batches[:-1]]), [v for _, labels in batches[:-1] for v in labels]
    return files, train, batches[-1]


@dataclass
class SmallCifar:
    """A small set under the name of a large one."""

    name: str
    dataset: type
    files: dict
    archive: bytes
    train: tuple
    test: tuple

    def check(self, data):
        assert data.name == self.name
        assert data.classes == ("cat", "dog", "cow")
        assert (data.mean, data.std) == PUBLISHED[self.name]
        np.testing.assert_array_equal(data.test.images, self.test[0])
        assert data.test.labels.tolist() == self.test[1]
        right = {picture.tobytes(): label for picture, label in zip(*self.train, strict=True)}
        seen = np.concatenate([data.train.images, data.valid.images])
        labels = [*data.train.labels.tolist(), *data.valid.labels.tolist()]
        assert len(labels) == len(right)
        assert {picture.tobytes(): label for picture, label in zip(seen, labels, strict=True)} == right


@pytest.fixture(params=["cifar10", "cifar100"])
def cifar(request, monkeypatch):
    """A small CIFAR, with its checksums in place of the real ones and an address where nothing answers."""
    from torchvision.datasets import CIFAR10, CIFAR100

    name, dataset = request.param, {"cifar10": CIFAR10, "cifar100": CIFAR100}[request.param]
    files, train, test = cifar_files(name, np.random.default_rng(0))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

    def digest(file):
        return md5(files[f"{dataset.base_folder}/{file}"]).hexdigest()

    monkeypatch.setattr(dataset, "train_list", [[file, digest(file)] for file, _ in dataset.train_list])
    monkeypatch.setattr(dataset, "test_list", [[file, digest(file)] for file, _ in dataset.test_list])
    monkeypatch.setattr(dataset, "meta", {**dataset.meta, "md5": digest(dataset.meta["filename"])})
    monkeypatch.setattr(dataset, "tgz_md5", md5(buffer.getvalue()).hexdigest())
    monkeypatch.setattr(dataset, "url", f"http://127.0.0.1:9/{dataset.filename}")

    return SmallCifar(name, dataset, files, buffer.getvalue(), train, test)


def unpack(cifar, folder):
    for path, content in cifar.files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)


def test_cifar_from_its_archive_and_then_from_its_files(tmp_path, cifar):
    (tmp_path / cifar.dataset.filename).write_bytes(cifar.archive)
    data = load_data(cifar.name, tmp_path, valid_fraction=0.25)
    cifar.check(data)
    n_train = len(cifar.train[1])
    assert len(data.valid) == n_train / 4
    assert torch.bincount(data.valid.labels).tolist() == [n_train // 12] * 3
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([cifar.dataset.base_folder, cifar.dataset.filename])
    (tmp_path / cifar.dataset.filename).unlink()
    cifar.check(load_data(cifar.name, tmp_path))
    other = load_data(cifar.name, tmp_path, valid_fraction=0.25, seed=1)
    assert not torch.equal(other.valid.images, data.valid.images)
    assert load_data(cifar.name, tmp_path, image_size=(7, 11)).test.images.shape == (12, 7, 11, 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_downloading_leaves_nothing_behind(tmp_path, cifar, monkeypatch, number):
    def download(url, folder, *_):
        Path(folder, "half").write_bytes(b"x")
        os.kill(os.getpid(), number)
        time.sleep(5)

    monkeypatch.setattr("torchvision.datasets.utils.download_url", download)
    with pytest.raises(SystemExit) as ended:
        run_command(lambda: load_data(cifar.name, tmp_path))
    assert ended.value.code == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_cifar_archive_that_is_damaged_is_named_with_the_cure(tmp_path, cifar):
    archive = tmp_path / cifar.dataset.filename
    flipped = bytearray(cifar.archive)
    flipped[len(flipped) // 2] ^= 1
    for content in (cifar.archive[:-1], bytes(flipped), b""):
        archive.write_bytes(content)
        with pytest.raises(UserError, match=r"is damaged .*delete it") as caught:
            load_data(cifar.name, tmp_path)
        assert str(archive) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
        assert list(tmp_path.iterdir()) == [archive]


def test_cifar_without_network_says_what_to_put_where(tmp_path, cifar):
    folder = tmp_path / "new"
    with pytest.raises(UserError, match="is missing and cannot be downloaded") as caught:
        load_data(cifar.name, folder)
    message = str(caught.value)
    assert str(folder / cifar.dataset.filename) in message
    assert cifar.dataset.url in message
    assert "--data digits" in message
    assert len(message.splitlines()) == 1
    assert list(folder.iterdir()) == []


def test_cifar_that_is_half_unpacked_is_never_taken_for_whole(tmp_path, cifar):
    unpack(cifar, tmp_path)
    batch = tmp_path / cifar.dataset.base_folder / cifar.dataset.test_list[0][0]
    batch.write_bytes(batch.read_bytes()[:-1])
    with pytest.raises(UserError, match="is missing or damaged and cannot be downloaded") as caught:
        load_data(cifar.name, tmp_path)
    assert str(batch) in str(caught.value)
    (tmp_path / cifar.dataset.filename).write_bytes(cifar.archive)
    cifar.check(load_data(cifar.name, tmp_path))


def test_cifar_below_a_file_is_refused_in_one_line(tmp_path, cifar):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot read the data 'cifar") as caught:
        load_data(cifar.name, tmp_path / "file")
    assert len(str(caught.value).splitlines()) == 1


def test_cifar_is_downloaded_whole_or_not_at_all(tmp_path, cifar, monkeypatch):
    served = tmp_path / "server"
    served.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(served))

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{cifar.dataset.filename}"
        monkeypatch.setattr(cifar.dataset, "url", url)
        (served / cifar.dataset.filename).write_bytes(cifar.archive[:-1])
        with pytest.raises(UserError, match="cannot be downloaded"):
            load_data(cifar.name, tmp_path / "data")
        assert list((tmp_path / "data").iterdir()) == []
        (served / cifar.dataset.filename).write_bytes(cifar.archive)
        cifar.check(load_data(cifar.name, tmp_path / "data"))
        server.shutdown()
    assert (tmp_path / "data" / cifar.dataset.filename).read_bytes() == cifar.archive


def test_import_is_light():
    code = "import sys, vit.data; print(sorted({'sklearn', 'torchvision'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"

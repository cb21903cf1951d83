"""Which picture files a data folder has: its splits, its classes, and what lies below each."""

import os
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from common.errors import UserError
from vit.pictures import COMMON, EXTENSIONS, is_picture

VALID = ("val", "valid", "validation")  # names of the validation split's folder


@dataclass
class Aside:
    """What a search for pictures comes across and a person should hear of."""

    files: list[Path] = field(default_factory=list)  # no pictures by the ending of their names
    nested: list[Path] = field(default_factory=list)  # pictures that lie deeper than in the class folder itself
    links: list[Path] = field(default_factory=list)  # not followed, because they lead to other classes' pictures
    empty: list[Path] = field(default_factory=list)  # in the place of class folders, but without one picture file


def split_dirs(folder: Path) -> tuple[Path, Path | None, Path | None]:
    """The folders of the train, valid and test splits; None where a split is to be held out.

    Raises:
        UserError: the folders contradict each other.
    """
    train, test = folder / "train", folder / "test"
    valid = [folder / name for name in VALID if (folder / name).is_dir()]
    if len(valid) > 1:
        raise UserError(f"{folder} has both {valid[0].name}/ and {valid[1].name}/: keep the validation split")
    if train.is_dir() and not valid and not test.is_dir() and _holds_pictures_alone(train):
        return folder, None, None  # a class of that name
    if not train.is_dir():
        if valid or test.is_dir():
            raise UserError(f"{folder} has {(valid or [test])[0].name}/ but no train/: put the training pictures there")
        return folder, None, None
    if not test.is_dir():
        return train, None, valid[0] if valid else None
    return train, valid[0] if valid else None, test


def _holds_pictures_alone(folder: Path) -> bool:
    """Whether there are pictures, and no folder that could be a class."""
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    return any(is_picture(entry.name) for entry in shown) and not any(map(_is_folder, shown))


def files_below(folder: Path, others: Collection[str] = (), links: list[Path] | None = None) -> Iterator[str]:
    """The files of a folder by name, then those of the folders in it, each with the folders before its name.

    Hidden ones are left out; links to nothing are there, for somebody may miss them. Each folder is read once, whatever
    links lead to it: under its own name if it lies in ``folder``. A link is not followed to a folder above, nor into
    one of ``others`` or to a folder above them.

    Args:
        folder: where to look.
        others: real paths of folders whose files belong elsewhere.
        links: takes the links that are not followed because files of elsewhere would come in.

    Raises:
        UserError: a folder cannot be listed.
    """
    root, seen = os.path.realpath(folder), set[str]()

    def walk(real: str, name: str) -> Iterator[str]:
        seen.add(real)
        try:
            with os.scandir(real) as entries:
                shown = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda e: e.name)
        except OSError as error:
            reason = f"cannot list the folder {folder / name} ({error.strerror})"
            raise UserError(f"{reason}; make it readable, or take it away") from None
        folders = [entry for entry in shown if _is_folder(entry)]
        yield from (os.path.join(name, entry.name) for entry in shown if _is_file(entry))
        for entry in folders:
            target, inside = os.path.realpath(entry.path), os.path.join(name, entry.name)
            if entry.is_symlink() and not _is_own(target, root):
                if any(_is_in(place, target) for place in (root, real)) or any(
                    _is_in(target, other) or _is_in(other, target) for other in others
                ):
                    if links is not None:
                        links.append(folder / inside)
                    continue
            elif entry.is_symlink() or target in others:
                continue
            if target not in seen:
                yield from walk(target, inside)

    yield from walk(root, "")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    # The entry's own method, which costs nothing for all but links, raises an error for a link that leads to itself.
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _is_file(entry: os.DirEntry[str]) -> bool:
    """A file, or a link to one or to nothing."""
    if not entry.is_symlink():
        return entry.is_file()
    return os.path.isfile(entry.path) or not os.path.exists(entry.path)


def _is_in(path: str, folder: str) -> bool:
    """Whether a real path is a folder or lies below it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _is_own(target: str, root: str) -> bool:
    """Whether a folder is read anyway, because no name between it and the root is hidden."""
    return _is_in(target, root) and os.sep + "." not in target[len(root) :]


def class_folders(directory: Path, aside: Aside | None = None) -> list[Path]:
    """The folders of a split that may be classes, by name.

    A link to a folder above, or to one that is in another class or has one in it, is none.
    """
    shown = [path for path in sorted(directory.iterdir()) if not path.name.startswith(".")]
    folders = [path for path in shown if path.is_dir()]
    here = os.path.realpath(directory)
    kept = [path for path in folders if not path.is_symlink()]
    below = [os.path.realpath(path) for path in kept]
    for path in folders:
        if path.is_symlink():
            real = os.path.realpath(path)
            if _is_in(here, real) or any(_is_in(real, one) or _is_in(one, real) for one in below):
                if aside is not None:
                    aside.links.append(path)
                continue
            kept.append(path)
            below.append(real)
    if aside is not None:
        aside.empty += [path for path in shown if path.is_symlink() and not path.exists()]
    return sorted(kept)


def class_pictures(directory: Path, aside: Aside | None = None, others: Collection[str] = ()) -> dict[str, list[Path]]:
    """The picture files of each class folder that has any, in the order of their names; those of folders in it too, if
    some class has pictures of its own.

    Args:
        directory: of the class folders.
        aside: takes what is left out, and what lies deeper.
        others: real paths of the other splits' class folders, where no link leads to.

    Raises:
        UserError: there is none, or a class has a name that is no text.
    """
    found: dict[str, list[Path]] = {}
    direct = False
    aside = Aside() if aside is None else aside
    folders = class_folders(directory, aside)
    real = {path: os.path.realpath(path) for path in folders}
    elsewhere = {*real.values(), *others}
    for folder in folders:
        names = list(files_below(folder, elsewhere - {real[folder]}, aside.links))
        pictures = [name for name in names if is_picture(name)]
        deeper = [name for name in pictures if os.sep in name]
        direct = direct or len(deeper) < len(pictures)
        paths = [folder / name for name in pictures]
        aside.nested += [folder / name for name in deeper]
        if len(paths) < len(names):
            aside.files += sorted({folder / name for name in names} - {*paths})
        if names and not paths:
            aside.empty.append(folder)
        if paths and not _is_text(folder.name):
            raise UserError(f"the name of the class folder {folder} is not UTF-8; rename it")
        if paths:
            # An accent may be one character here and two there: the same class all the same.
            found.setdefault(unicodedata.normalize("NFC", folder.name), []).extend(paths)
    if not direct:
        raise UserError(
            f"{directory} has no class folders with pictures: "
            f"it needs one folder per class, with files that end in {_endings()}"
        )
    return found


def _endings() -> str:
    usual = sorted(ext for ext, name in Image.registered_extensions().items() if name in COMMON)
    return f"{' '.join(usual)}, or one of {len(EXTENSIONS) - len(usual)} rarer ones"


def _is_text(name: str) -> bool:
    """False where the file system gives bytes that are no UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True

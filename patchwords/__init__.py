"""The console command: ``patchwords vit predict ...`` runs ``vit.predict``.

Unlike ``python -m``, it does not look for modules in the working directory, where a file may have the name of one.
"""

import importlib
import os
import sys

COMMANDS = {
    "vit": {
        "train": "train a Vision Transformer on pictures",
        "predict": "classify pictures",
        "evaluate": "measure a classifier on pictures with known classes",
        "export": "write a classifier for ONNX Runtime or torch.export",
    },
    "seq2seq": {
        "train": "train a translator on sentence pairs",
        "translate": "translate lines of text",
        "evaluate": "measure a translator on sentence pairs",
        "export": "write a translator for CTranslate2 or ONNX Runtime",
        "shortlist": "learn a lexicon for faster translation (--shortlist)",
    },
}


def usage() -> str:
    """The text of ``patchwords --help``."""
    names = {f"{package} {name}": text for package, some in COMMANDS.items() for name, text in some.items()}
    lines = [f"  patchwords {name:<18}  {text}" for name, text in names.items()]
    return "\n".join(["usage: patchwords PACKAGE COMMAND [OPTIONS]", "", *lines, "", "Each command has its --help."])


def main() -> None:
    """Runs the command that the first two arguments name."""
    words = sys.argv[1:3]
    if len(words) == 2 and words[1] in COMMANDS.get(words[0], ()):
        sys.argv = [" ".join(["patchwords", *words]), *sys.argv[3:]]
        importlib.import_module(".".join(words)).main()
    elif {"-h", "--help"} & {*words}:
        try:
            print(usage(), flush=True)
        except BrokenPipeError:
            os._exit(141)  # 128 + SIGPIPE
    else:
        print(f"error: unknown command '{' '.join(words)}'; see patchwords --help", file=sys.stderr)
        sys.exit(2)

"""The arrows between the rooms, read from the imports."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STANDARD = sys.stdlib_module_names
OURS = {"common", "vit", "seq2seq", "tests", "benchmarks", "train_cifar", "patchwords"}

# Which core file may import which; what is not listed imports none of its neighbours but errors.
CORE = {
    "attention": {"masks", "kv_cache", "dropout", "linear", "kernels"},
    "consistency": {"loss", "kernels"},
    "dropout": {"kernels"},
    "feedforward": {"dropout", "linear"},
    "inference": {"linear", "kernels"},
    "kv_cache": {"kernels"},
    "layers": {"attention", "feedforward", "layernorm", "config", "kv_cache", "dropout"},
    "linear": {"kernels"},
    "loss": {"kernels"},
    "stacks": {"layers", "layernorm", "positional", "config", "kv_cache"},
    "config": {"attention", "feedforward"},
    "__init__": {
        "attention", "config", "runtime", "consistency", "dropout", "feedforward", "inference", "kv_cache", "layernorm",
        "layers", "loss", "masks", "positional", "stacks",
    },
}  # fmt: skip
TRAINING_LIBRARIES = {"torch", "timm", "numpy", "matplotlib", "rich", "safetensors", "tyro", "filelock"}


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, dotted name) of everything a file imports, inside functions too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            found += [(node.lineno, node.module or "")]
    return found


def files(folder: str) -> list[Path]:
    """The Python files of a folder, not of those below it."""
    return sorted((ROOT / folder).glob("*.py"))


def broken(paths: list[Path], allowed) -> list[str]:
    """ "file:line: name" of each import that is not allowed."""
    return [
        f"{path.relative_to(ROOT)}:{line}: imports {name}"
        for path in paths
        for line, name in imports(path)
        if name.split(".")[0] not in STANDARD and not allowed(path, name)
    ]


def test_the_core_imports_torch_and_its_own_files_only():
    def allowed(path: Path, name: str) -> bool:
        if name.split(".")[0] == "torch":
            return True
        if not name.startswith("common."):
            return False
        return name.split(".")[1] in CORE.get(path.stem, set()) | {"errors"}

    assert broken(files("common"), allowed) == []


@pytest.mark.parametrize("room", ["kernels", "runtime"])
def test_kernels_and_this_process_know_no_layer(room):
    def allowed(path: Path, name: str) -> bool:
        return name.split(".")[0] == "torch" or name.startswith((f"common.{room}", "common.errors"))

    assert files(f"common/{room}")
    assert broken(files(f"common/{room}"), allowed) == []


def test_the_training_loop_knows_no_model():
    def allowed(path: Path, name: str) -> bool:
        if name.split(".")[0] == "common":
            known = ("common.training", "common.errors", "common.config", "common.kernels", "common.runtime")
            return name.startswith(known)
        return name.split(".")[0] in TRAINING_LIBRARIES | {"tensorboard", "onnx", "onnxscript"}

    assert broken(files("common/training"), allowed) == []


@pytest.mark.parametrize(("room", "other"), [("vit", "seq2seq"), ("seq2seq", "vit")])
def test_a_modality_imports_the_core_and_itself_only(room, other):
    def allowed(path: Path, name: str) -> bool:
        return name.split(".")[0] not in OURS - {"common", room}

    assert files(room)
    assert broken(files(room), allowed) == []


def test_nobody_imports_scripts_tests_or_benchmarks():
    def allowed(path: Path, name: str) -> bool:
        return name.split(".")[0] not in {"tests", "benchmarks", "train_cifar", "patchwords"}

    assert broken(files("common") + files("common/training") + files("vit") + files("seq2seq"), allowed) == []


@pytest.mark.parametrize("path", files("vit") + files("seq2seq"), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_modality_has_no_attention_normalisation_or_feed_forward_of_its_own(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    forbidden = {
        "softmax", "Softmax", "scaled_dot_product_attention", "MultiheadAttention", "LayerNorm", "layer_norm",
        "relu", "gelu", "TransformerEncoderLayer", "TransformerDecoderLayer",
    }  # fmt: skip
    assert names & forbidden == set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            assert not any(word in node.name for word in ("Attention", "Norm", "FeedForward")) or node.name in ALLOWED


ALLOWED = {"AttentionMaps"}  # pictures of attention are no attention


def test_the_test_fails_with_file_and_line(tmp_path, monkeypatch):
    folder = tmp_path / "vit"
    folder.mkdir()
    (folder / "bad.py").write_text("import torch\n\nfrom seq2seq.model import Seq2Seq\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)

    def allowed(path: Path, name: str) -> bool:
        return name.split(".")[0] not in OURS - {"common", "vit"}

    assert broken([folder / "bad.py"], allowed) == ["vit/bad.py:3: imports seq2seq.model"]


def test_importing_the_packages_is_silent():
    command = [sys.executable, "-W", "error", "-c", "import common, vit, seq2seq"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_importing_a_model_does_not_pay_for_training():
    heavy = "{'timm', 'torchvision', 'sklearn', 'matplotlib', 'sacrebleu', 'rich'}"
    code = f"import sys, common, vit, seq2seq; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


HEAVY = {
    "timm", "torchvision", "sklearn", "scipy", "matplotlib", "sacrebleu", "sacremoses", "onnx", "onnxruntime",
    "ctranslate2", "transformers", "sympy", "rich", "torch._dynamo", "torch._inductor", "torch.distributed.tensor",
    "torch.distributed.fsdp",
}  # fmt: skip
STARTS = """
import contextlib, io, json, runpy, sys

begun, heavy = {}, set(json.loads(sys.argv[1]))
for module, *arguments in json.loads(sys.argv[2]):
    sys.argv = [module, *arguments]
    before = heavy & set(sys.modules)
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        runpy.run_module(module, run_name="__main__")
    assert len(said.getvalue()) > 10, module
    begun[" ".join([module, *arguments])] = sorted(heavy & set(sys.modules) - before)
print(json.dumps(begun))
"""


@pytest.mark.parametrize(
    ("commands", "foreign"),
    [
        ([["vit.predict", "--help"], ["vit.train", "--help"]], {"tokenizers"}),
        ([["seq2seq.translate", "--help"], ["seq2seq.translate", "de-en", "FILE"], ["seq2seq.train", "--help"]],
         {"PIL", "einops"}),
    ],
)  # fmt: skip
def test_a_command_starts_without_what_it_does_not_need(commands, foreign, tmp_path):
    file = tmp_path / "sentences"
    file.write_text("ein mann .\n")
    lines = [[str(file) if word == "FILE" else word for word in line] for line in commands]
    code = [sys.executable, "-c", STARTS, json.dumps([*HEAVY, *foreign]), json.dumps(lines)]
    done = subprocess.run(code, capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(done.stdout) == {" ".join(line): [] for line in lines}

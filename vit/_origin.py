"""Makes sure that ``import common`` finds the package next to this one, and not a file of the user's."""

import importlib.util
import sys
from pathlib import Path

_ours = Path(__file__).resolve().parent.parent / "common" / "__init__.py"
_spec = importlib.util.find_spec("common")
if _spec is not None and _spec.origin is not None and Path(_spec.origin).resolve() != _ours:
    _message = (
        f"{_spec.origin} hides {_ours}, which vit needs; rename it, start in another folder, or use the command "
        "'patchwords'"
    )
    if sys.argv[:1] == ["-m"] or sys.argv[0].startswith("patchwords "):  # a command: a line instead of a traceback
        print(f"error: {_message}", file=sys.stderr)
        sys.exit(2)
    raise ImportError(_message)

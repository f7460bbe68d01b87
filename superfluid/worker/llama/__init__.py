"""llama.cpp, wrapped: the only package that imports its bindings, for the worker and the daemon's vocabulary.

| module | what it wraps |
|---|---|
| ``library`` | the shared library: loaded once, silenced, its last complaints kept |
| ``model`` | a model file, loaded whole or vocabulary only; what is wrong with one, by name |
| ``vocab`` | tokenizer and metadata of a model file |
| ``context`` | one context: rows in, logits out, sequence operations, all typed |
| ``sampler`` | the next token of a logits row |
| ``models`` | where the model that the user named lies |

Importing it without the bindings raises ``EngineMissing``.
"""

from superfluid.core.errors import EngineMissing

try:
    import llama_cpp.llama_cpp as _bindings  # noqa: F401 - asked for here so that the failure has one place
except (ImportError, OSError, RuntimeError) as error:
    # OSError and RuntimeError: the bindings are there, their shared library is not, or does not load here.
    raise EngineMissing(
        "llama-cpp-python, which runs the models, is missing or does not load; "
        "install it (it needs a C++ compiler) with: pip install 'llama-cpp-python==0.3.36'"
    ) from error

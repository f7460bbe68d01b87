"""Writes tiny random models (about 430 KB) that the real llama.cpp loads in milliseconds.

Two layers with random weights and a byte-level vocabulary with ChatML markers. What such a model says is noise, but
noise that depends on every token before it: any wrong cell in its cache changes the next ids.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import gguf
import numpy as np

ARCHITECTURES: Final = ("llama", "gemma3", "mamba")
"""Plain attention, a sliding window of ``WINDOW`` positions, and recurrent layers, which hold one state and no
positions."""

WINDOW: Final = 32
CONTEXT: Final = 4096
END_OF_TEXT: Final = 257
IM_START: Final = 258
IM_END: Final = 259
N_VOCAB: Final = 260

CHATML: Final = (
    "{% for m in messages %}<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_LAYERS: Final = 2
_WIDTH: Final = 64
_INNER: Final = 128
_HEADS: Final = 4
_KV_HEADS: Final = 2
_HEAD: Final = _WIDTH // _HEADS
_SSM_INNER: Final = 2 * _WIDTH
_SSM_CONV: Final = 4
_SSM_STATE: Final = 16
_SSM_RANK: Final = 4


def write_tiny_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    seed: int = 0,
    chat_template: str | None = CHATML,
    endless: bool = False,
) -> Path:
    """Write a model to *path* and return it. The same arguments write the same bytes.

    Args:
        architecture: one of ``ARCHITECTURES``.
        seed: of the weights.
        chat_template: None leaves it out.
        endless: greedy never ends a generation, because the end tokens' logits are always 0.
    """
    writer = gguf.GGUFWriter(path, architecture)
    _write_shape(writer, architecture)
    _write_vocabulary(writer)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    _write_weights(writer, architecture, seed=seed, endless=endless)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_shape(writer: gguf.GGUFWriter, architecture: str) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    if architecture == "mamba":
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_ssm_conv_kernel(_SSM_CONV)
        writer.add_ssm_inner_size(_SSM_INNER)
        writer.add_ssm_state_size(_SSM_STATE)
        writer.add_ssm_time_step_rank(_SSM_RANK)
        return
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_rope_dimension_count(_HEAD)
    if architecture == "gemma3":
        writer.add_sliding_window(WINDOW)
        writer.add_key_length(_HEAD)
        writer.add_value_length(_HEAD)


def _write_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = [*_byte_tokens(), "th", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    ordinary, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([ordinary] * END_OF_TEXT + [control] * (N_VOCAB - END_OF_TEXT))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(END_OF_TEXT)
    writer.add_eos_token_id(IM_END)
    writer.add_add_bos_token(False)


def _write_weights(writer: gguf.GGUFWriter, architecture: str, *, seed: int, endless: bool) -> None:
    random = np.random.default_rng(seed)

    def noise(name: str, *shape: int) -> None:
        values = (random.standard_normal(shape) * 0.2).astype(np.float32)
        if endless and name == "output.weight":
            values[[END_OF_TEXT, IM_END]] = 0
        writer.add_tensor(name, values)

    def ones(name: str, size: int) -> None:
        writer.add_tensor(name, np.ones(size, np.float32))

    noise("token_embd.weight", N_VOCAB, _WIDTH)
    ones("output_norm.weight", _WIDTH)
    noise("output.weight", N_VOCAB, _WIDTH)
    for layer in range(_LAYERS):
        prefix = f"blk.{layer}."
        ones(f"{prefix}attn_norm.weight", _WIDTH)
        if architecture == "mamba":
            _write_recurrent_layer(writer, prefix, random)
            continue
        _write_layer(functools.partial(_prefixed, noise, prefix))
        ones(f"{prefix}ffn_norm.weight", _WIDTH)
        if architecture == "gemma3":
            for name in ("attn_q_norm", "attn_k_norm"):
                ones(f"{prefix}{name}.weight", _HEAD)
            for name in ("post_attention_norm", "post_ffw_norm"):
                ones(f"{prefix}{name}.weight", _WIDTH)


def _write_recurrent_layer(writer: gguf.GGUFWriter, prefix: str, random: np.random.Generator) -> None:
    def add(name: str, *shape: int, scale: float = 0.2) -> None:
        writer.add_tensor(prefix + name, (random.standard_normal(shape) * scale).astype(np.float32))

    add("ssm_in.weight", 2 * _SSM_INNER, _WIDTH)
    add("ssm_conv1d.weight", _SSM_INNER, _SSM_CONV)
    add("ssm_conv1d.bias", _SSM_INNER)
    add("ssm_x.weight", _SSM_RANK + 2 * _SSM_STATE, _SSM_INNER)
    add("ssm_dt.weight", _SSM_INNER, _SSM_RANK)
    add("ssm_dt.bias", _SSM_INNER)
    # Decay rates: negative, and slow enough that a token is felt hundreds of positions later.
    rates = -np.exp(random.standard_normal((_SSM_INNER, _SSM_STATE)) - 4)
    writer.add_tensor(prefix + "ssm_a", rates.astype(np.float32))
    add("ssm_d", _SSM_INNER, scale=1)
    add("ssm_out.weight", _WIDTH, _SSM_INNER)


def _write_layer(noise: Callable[..., None]) -> None:
    noise("attn_q", _HEADS * _HEAD, _WIDTH)
    noise("attn_k", _KV_HEADS * _HEAD, _WIDTH)
    noise("attn_v", _KV_HEADS * _HEAD, _WIDTH)
    noise("attn_output", _WIDTH, _HEADS * _HEAD)
    noise("ffn_gate", _INNER, _WIDTH)
    noise("ffn_up", _INNER, _WIDTH)
    noise("ffn_down", _WIDTH, _INNER)


def _prefixed(write: Callable[..., None], prefix: str, name: str, *shape: int) -> None:
    write(f"{prefix}{name}.weight", *shape)


def _byte_tokens() -> list[str]:
    """The 256 characters that stand for the bytes in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    table |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [table[byte] for byte in range(256)]

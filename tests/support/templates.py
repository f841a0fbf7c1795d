"""Chat templates of the ways in which models write chats, over the tokens of the tiny tokenizer."""

import json
from pathlib import Path

from support.tiny_tokenizer import BEGIN, END, train_tokenizer

# As Qwen 2.5 writes chats.
CHATML = (
    "{% if messages[0].role != 'system' %}<|begin|>system\nBe brief." + END + "\n{% endif %}"
    "{% for message in messages %}"
    + BEGIN
    + "{{ message.role }}\n{{ message.content | trim }}"
    + END
    + "\n{% endfor %}"
    "{% if add_generation_prompt %}" + BEGIN + "assistant\n{% if brief %}(brief) {% endif %}{% endif %}"
)
# As Llama 3.1 does: a BOS token of the template's own, and today's date where it is told.
DATED = (
    "{{ bos_token }}{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}26 Jul 2024{% endif %}"
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
# It says itself what the assistant has written.
MARKED = (
    "{% for message in messages %}[{{ message.role }}]{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ message.content }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
# As Qwen 3 does: what was thought is left out of all answers but the last.
FORGETFUL = (
    "{% for message in messages %}[{{ message.role }}]"
    "{% if message.role == 'assistant' and not loop.last %}{{ message.content.split('</think>')[-1] }}"
    "{% else %}{{ message.content }}{% endif %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def chat_tokenizer(folder: Path, template: str | None) -> Path:
    """A folder with a tokenizer and its template."""
    train_tokenizer(folder, ["[user][assistant][system]\n Be brief. 2 + 2 = 4", "<think></think>"], size=320)
    begin = {"__type": "AddedToken", "content": BEGIN}
    config = {"eos_token": END, "bos_token": begin, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder

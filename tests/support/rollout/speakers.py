"""Roles that need no engine."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from trimtab.fabric.wire.spans import model_span
from trimtab.rollout.engines.contract import EngineError, SamplingSettings
from trimtab.rollout.policy.sampler import Completion, Listener, PolicySampler
from trimtab.rollout.workflows.conversation import Sampler
from trimtab.rollout.workflows.forest import Row, forest_of
from trimtab.rollout.workflows.rehearsal import CHARACTERS
from trimtab.rollout.workflows.team import Assignment, Conversation, Role, ScoredConversation, Tokenizer

END_OF_TURN = "<|im_end|>"
TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.role == "assistant" and not loop.last -%}
{{ message.content.split("</think>")[-1] }}
{%- else -%}
{{ message.content }}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
"""Like those of reasoning models: thoughts of earlier turns are dropped."""


class EchoSampler(PolicySampler):
    """Says the last two tokens it heard, backwards; or raises what it is told to."""

    def __init__(self, *, fails: EngineError | None = None) -> None:
        self.version = 3
        self.asked: list[SamplingSettings] = []
        self._fails = fails

    async def complete(
        self,
        prompt: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        deadline_s: float,
        listener: Listener | None = None,
    ) -> Completion:
        if self._fails is not None:
            raise self._fails
        self.asked.append(settings)
        tokens = tuple(reversed(prompt[-2:]))
        spans = (model_span(len(tokens), version=self.version),)
        return Completion(token_ids=tokens, logprobs=(-0.5,) * len(tokens), spans=spans, finish="stop")


def chat_tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token per printable character, and the marks of a chat template."""
    letters = ["?", "\n", *(chr(code) for code in range(32, 127) if chr(code) != "?")]
    fast = FastTokenizer(models.WordLevel({letter: number for number, letter in enumerate(letters)}, "?"))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    fast.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, clean_up_tokenization_spaces=False)
    tokenizer.add_special_tokens({"eos_token": END_OF_TURN, "additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = template
    return tokenizer


def role(
    sampler: Sampler,
    name: str = "solver",
    *,
    policy: str = "solver",
    tokenizer: Tokenizer = CHARACTERS,
    max_new_tokens: int = 8,
) -> Role:
    return Role(
        name=name,
        policy=policy,
        tokenizer=tokenizer,
        sampler=sampler,
        sampling=SamplingSettings(max_new_tokens=max_new_tokens),
    )


def assignment(**prompt: object) -> Assignment:
    return Assignment(prompt=prompt, seed=1, request_id="t.0", deadline_s=60.0)


def alone(conversation: Conversation) -> Row:
    """What its policy would learn from it if no other conversation of the role were scored."""
    return forest_of(conversation.role.name, [ScoredConversation(conversation, 0.0)]).rows[0]

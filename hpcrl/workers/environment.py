"""The environment as a role: it answers each turn of the model's, by a function of the user's, until a chat is over.

It has no model; any host holds it, without torch. The model's tokens stay as they were sampled.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.config.data import tokenizer_of
from hpcrl.config.environment import EnvironmentConfig
from hpcrl.data.chat import ChatTemplate, find_template
from hpcrl.data.datasets import Texts
from hpcrl.data.rows.lines import ASSISTANT
from hpcrl.data.samples import SequenceSample
from hpcrl.data.tokens import before_stop
from hpcrl.dataflow.graph import MFC
from hpcrl.rewards.response import Response, Result, prompt_messages
from hpcrl.rewards.user_function import UserFunction, answering
from hpcrl.workers.host import Outcome, Work
from hpcrl.workers.role import RoleContext

Message = Mapping[str, Any]


@dataclass
class Talk:
    """One response so far, token by token, and as messages. `score` is what the environment has given."""

    tokens: np.ndarray
    logprobs: np.ndarray
    mask: np.ndarray
    finished: bool
    messages: list[Message] = field(default_factory=list)
    score: float = 0.0
    is_open: bool = True

    def says(self, tokens: np.ndarray, logprobs: np.ndarray, own: bool) -> None:
        """More tokens: the model's `own`, or those of an answer."""
        self.tokens = np.concatenate([self.tokens, tokens])
        self.logprobs = np.concatenate([self.logprobs, logprobs.astype(self.logprobs.dtype)])
        self.mask = np.concatenate([self.mask, np.full(len(tokens), own)])


class Environment:
    """Answers. A function that fails ends the run with an error that names it."""

    def __init__(self, role: str, experiment: Any, texts: Texts, template: ChatTemplate | None) -> None:
        self.experiment = experiment
        self._role = role
        self._texts = texts
        self._template = template
        self._functions = [(self._settings, answering(role, self._settings))]

    def step(self, work: Work, call: MFC) -> Outcome:
        """prompts, what the model has said (new_responses, new_logprobs, new_finished), and what there was before it →
        the same after the answer: responses, logprobs, finished, response_mask, environment_scores [1], turns [bytes],
        and open [1] where a further turn may follow."""
        talks = self._talks(work.batch)
        chats = [self._chat(work.batch, call, i, talk) for i, talk in enumerate(talks)]
        asked = [i for i, talk in enumerate(talks) if talk.is_open]
        results = self._function().score([chats[i] for i in asked])
        is_last = "open" not in call.output_remap
        for i, result in zip(asked, results, strict=True):
            self._take(talks[i], result, is_last)
        stats = {
            "environment_score": (float(sum(talks[i].score for i in asked)), float(len(asked))),
            "done": (float(sum(result.done for result in results)), float(len(asked))),
        }
        rows: dict[str, list[np.ndarray]] = {
            "responses": [talk.tokens for talk in talks],
            "logprobs": [talk.logprobs for talk in talks],
            "finished": [np.array([talk.finished]) for talk in talks],
            "response_mask": [talk.mask for talk in talks],
            "environment_scores": [np.array([talk.score], np.float32) for talk in talks],
            "turns": [np.frombuffer(json.dumps(talk.messages).encode(), np.uint8) for talk in talks],
            "open": [np.array([talk.is_open]) for talk in talks],
        }
        wanted = {key: made for key, made in rows.items() if call.output_remap.get(key, key) in call.outputs}
        return Outcome(SequenceSample.from_rows(work.batch.ids, wanted), stats)

    def _talks(self, batch: SequenceSample) -> list[Talk]:
        """Each with what the model has said last, where it is open."""
        new = [batch.rows(f"new_{key}") for key in ("responses", "logprobs", "finished")]
        talks = self._begun(batch)
        for talk, tokens, logprobs, finished in zip(talks, *new, strict=True):
            if talk.is_open:
                talk.says(tokens, logprobs, own=True)
                talk.finished = bool(finished[0])
                said = before_stop(self._texts.decode(tokens), self.experiment.generation.stop)
                talk.messages.append({"role": ASSISTANT, "content": said})
        return talks

    def _begun(self, batch: SequenceSample) -> list[Talk]:
        if "open" not in batch.keys:
            kinds = [row.dtype for row in batch.rows("new_logprobs")]
            return [Talk(np.zeros(0, np.int32), np.zeros(0, kind), np.zeros(0, np.bool_), False) for kind in kinds]
        keys = ("responses", "logprobs", "response_mask", "finished", "turns", "environment_scores", "open")
        return [
            Talk(tokens, logprobs, mask, bool(ended[0]), json.loads(turns.tobytes()), float(score[0]), bool(more[0]))
            for tokens, logprobs, mask, ended, turns, score, more in zip(*map(batch.rows, keys), strict=True)
        ]

    def _chat(self, batch: SequenceSample, call: MFC, i: int, talk: Talk) -> Response:
        """What the function is given."""
        row = self._texts.record(call.dataset, batch.ids[i])
        return Response(
            prompt=self._texts.decode(batch.rows("prompts")[i]),
            response=str(talk.messages[-1]["content"]) if talk.messages else "",
            row=row,
            finished=talk.finished,
            messages=(*prompt_messages(row), *talk.messages),
        )

    def _take(self, talk: Talk, result: Result, is_last: bool) -> None:
        """An answer: the model has a further turn if one is left, and room for it."""
        talk.score += 0.0 if result.score is None else result.score
        talk.is_open = not (result.done or is_last) and talk.finished
        if not talk.is_open:
            return
        message = {"role": self._settings.speaks_as, "content": result.message}
        tokens = self._tokens(message, talk)
        if len(talk.tokens) + len(tokens) < self.experiment.generation.max_new_tokens:
            talk.says(tokens, np.zeros(len(tokens)), own=False)
            talk.messages.append(message)
        else:
            talk.is_open = talk.finished = False

    def _tokens(self, message: Message, talk: Talk) -> np.ndarray:
        """Those of an answer, with what stands around it in a chat; what ends the model's turn, unless it did so."""
        text = f"\n{message['content']}\n" if self._template is None else self._template.between(message)
        ((tokens, _),) = self._texts.tokens.encode_on([text])
        ends = self._texts.eos_token_ids
        return tokens[1:] if len(tokens) and tokens[0] in ends and talk.tokens[-1] in ends else tokens

    def close(self) -> None:
        for _, function in self._functions:
            function.close()

    @property
    def _settings(self) -> EnvironmentConfig:
        return getattr(self.experiment, self._role)

    def _function(self) -> UserFunction:
        """That of these settings: what is answered again is answered as it was the first time."""
        for settings, function in self._functions:
            if settings == self._settings:
                return function
        self._functions.append((self._settings, answering(self._role, self._settings)))
        return self._functions[-1][1]


def environment(at: RoleContext[Any]) -> Environment:
    data, named = at.experiment.data, tokenizer_of(at.experiment)
    assert named is not None, "the checks of a configuration refuse texts without a tokenizer"
    file = None if data.chat_template is None else Path(data.chat_template)
    return Environment(at.role, at.experiment, at.texts, find_template(named[1], file, data.template_args))

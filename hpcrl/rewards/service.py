"""Scores responses by a service over HTTP: JSON batches in, scores out (docs/rewards.md has the protocol).

What a network does, a request survives: it is sent again after a while where nobody answers, or the service says that
it cannot answer now. The token is in an environment variable, and in no message.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hpcrl.config.reward import Component, RewardConfig
from hpcrl.errors import ConfigurationError, MissingExtraError, UserCodeError
from hpcrl.foreign import plain
from hpcrl.rewards.outcome import ErrorRule
from hpcrl.rewards.response import Response, Result, dropped, named_together
from hpcrl.rewards.results import as_results

if TYPE_CHECKING:
    import httpx

WAITS_S = (1.0, 2.0, 4.0, 8.0)
"""How long a request waits before it is sent again."""
LONGEST_WAIT_S = 60.0
"""What a service may ask for in `Retry-After`."""
LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
"""The statuses with which a service says that it may be able to answer later."""
SHOWN_OF_A_BODY = 1000


class Sent(msgspec.Struct, frozen=True):
    """worker → service: a response, as a batch has it."""

    prompt: str
    response: str
    row: dict[str, Any]
    finished: bool


class _Again(Exception):
    """Nobody has answered, or not yet; `after_s` is what the service asks for."""

    def __init__(self, what: str, after_s: float = 0.0) -> None:
        self.after_s = after_s
        super().__init__(what)


class Service:
    """One service. Called from one thread, which has no event loop of its own."""

    def __init__(
        self, key: str, component: Component, reward: RewardConfig, waits_s: Sequence[float] = WAITS_S
    ) -> None:
        self._named = f"{key} {component.service}"
        self._url = component.service
        self._timeout_s = reward.timeout_s
        self._batch_size = reward.batch_size
        self._concurrency = reward.concurrency
        self._rule = ErrorRule(reward.on_error)
        self._waits_s = tuple(waits_s)
        self._token = _token(key.rpartition(".")[0], component.token_variable)
        import_httpx()

    def score(self, responses: Sequence[Response]) -> list[Result]:
        """A result for each, of requests of `reward.batch_size` responses, `reward.concurrency` of them at a time.

        Raises:
            UserCodeError: the service does not answer, or not with scores, and `on_error` does not say that such
                responses are dropped.
        """
        batches = [responses[i : i + self._batch_size] for i in range(0, len(responses), self._batch_size)]
        return [result for results in asyncio.run(self._score(batches)) for result in results]

    def close(self) -> None:
        """There is nothing to end."""

    async def _score(self, batches: Sequence[Sequence[Response]]) -> list[list[Result]]:
        httpx = import_httpx()
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        free = asyncio.Semaphore(self._concurrency)
        limits = httpx.Limits(max_connections=self._concurrency)
        async with httpx.AsyncClient(headers=headers, timeout=None, limits=limits) as client:
            tasks = [asyncio.create_task(self._score_batch(client, free, batch)) for batch in batches]
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                for task in tasks:
                    task.cancel()

    async def _score_batch(
        self, client: "httpx.AsyncClient", free: asyncio.Semaphore, batch: Sequence[Response]
    ) -> list[Result]:
        """As often as `on_error` says."""
        async with free:
            attempts = 0
            while True:
                try:
                    return await self._ask(client, batch)
                except UserCodeError as error:
                    attempts += 1
                    if not self._rule.again(error, attempts):
                        return [dropped(error)] * len(batch)

    async def _ask(self, client: "httpx.AsyncClient", batch: Sequence[Response]) -> list[Result]:
        """As often as a network and a busy service need it."""
        sent = [Sent(it.prompt, it.response, dict(it.row), it.finished) for it in batch]
        body = msgspec.json.encode({"responses": sent})
        for wait_s in (*self._waits_s, None):
            try:
                content = await self._request(client, body)
                return as_results(msgspec.json.decode(content)["scores"], len(batch), several=True)
            except _Again as error:
                if wait_s is None:
                    tries = len(self._waits_s) + 1
                    raise self._failure(batch, f"{error}, the last of {tries} times. Is it running?") from None
                await asyncio.sleep(max(wait_s, error.after_s))
            except (msgspec.DecodeError, TypeError, ValueError, KeyError) as error:
                expected = 'expected {"scores": [one for each response]}'
                raise self._failure(batch, f"{type(error).__name__}: {error}; {expected}") from None
        raise AssertionError("the last time returns or raises")

    async def _request(self, client: "httpx.AsyncClient", body: bytes) -> bytes:
        """What the service answers, within the time limit of a batch. Raises UserCodeError where it refuses."""
        httpx = import_httpx()
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await client.post(self._url, content=body, headers={"Content-Type": "application/json"})
        except TimeoutError:
            raise _Again(f"it took longer than reward.timeout_s = {self._timeout_s:g}") from None
        except httpx.TransportError as error:
            raise _Again(f"{type(error).__name__}: {error}") from None
        if answer.status_code == httpx.codes.OK:
            return answer.content
        told = f"it answered {answer.status_code}: {plain(answer.text, SHOWN_OF_A_BODY)}"
        if answer.status_code in LATER:
            raise _Again(told, _seconds(answer.headers.get("Retry-After", "")))
        raise ValueError(told)

    def _failure(self, batch: Sequence[Response], what: str) -> UserCodeError:
        text = f"{self._named} failed {named_together(batch)}\n{what}"
        return UserCodeError(text.replace(self._token, "…") if self._token else text)


def _token(key: str, variable: str) -> str:
    token = os.environ.get(variable, "") if variable else ""
    if variable and not token:
        raise ConfigurationError(
            [f"{key}.token_variable = {variable}, but this process has no such environment variable."],
            f"Export {variable} where you submit and resume; on Slurm, cluster.slurm.export must have it if it is set.",
        )
    return token


def _seconds(text: str) -> float:
    """What `Retry-After` asks for, where it is a number."""
    return min(float(text), LONGEST_WAIT_S) if text.strip().isdecimal() else 0.0


def import_httpx() -> Any:
    """Only where there is a service. Raises MissingExtraError."""
    try:
        import httpx
    except ImportError:
        raise MissingExtraError("httpx", "http") from None
    return httpx

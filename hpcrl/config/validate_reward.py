"""What is wrong with the settings of a reward, whatever the rows and the functions."""

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from hpcrl.config.built_in_rewards import BUILT_IN, option_problems
from hpcrl.config.python_names import PythonNames, names_in
from hpcrl.config.reward import REPORTED, Component, RewardConfig, component_of
from hpcrl.errors import Problem

_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)


def reward_problems(role: str, reward: RewardConfig, export: Sequence[str] = ()) -> Iterator[Problem]:
    """Of a section of this name. `export` are the variables that a job on Slurm gets; all where there is none."""
    short, several = f"{role}.function", f"{role}.components"
    if (reward.function is None) == (not reward.components):
        found = f"both are: {short} = {reward.function}" if reward.components else "neither is"
        yield Problem(
            (short, several),
            f"Exactly one of {short} and {several} must be set, but {found}.",
            f"Set one and leave the other out{', as null' * bool(reward.components)}.",
        )
        return
    if reward.function is not None:
        component = Component(function=reward.function, kwargs=dict(reward.kwargs))
        yield from _function_problems(short, f"{role}.kwargs", component)
    elif reward.kwargs:
        yield Problem(
            (f"{role}.kwargs",),
            f"{role}.kwargs belongs to {short}, which is not set.",
            f"Write it into {several}.NAME.",
        )
    for name, value in reward.components.items():
        yield from _component_problems(several, name, value, export)
    yield from _accuracy_problems(role, reward)


def _component_problems(key: str, name: str, value: Any, export: Sequence[str]) -> Iterator[Problem]:
    place = f"{key}.{name}"
    if not _NAME.fullmatch(name) or name in REPORTED:
        yield Problem(
            (key,),
            f"{place}: the name of a component must be letters, digits and _ after a first letter, and none of "
            f"{', '.join(REPORTED)}, which every reward reports.",
            f"Rename it in {key}.",
        )
    try:
        component = component_of(value)
    except msgspec.ValidationError as error:
        known = ", ".join(Component.__struct_fields__)
        yield Problem((key,), f"{place} = {value} must be a mapping of {known}: {error}.", f"Set {place}.")
        return
    if len(component.kinds) != 1:
        has = " and ".join(component.kinds) or "none"
        yield Problem(
            (key,), f"{place} must have one of function, service and role, but it has {has}.", f"Set {place}."
        )
    elif component.function:
        for problem in _function_problems(f"{place}.function", f"{place}.kwargs", component):
            yield Problem((key,), problem.text, problem.advice)
    elif component.service:
        yield from (Problem((key,), text, f"Set {place}.") for text in _service_problems(place, component))
    yield from (Problem((key,), text) for text in _token_problems(place, component, export))


def _service_problems(place: str, component: Component) -> Iterator[str]:
    named = f"{place}.service = {component.service}"
    try:
        url = urlsplit(component.service)
        is_address = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        yield f"{named} must be an address like http://host:8000/score."
    elif url.username is not None or url.password is not None:
        yield f"{place}.service must have no user and no password in it: they would be in the files of the run."
    if component.kwargs:
        yield f"{place}.kwargs belongs to a function; a service gets the responses alone."
    if importlib.util.find_spec("httpx") is None:
        yield f"{named} needs httpx, which is not installed: pip install 'hpcrl[http]'."


def _token_problems(place: str, component: Component, export: Sequence[str]) -> Iterator[str]:
    variable = component.token_variable
    named = f"{place}.token_variable = {variable}"
    if not variable:
        return
    if not component.service:
        yield f"{named} belongs to a service, and {place} has none. Leave it out."
    elif not os.environ.get(variable):
        yield f"{named} must be an environment variable that is set here. Set {variable}, and where you resume too."
    elif export and variable not in export:
        yield (
            f"{named} must be one of cluster.slurm.export = {', '.join(export)}, or jobs do not get it. Add it to "
            "cluster.slurm.export."
        )


def _function_problems(key: str, kwargs: str, component: Component) -> Iterator[Problem]:
    function = component.function
    if function in BUILT_IN:
        for text in option_problems(kwargs, function, component.kwargs):
            yield Problem((kwargs,), f"{text}.", f"Set {kwargs}.")
        return
    place, _, name = function.rpartition(":")
    if not place or not name.isidentifier():
        yield Problem(
            (key,),
            f'{key} = {function} must be one of {", ".join(BUILT_IN)}, or "module:function", or '
            '"/path/file.py:function".',
            f"Set {key}.",
        )
    elif place.endswith(".py") and not Path(place).is_file():
        yield Problem((key,), f"{key} = {function} names a file that is not there.", f"Set {key}.")
    elif (names := _without(function)) is not None and not names.may_have_others:
        there = f"it has {', '.join(names.functions)}" if names.functions else "it has none"
        yield Problem((key,), f"{key} = {function}: there is no function {name} in that file; {there}.", f"Set {key}.")


def function_notices(role: str, reward: RewardConfig) -> Iterator[str]:
    """What only the call of a function can show."""
    for key, function in reward.functions(role):
        if (names := _without(function)) is not None and names.may_have_others:
            name = function.rpartition(":")[2]
            yield f"{key} = {function}: no {name} is to be seen in that file; it may be made when the file is loaded."


def _without(function: str) -> PythonNames | None:
    """The names in the file that a function is said to be in, where they lack it."""
    place, _, name = function.rpartition(":")
    names = names_in(Path(place)) if place.endswith(".py") else None
    return None if names is None or name in names.bound else names


def _accuracy_problems(role: str, reward: RewardConfig) -> Iterator[Problem]:
    by = reward.right_component
    if by is not None and by not in reward.components:
        known: Mapping[str, Any] = reward.components
        yield Problem(
            (f"{role}.right_component",),
            f"{role}.right_component = {by} must be one of {role}.components: {', '.join(known) or 'there are none'}.",
            f"Set {role}.right_component, or leave it out: accuracy then goes by the reward.",
        )

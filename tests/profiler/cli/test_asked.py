"""Options by name and type: each is one that a command has, and what the user gave is known from what is usual."""

from __future__ import annotations

import click
import pytest

from profiler.cli import advise, predict, run
from profiler.cli.asked import AskedOptions


def asked(command: click.Command, *words: str) -> AskedOptions:
    return AskedOptions.of(command.make_context("hprof", list(words)))


def test_every_name_is_an_options() -> None:
    known = {parameter.name for command in (run, predict, advise) for parameter in command.command.params}
    named = {name for name, value in vars(AskedOptions).items() if type(value).__name__ == "_Option"}
    assert len(named) > 50
    assert named - known == {"keeps_rows"}


def test_what_the_user_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(predict.command, "-ub", "64", "--gpu", "rtx4090")
    assert (found.n_ubatch, found.gpu, found.n_prompt) == (("64",), "rtx4090", ("512",))
    assert found.typed == {"n_ubatch", "gpu"}
    assert (found.names_gpu, found.names_link, found.names_arms) == (True, False, False)
    monkeypatch.setenv("HPROF_RUN_LINK", "gen4x16")
    context = run.command.make_context("run", ["-pw", "1"], auto_envvar_prefix="HPROF_RUN")
    assert (AskedOptions.of(context).names_link, AskedOptions.of(context).names_arms) == (True, True)


def test_an_option_that_a_command_lacks() -> None:
    found = asked(predict.command)
    assert (found.repetitions, found.recorder, found.inject, found.verify) == (1, "native", None, 0)
    with pytest.raises(KeyError):
        _ = found.objective


def test_other_values_are_not_what_the_user_gave() -> None:
    found = asked(advise.command, "--slots", "3").but(slots=4, arms="off")
    assert (found.slots, found.arms, found.typed) == (4, "off", frozenset({"slots"}))

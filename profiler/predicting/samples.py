"""What a capture shows of steps and copies: the measured times that costs are fitted to, as tables.

A step's time begins where the step before it on its device ended, or where the copy that it waits for did: what
passes between two steps belongs to the later one. What the last layer computes for a prompt's last row alone counts as
decode, whose steps take one row. Where CPU and device shared a layer's experts, each has its part of them, and of a
larger ubatch's rows what is expected of so many of the least popular experts, which are the CPU's: no event says how
many rows it had. Warm-ups are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from executor.arrays import Floats
from executor.passes import unpack_flags
from profiler.capture import Capture
from profiler.predicting.expert_use import ExpectedUse, runs_of_part
from profiler.predicting.layout import Layout, Step
from profiler.schema import KERNEL

StepKey = tuple[str, str, str]
"""A step's name, where, and signature."""
_EVENTS = [
    *("pass_id", "phase", "ubatch", "layer", "device", "stream", "kind", "name", "tensor", "t_start", "t_end"),
    *("n_tokens", "n_experts", "bytes", "correlation_id", "waits_for", "detail"),
]

_LAYER: Final = ["pass_id", "ubatch", "layer"]
_POINT: Final = ["step", "phase", "setting", "n_tokens", "n_past"]


@dataclass(frozen=True, slots=True)
class Samples:
    """`steps`: step, phase, setting, n_tokens, n_past, distinct, share (of the ubatch's choices), ns, count (means over
    equal points).

    `copies`: way, bytes, n_copies (nan where it is not known), ns. `gaps`: single delays in ns by name, nan where
    none was seen: before a pass begins, after a token, and before copies that the router decides, alone and `divided`
    with the CPU.
    """

    steps: pd.DataFrame
    copies: pd.DataFrame
    gaps: dict[str, float]


def key_of(step: Step) -> StepKey:
    """What tells steps of different cost apart."""
    return step.name, step.where, step.signature


def take_samples(
    capture: Capture, layout: Layout, pass_ids: Collection[int], use: ExpectedUse | None = None
) -> Samples:
    """The times of the given passes, which ran the layout's model, and whose ubatches use experts as `use` says."""
    events = _events(capture, pass_ids)
    passes = capture.passes.set_index("pass_id").loc[list(pass_ids)]
    experts = _experts(capture, pass_ids)
    setting = _settings(events)
    events = events.merge(setting, on=["pass_id", "phase"], how="left")
    in_order = _with_gaps(events, passes)
    weights, shared = _are_weights(in_order), in_order["n_on_host"].notna()
    token_ns = _token_ns(in_order, passes)
    steps = _steps(in_order[~weights], layout, experts, token_ns, use)
    copies = _copies(events, in_order[weights], experts)
    gaps = {
        "begin": _mean(in_order.loc[in_order["first"], "gap"]),
        "token": token_ns,
        "routed": _routed_delay(in_order[weights & ~shared]),
        "divided": _routed_delay(in_order[weights & shared]),
    }
    return Samples(steps, copies, gaps)


def distinct_seen(capture: Capture, pass_ids: Collection[int]) -> pd.DataFrame:
    """n_tokens, distinct: mean experts in use of a layer, over the ubatches of the given passes."""
    return _experts(capture, pass_ids).groupby("n_tokens")["distinct"].mean().reset_index()


def times_of_steps(capture: Capture, pass_ids: Collection[int]) -> pd.DataFrame:
    """Each step and each copy of weights of the given passes: pass_id, phase, kind, name, tensor, and ns, as `Samples`
    count them: with what passes before a step on its stream."""
    events = _events(capture, pass_ids)
    passes = capture.passes.set_index("pass_id").loc[list(pass_ids)]
    in_order = _with_gaps(events, passes)
    ahead = events[events["stream"] == "copy"]
    gap = _step_gaps(in_order, _token_ns(in_order, passes)).where(~_are_weights(in_order), 0.0)
    columns = ["pass_id", "phase", "kind", "name", "tensor", "ns"]
    found = [in_order.assign(ns=in_order["ns"] + gap), ahead.assign(ns=ahead["t_end"] - ahead["t_start"])]
    return pd.concat([one[columns] for one in found], ignore_index=True)


def _events(capture: Capture, pass_ids: Collection[int]) -> pd.DataFrame:
    events = capture.frame("events", _EVENTS, pass_ids=pass_ids)
    ubatches = capture.frame("ubatches", ["pass_id", "ubatch", "n_tokens", "n_past"], pass_ids=pass_ids)
    ubatches = ubatches.dropna(subset=["pass_id", "ubatch"]).drop_duplicates(["pass_id", "ubatch"])
    events = events[(events["detail"] != KERNEL) & ~events["kind"].isin(["wait", "sync", "api"])]
    events = events[events["t_start"].notna() & events["t_end"].notna()]  # of another time's captures a column may lack
    for column in ("phase", "stream", "kind", "name", "tensor"):
        events[column] = events[column].astype(object)
    events = events.merge(ubatches, on=["pass_id", "ubatch"], suffixes=("", "_of_ubatch"))
    events["n_tokens"] = events["n_tokens"].fillna(events["n_tokens_of_ubatch"])
    if events["n_experts"].isna().all():
        events["n_experts"] = np.nan
    events = events.assign(is_left=events["n_tokens"] < events.pop("n_tokens_of_ubatch"))
    return events.merge(_divided(events), on=_LAYER, how="left")


def _experts(capture: Capture, pass_ids: Collection[int]) -> pd.DataFrame:
    """A row for each MoE layer of a ubatch; what says no such place, or one again, is left out."""
    experts = capture.frame("experts", [*_LAYER, "phase", "n_tokens", "distinct", "used"], pass_ids=pass_ids)
    return experts.dropna(subset=_LAYER).drop_duplicates(_LAYER)


def _settings(events: pd.DataFrame) -> pd.DataFrame:
    """pass_id, phase, setting: what went on beside the steps."""
    used_host = events["kind"].eq("cpu_compute") & ~events["is_left"]
    on_host = used_host.groupby([events["pass_id"], events["phase"]]).any()
    copied = events["stream"].eq("copy").groupby([events["pass_id"], events["phase"]]).any()
    shared = (used_host & events["n_experts"].notna()).groupby([events["pass_id"], events["phase"]]).any()
    in_line = events["tensor"].notna() & (events["kind"] == "h2d") & (events["phase"] == "decode")
    between = in_line.groupby([events["pass_id"], events["phase"]]).any()
    names = np.select([shared, on_host, copied, between], ["divided", "host", "copies", "inline"], "alone")
    return pd.Series(names, on_host.index, name="setting").reset_index()


def _divided(events: pd.DataFrame) -> pd.DataFrame:
    """pass_id, ubatch, layer, n_on_host: the layers whose experts were shared, and how many the CPU had."""
    shared = events[(events["kind"] == "cpu_compute") & events["n_experts"].notna() & events["layer"].notna()]
    return shared[[*_LAYER, "n_experts"]].rename(columns={"n_experts": "n_on_host"}).drop_duplicates(_LAYER)


def _with_gaps(events: pd.DataFrame, passes: pd.DataFrame) -> pd.DataFrame:
    """What passed on the compute streams and the host, in order, with the `gap` before each, in ns."""
    ends = events[events["correlation_id"].notna() & (events["kind"] == "h2d")]
    ready = ends.groupby(["pass_id", "correlation_id"])["t_end"].max()
    rows = events[events["stream"] != "copy"].sort_values(["pass_id", "device", "t_start", "t_end"], kind="stable")
    place = [rows["pass_id"], rows["device"]]
    before = rows["t_end"].groupby(place, sort=False).cummax().groupby(place, sort=False).shift()
    first = before.isna()
    before = before.mask(_is_beside_host(rows), _without_host(rows, place))
    before = before.fillna(rows["pass_id"].map(passes["t_start"]))
    waited = ready.reindex(pd.MultiIndex.from_arrays([rows["pass_id"], rows["waits_for"]])).to_numpy()
    begins = np.fmax(before.to_numpy(np.float64), waited.astype(np.float64))
    begins = np.fmax(begins, _from_other_devices(rows))
    gap = np.maximum(rows["t_start"].to_numpy(np.float64) - begins, 0.0)
    return rows.assign(gap=gap, first=first.to_numpy(), ns=rows["t_end"] - rows["t_start"])


def _is_beside_host(rows: pd.DataFrame) -> pd.Series:
    """Which rows are the device's part of a layer whose experts the CPU shares: they wait for no part of the CPU's."""
    return rows["n_on_host"].notna() & (
        _are_weights(rows) | ((rows["kind"] == "compute") & (rows["name"] == "experts"))
    )


def _without_host(rows: pd.DataFrame, place: list[pd.Series]) -> pd.Series:
    """When all that began before each row on its device had ended, but for what the CPU computed."""
    ends = rows["t_end"].where(rows["kind"] != "cpu_compute")
    latest = ends.groupby(place, sort=False).cummax().groupby(place, sort=False).ffill()
    return latest.groupby(place, sort=False).shift()


def _from_other_devices(rows: pd.DataFrame) -> Floats:
    """When what a row takes over from another device was ready: a ubatch's rows there, or the token; else nan.

    It is the end of whatever began before on any device.
    """
    takes_over = (rows["kind"] == "h2d") & rows["layer"].isna()
    takes_over |= (rows["name"] == "embed") & (rows["phase"] == "decode")
    if rows["device"].nunique() < 2 or not takes_over.any():
        return np.full(len(rows), np.nan)
    in_time = rows.sort_values(["pass_id", "t_start", "t_end"], kind="stable")
    ended = in_time.groupby("pass_id")["t_end"].cummax().groupby(in_time["pass_id"]).shift()
    return np.where(takes_over, ended.reindex(rows.index).to_numpy(np.float64), np.nan)


def _token_ns(rows: pd.DataFrame, passes: pd.DataFrame) -> float:
    """From the end of the prompt's sampling to the first token being known."""
    sampled = rows[(rows["name"] == "sample") & (rows["phase"] == "prefill")].groupby("pass_id")["t_end"].max()
    known = (passes["t_start"] + passes["ttft_ns"]).reindex(sampled.index)
    return _mean(known - sampled)


def _steps(
    rows: pd.DataFrame, layout: Layout, experts: pd.DataFrame, token_ns: float, use: ExpectedUse | None
) -> pd.DataFrame:
    keys = _step_keys(layout)
    kind_of = dict(enumerate(layout.kind_of))
    place = rows["layer"].map(kind_of).fillna(-1).astype(int)
    where = rows["kind"].map({"compute": "device", "cpu_compute": "host", "d2h": "out", "h2d": "in"})
    told = zip(place.tolist(), where.tolist(), rows["name"].tolist(), strict=True)  # lists: Arrow iterates slowly
    step = pd.Series([keys.get(one) for one in told], rows.index, dtype=object)
    used = rows.merge(experts[[*_LAYER, "distinct"]], on=_LAYER, how="left")
    is_one_row = rows["is_left"] & ~rows["name"].isin(["logits", "sample"])
    in_use = used["distinct"].fillna(0).to_numpy(np.float64)
    is_shared = rows["n_on_host"].notna() & (rows["name"] == "experts")
    n_here = np.where(rows["kind"] == "cpu_compute", rows["n_on_host"], in_use - rows["n_on_host"])
    distinct = np.maximum(np.where(is_shared, n_here, in_use), 0.0)
    found = rows[["setting", "n_tokens", "n_past"]].assign(
        phase=rows["phase"].mask(is_one_row, "decode"),
        step=step,
        ns=rows["ns"] + _step_gaps(rows, token_ns),
        distinct=distinct,
        share=_shares(rows, is_shared, in_use, use),
    )
    found = found[found["step"].notna() & found["share"].notna()]
    found = found[(found["ns"] >= 0) & (found["n_tokens"] > 0) & (found["n_past"] >= 0)]
    grouped = found.groupby([*_POINT, "distinct", "share"], observed=True)["ns"]
    return grouped.agg(ns="mean", count="size").reset_index()


def _shares(rows: pd.DataFrame, is_shared: pd.Series, in_use: Floats, use: ExpectedUse | None) -> Floats:
    """(rows,): the share of its ubatch's choices that each step has; nan where nothing says it."""
    found = np.ones(len(rows))
    of_host = np.minimum(rows["n_on_host"].to_numpy(np.float64) / np.maximum(in_use, 1.0), 1.0)
    n_tokens, shared = rows["n_tokens"].to_numpy(np.float64), is_shared.to_numpy()
    for n in np.unique(n_tokens[shared & (n_tokens > 0)]):
        at = shared & (n_tokens == n)
        of_choices = of_host if n == 1 else np.nan if use is None else use.share_of_least(int(n), of_host)
        found[at] = np.broadcast_to(of_choices, len(rows))[at]
    return np.where(shared & (rows["kind"] != "cpu_compute").to_numpy(), 1 - found, found)


def mean_gaps(samples: Sequence[Samples]) -> dict[str, float]:
    """Each delay's mean over those who saw it, in ns; of what nobody saw 0, and of divided copies what others take."""
    seen = {name: [one.gaps[name] for one in samples if np.isfinite(one.gaps[name])] for name in samples[0].gaps}
    found = {name: float(np.mean(of_name)) if of_name else 0.0 for name, of_name in seen.items()}
    return found if seen["divided"] else found | {"divided": found["routed"]}


def _step_gaps(rows: pd.DataFrame, token_ns: float) -> pd.Series:
    """What passes before each step that is its own: neither a pass's beginning nor the wait for a sampled token."""
    waits_for_token = (rows["name"] == "embed") & (rows["phase"] == "decode")
    token_ns = token_ns if np.isfinite(token_ns) else 0.0
    return (rows["gap"].where(~rows["first"], 0.0) - token_ns * waits_for_token).clip(lower=0.0)


def _are_weights(rows: pd.DataFrame) -> pd.Series:
    return rows["tensor"].notna() & (rows["kind"] == "h2d")


def _step_keys(layout: Layout) -> dict[tuple[int, str, str], StepKey]:
    """(kind of layer, where, name in the trace) -> step; -1 for what belongs to no layer."""
    ends = [layout.embed, layout.logits, layout.sample, *layout.move]
    found: dict[tuple[int, str, str], StepKey] = {(-1, step.where, step.name): key_of(step) for step in ends}
    for number, kind in enumerate(layout.kinds):
        inner = [*kind.steps, *([kind.flags] if kind.flags is not None else [])]
        inner += [step for trip in kind.on_host.values() for step in trip]
        found |= {(number, step.where, step.name): key_of(step) for step in inner}
    return found


def _copies(events: pd.DataFrame, in_line: pd.DataFrame, experts: pd.DataFrame) -> pd.DataFrame:
    ahead = events[(events["stream"] == "copy") & (events["kind"] == "h2d") & events["tensor"].notna()]
    ahead = ahead.sort_values(["pass_id", "device", "t_start"], kind="stable")
    before = ahead.groupby(["pass_id", "device"])["t_end"].shift()
    between = (ahead["t_start"] - before).dropna()
    queued_ns = float(between.clip(lower=0).quantile(0.1)) if len(between) else 0.0
    rows = pd.concat(
        [
            ahead.assign(way="ahead", ns=ahead["t_end"] - ahead["t_start"] + queued_ns),
            in_line.assign(way="inline", ns=in_line["ns"] + in_line["gap"].where(in_line["name"] == "copy whole", 0.0)),
        ]
    )
    rows = rows[rows["bytes"] > 0].merge(_runs(experts), on=_LAYER, how="left")
    is_shared = rows["n_on_host"].notna() & (rows["way"] == "inline")
    n_experts, n_runs, copied = (rows[name].to_numpy(np.float64) for name in ("distinct", "runs", "n_experts"))
    part = runs_of_part(n_experts, n_runs, copied / n_experts)
    runs = np.where(is_shared, part, n_runs)
    known = np.where(rows["name"] == "copy selective", runs, np.nan)
    n_copies = np.where(rows["name"] == "copy whole", 1.0, known)
    return rows[["bytes", "ns"]].assign(way=rows["way"].mask(is_shared, "divided"), n_copies=n_copies)


def _runs(experts: pd.DataFrame) -> pd.DataFrame:
    """pass_id, ubatch, layer, distinct, runs: the experts in use, and how many runs of neighbours they make."""
    n_bytes = experts["used"].str.len()
    experts = experts[n_bytes == n_bytes.max()]  # a bitmap that is shorter than others, or none, says nothing
    if not len(experts):
        return pd.DataFrame({name: [] for name in (*_LAYER, "distinct", "runs")})
    flags = unpack_flags(np.stack([np.frombuffer(used, np.uint8) for used in experts["used"]]))
    starts = flags & ~np.pad(flags, ((0, 0), (1, 0)))[:, :-1]
    return experts[[*_LAYER, "distinct"]].assign(runs=starts.sum(axis=1))


def _routed_delay(in_line: pd.DataFrame) -> float:
    """From the router's flags to the first byte of the copy that waited for them."""
    routed = in_line[in_line["name"].isin(["copy selective", "copy missed"])]
    return _mean(routed["gap"])


def _mean(values: pd.Series) -> float:
    """Of those that are known; nan where none is."""
    known = values.dropna()
    return float(known.mean()) if len(known) else np.nan

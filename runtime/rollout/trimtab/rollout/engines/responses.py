"""Reads an engine's answers. Whatever is missing or of another kind is an EngineError that names it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, get_args

from trimtab.rollout.engines.contract import (
    EngineError,
    EngineLoad,
    EngineRefused,
    Finish,
    Generated,
    ModelInfo,
    SamplingSettings,
    Scored,
    ServerInfo,
    WeightRun,
    WeightUpdate,
    refusal,
)
from trimtab.rollout.engines.kept_logprobs import of_the_kept

T = TypeVar("T")
_MAX_TEXT = 500


def generated(answer: Mapping[str, Any], *, truncated: SamplingSettings | None = None) -> Generated:
    """`truncated` are the settings of the request where the engine tells logprobs of the whole distribution, and
    those of the likeliest tokens beside them.
    """
    part = _read("/generate", _generated, answer)
    if truncated is not None:
        part = _read("/generate", partial(_renormalized, part, truncated), answer)
    _raise_refusal("/generate", part.finish, answer)
    if not all(map(math.isfinite, part.logprobs)):
        raise EngineError("/generate answered with a logprob that is not finite: are the weights damaged?")
    return part


def _raise_refusal(path: str, finish: Finish, answer: Mapping[str, Any]) -> None:
    reason = answer["meta_info"]["finish_reason"]
    if finish == "abort" and reason.get("status_code"):
        # SGLang answers some refusals this way, with 200 around it.
        raise refusal(path, int(reason["status_code"]), str(reason.get("message", ""))[:_MAX_TEXT])
    if finish not in get_args(Finish):
        raise EngineError(f"{path} ended for a reason we do not know: {finish!r}")


def scored(answer: Mapping[str, Any], token_ids: Sequence[int]) -> Scored:
    """Logprobs of all tokens after the first. An answer about other tokens is none."""
    return _checked("/generate", _read("/generate", partial(_scored, token_ids), answer), answer)


def valued(answer: Mapping[str, Any], token_ids: Sequence[int]) -> Scored:
    return _checked("/values", _read("/values", partial(_valued, token_ids), answer), answer)


def _checked(path: str, part: Scored, answer: Mapping[str, Any]) -> Scored:
    _raise_refusal(path, part.finish, answer)
    if not all(map(math.isfinite, part.numbers)):
        raise EngineError(f"{path} answered with a number that is not finite: are the weights damaged?")
    return part


def _scored(token_ids: Sequence[int], answer: Mapping[str, Any]) -> Scored:
    meta = answer["meta_info"]
    pairs = meta["input_token_logprobs"][1:]
    finish = meta["finish_reason"]["type"]
    if finish == "length" and not _are_named(token_ids[1:], [int(pair[1]) for pair in pairs]):
        raise ValueError("input_token_logprobs is not of the tokens that were given")
    return _numbers(token_ids[1:], [float(pair[0]) for pair in pairs] if finish == "length" else [], meta)


def _are_named(given: Sequence[int], told: Sequence[int]) -> bool:
    """SGLang 0.5.21 names the last token of its vocabulary 0 here, beside the logprob that is its own."""
    last = max(given, default=0)
    return len(given) == len(told) and all(
        name == token or (name == 0 and token == last) for token, name in zip(given, told, strict=True)
    )


def _valued(token_ids: Sequence[int], answer: Mapping[str, Any]) -> Scored:
    meta = answer["meta_info"]
    values = [float(value) for value in answer["values"]]
    if meta["finish_reason"]["type"] == "length" and len(values) != len(token_ids):
        raise ValueError(f"{len(values)} values for {len(token_ids)} tokens")
    return _numbers(token_ids, values, meta)


def _numbers(token_ids: Sequence[int], numbers: Sequence[float], meta: Mapping[str, Any]) -> Scored:
    return Scored(
        token_ids=tuple(token_ids) if numbers else (),
        numbers=tuple(numbers),
        finish=meta["finish_reason"]["type"],
        weight_version=str(meta["weight_version"]),
        # SGLang accounts for sampled tokens alone, and of those there are none: nothing, or a span of no token.
        weight_runs=weight_runs(
            [span for span in meta.get("weight_versions") or () if span["end"] != span["start"]] or None,
            tokens=len(numbers),
        ),
    )


def weight_update(path: str, answer: Mapping[str, Any]) -> WeightUpdate:
    """An update that failed is a 400 by the contract; one that says so with 200 did not happen either."""
    if not answer.get("success", False):
        raise EngineRefused(f"{path}: {str(answer.get('message', 'no reason given'))[:_MAX_TEXT]}")

    def read(update: Mapping[str, Any]) -> WeightUpdate:
        pause_s = update.get("pause_seconds")
        return WeightUpdate(pause_s=None if pause_s is None else float(pause_s))

    return _read(path, read, answer)


def model_info(answer: Mapping[str, Any]) -> ModelInfo:
    def read(info: Mapping[str, Any]) -> ModelInfo:
        return ModelInfo(model_path=str(info["model_path"]), weight_version=str(info["weight_version"]))

    return _read("/model_info", read, answer)


def server_info(answer: Mapping[str, Any]) -> ServerInfo:
    def read(info: Mapping[str, Any]) -> ServerInfo:
        ranks = info.get("tp_size")
        return ServerInfo(
            weight_loaders=tuple(map(str, info.get("custom_weight_loader") or ())),
            tensor_parallel=None if ranks is None else int(ranks),
        )

    return _read("/server_info", read, answer)


def load(answer: Mapping[str, Any]) -> EngineLoad:
    def read(loads: Mapping[str, Any]) -> EngineLoad:
        ranks = loads["loads"]
        return EngineLoad(
            running=sum(int(rank["num_running_reqs"]) for rank in ranks),
            waiting=sum(int(rank["num_waiting_reqs"]) for rank in ranks),
            token_usage=max((float(rank["token_usage"]) for rank in ranks), default=0.0),
        )

    return _read("/v1/loads", read, answer)


def _read(path: str, reader: Callable[[Mapping[str, Any]], T], answer: Mapping[str, Any]) -> T:
    try:
        return reader(answer)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise EngineError(f"{path} answered something else than the contract says: {error!r}") from None


def _generated(answer: Mapping[str, Any]) -> Generated:
    meta = answer["meta_info"]
    # Not `output_ids`: with a stop text SGLang may cut those, and the logprobs belong to all that was sampled.
    pairs = meta["output_token_logprobs"]
    return Generated(
        token_ids=tuple(int(pair[1]) for pair in pairs),
        logprobs=tuple(float(pair[0]) for pair in pairs),
        finish=meta["finish_reason"]["type"],
        weight_version=str(meta["weight_version"]),
        weight_runs=weight_runs(meta.get("weight_versions"), tokens=len(pairs)),
        first_token_s=_seconds(meta.get("first_token_seconds")),
    )


def _seconds(told: Any) -> float | None:
    """Of an engine that says so, as the built-in one does."""
    return float(told) if isinstance(told, int | float) and math.isfinite(told) and told >= 0 else None


def _renormalized(part: Generated, settings: SamplingSettings, answer: Mapping[str, Any]) -> Generated:
    told = answer["meta_info"]["output_top_logprobs"] if part.token_ids else ()
    likeliest = [sorted((float(pair[0]) for pair in pairs), reverse=True) for pairs in told]
    if any(not values for values in likeliest):
        raise ValueError("output_top_logprobs has none for a token")
    logprobs = (
        of_the_kept(logprob, values, settings=settings)
        for logprob, values in zip(part.logprobs, likeliest, strict=True)
    )
    return replace(part, logprobs=tuple(logprobs))


def weight_runs(spans: Any, *, tokens: int) -> tuple[WeightRun, ...] | None:
    if spans is None:
        return None
    runs: list[WeightRun] = []
    end = 0
    for span in spans:
        if int(span["start"]) != end or int(span["end"]) < end:
            raise ValueError(f"weight_versions has a gap or an overlap after token {end}")
        if int(span["end"]) > end:
            runs.append(WeightRun(weight_version=str(span["version"]), length=int(span["end"]) - end))
        end = int(span["end"])
    if end != tokens:
        raise ValueError(f"weight_versions covers {end} of {tokens} tokens")
    return tuple(runs)

"""A case as the tools show it: compact JSON, in which everything a pod could have written is short, printable and a
value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from trimtab.fabric.wire.balance import BalanceReport
from trimtab.operator.autoscale.agent.case import Case, InstanceState, PoolState
from trimtab.operator.untrusted import MAX_TEXT, printable, shown_name

_DIGITS = 4
_DECISIONS = 20


def report_view(case: Case, *, policies: Iterable[str]) -> str:
    reports = [_newest(case, policy) for policy in policies]
    return _json(
        {
            "tau_low": case.tau_low,
            "tau_high": case.tau_high,
            "reports": reports,
            "pools": [_pool(pool) for pool in case.pools],
            "limits": {
                "min_replicas": case.limits.min_replicas,
                "max_replicas": case.limits.max_replicas,
                "may_add_now": case.limits.may_add,
                "may_remove_now": case.limits.may_remove,
                "cooldown_seconds_left": _figure(case.limits.cooldown_seconds),
            },
            "formula": {
                "targets": [
                    {"pool": shown_name(pool), "replicas": replicas}
                    for pool, replicas in case.recommended.targets.items()
                ],
                "reason": printable(case.recommended.reason, limit=MAX_TEXT),
                "message": printable(case.recommended.message, limit=MAX_TEXT),
            },
        }
    )


def history_view(case: Case, *, policies: Iterable[str], windows: int) -> str:
    return _json(
        {
            "earlier_reports": [
                _report(case, report) for policy in policies for report in case.reports[policy][1 : windows + 1]
            ],
            "decisions": [
                {
                    "seconds_ago": _figure(case.at - decision.at),
                    "maintainer": printable(decision.maintainer, limit=MAX_TEXT),
                    "replicas_before": decision.current,
                    "replicas_decided": decision.target,
                    "reason": printable(decision.reason, limit=MAX_TEXT),
                }
                for decision in case.decisions[:_DECISIONS]
            ],
        }
    )


def instances_view(case: Case, *, pool: str | None, skip: int, limit: int) -> str:
    chosen = sorted((one for one in case.instances if pool is None or one.pool == pool), key=_loss)
    page = chosen[skip : skip + limit]
    return _json(
        {
            "instances": [_instance(one) for one in page],
            "before": min(skip, len(chosen)),
            "after": max(0, len(chosen) - skip - len(page)),
        }
    )


def _loss(instance: InstanceState) -> tuple[bool, bool, float, str]:
    return (not instance.suspect, instance.state == "ready", instance.samples_per_second, instance.id)


def _newest(case: Case, policy: str) -> dict[str, Any]:
    reports = case.reports[policy]
    return _report(case, reports[0]) if reports else {"policy": shown_name(policy), "report": None}


def _report(case: Case, report: BalanceReport) -> dict[str, Any]:
    return {
        "policy": shown_name(report.policy),
        "seconds_ago": _figure(case.at - report.at),
        "steps": [report.first_step, report.last_step],
        "wait_fraction": _figure(report.wait_fraction),
        "wall_seconds": _figure(report.wall_seconds),
        "samples_produced": report.produced.samples,
        "samples_accepted": report.accepted.samples,
        "samples_consumed": report.consumed.samples,
        "tokens_produced": report.produced.tokens,
        "samples_replayed": report.replayed,
        "stale_skipped": report.stale_skipped,
        "instances": report.current,
        "zone": report.branch.value,
    }


def _pool(pool: PoolState) -> dict[str, Any]:
    return {
        "pool": shown_name(pool.name),
        "replicas": pool.desired,
        "ready": pool.ready,
        "min_replicas": pool.min_replicas,
        "max_replicas": pool.max_replicas,
        "devices_per_replica": pool.devices_per_replica,
        "samples_per_second_per_replica": _figure(pool.samples_per_second),
        "cost_per_hour_per_replica": _figure(pool.cost_per_hour),
        "start_up_seconds": _figure(pool.start_up_seconds),
    }


def _instance(instance: InstanceState) -> dict[str, Any]:
    return {
        "id": shown_name(instance.id),
        "pool": shown_name(instance.pool),
        "state": printable(instance.state, limit=MAX_TEXT),
        "suspect": instance.suspect,
        "samples_per_second": _figure(instance.samples_per_second),
        "tokens_per_second": _figure(instance.tokens_per_second),
        "availability": _figure(instance.availability),
        "version_lag": instance.version_lag,
        "in_flight": instance.in_flight,
        "last_error": printable(instance.last_error, limit=MAX_TEXT),
    }


def _figure(value: float | None) -> float | None:
    """Four digits say enough and cost fewer tokens."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")


def _json(value: dict[str, Any]) -> str:
    # ASCII, so that no letter looks like another and none turns the direction of the text.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))

"""What the operator is told about other clusters, and what it says of them to Prometheus."""

from __future__ import annotations

import pytest

from trimtab.fabric.metrics import Metrics
from trimtab.fabric.settings import SettingsError, load_settings, secret_values
from trimtab.operator.metrics import OperatorMetrics
from trimtab.operator.settings import OperatorSettings

HOME = {
    "TRIMTAB_IMAGES": "trimtab",
    "TRIMTAB_NATS__SERVERS": "nats://home:4222",
    "TRIMTAB_SHARED_NATS_ACCOUNT": "all-pods-trust-one-another",
    "TRIMTAB_OBJECT_STORE__BUCKET": "weights",
    "TRIMTAB_OBJECT_STORE__PREFIX": "team",
}
FAR_STORE = {
    "TRIMTAB_REMOTE_OBJECT_STORE__BUCKET": "weights",
    "TRIMTAB_REMOTE_OBJECT_STORE__PREFIX": "team/",
    "TRIMTAB_REMOTE_OBJECT_STORE__ENDPOINT_URL": "https://s3.example.org",
    "TRIMTAB_REMOTE_OBJECT_STORE__SECRET_ACCESS_KEY": "hush-store",
}
FAR_NATS = {"TRIMTAB_REMOTE_NATS__SERVERS": "tls://far:4222", "TRIMTAB_REMOTE_NATS__PASSWORD": "hush-nats"}


def test_what_is_not_said_is_as_at_home() -> None:
    settings = load_settings(HOME, OperatorSettings)
    assert (settings.remote_nats, settings.remote_object_store) == (None, None)


def test_sections_for_pods_elsewhere_are_read_and_their_secrets_known() -> None:
    settings = load_settings(HOME | FAR_STORE | FAR_NATS, OperatorSettings)
    assert settings.remote_nats is not None
    assert settings.remote_nats.servers == ("tls://far:4222",)
    # Those are what logs are cleaned of.
    assert {"hush-store", "hush-nats"} <= set(secret_values(settings))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"TRIMTAB_REMOTE_OBJECT_STORE__BUCKET": "another"}, "the bucket and prefix of object_store"),
        ({"TRIMTAB_REMOTE_OBJECT_STORE__PREFIX": "another"}, "the bucket and prefix of object_store"),
        ({"TRIMTAB_REMOTE_NATS__SERVER": "hush-nats"}, "did you mean TRIMTAB_REMOTE_NATS__SERVERS"),
        ({"TRIMTAB_REMOTE_NATS__INBOX_PREFIX": "hush-nats.>"}, "TRIMTAB_REMOTE_NATS__INBOX_PREFIX"),
    ],
    ids=["another bucket", "another prefix", "a wrong name", "a wildcard for an inbox"],
)
def test_what_is_wrong_is_named_without_secrets(change: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as error:
        load_settings(HOME | FAR_STORE | FAR_NATS | change, OperatorSettings)
    assert "hush" not in str(error.value)


def test_the_metric_has_one_line_for_each_pool_that_is_elsewhere() -> None:
    metrics = Metrics()
    own = OperatorMetrics(metrics)
    own.remote_reachable("team", "job-far", True)
    own.remote_reachable("team", "job-away", False)
    own.remote_reachable("team", "job-gone", True)
    own.remote_reachable("team", "job-gone", None)
    own.remote_reachable("team", "job-home", None)
    lines = metrics.exposition("")[0].decode().splitlines()
    assert sorted(line for line in lines if line.startswith("trimtab_operator_remote_reachable{")) == [
        'trimtab_operator_remote_reachable{namespace="team",pool="job-away"} 0.0',
        'trimtab_operator_remote_reachable{namespace="team",pool="job-far"} 1.0',
    ]

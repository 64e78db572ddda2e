"""With a penalty the best policy is known to every probability: the Gibbs policy for k1 and k2, another one for k3.

Compared with the mean of a group of n that it is itself part of, a reward counts (n - 1)/n of what it does compared
with the mean of the others, which makes the penalty n/(n - 1) times as heavy.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.learning.known_optimum import KnownTask, distance, gibbs, mode_covering
from tests.support.learning.learning_run import ALGORITHMS, Run, Setting, learn
from trimtab.api.algorithm import AlgorithmName

pytestmark = pytest.mark.slow

COEFFICIENT = 0.2
GROUP = 4
SELF_INCLUDED = GROUP / (GROUP - 1)
ARRIVED = 0.075
"""Total variation, of the worst prompt. It is half of what lies between the policies with and without oneself."""
FAR = 0.3


def settled(name: AlgorithmName, estimator: str, task: KnownTask, model: Path) -> Run:
    algorithm = {
        "name": name,
        "kl": {"coefficient": COEFFICIENT, "estimator": estimator},
        # Dividing by the deviation of a group would change what is optimal.
        "normalizeGroupRewards": False,
    }
    setting = Setting(algorithm=algorithm, steps=70, learning_rate=4e-3, group_size=GROUP, groups=16)
    return learn(setting, task, model_path=model, seed=0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_settles_on_the_gibbs_policy(name: AlgorithmName, lottery_task: KnownTask, opinionated_model: Path) -> None:
    run = settled(name, "k2", lottery_task, opinionated_model)
    rewards = lottery_task.reward_table
    leaves_itself_out = gibbs(run.begin, rewards, coefficient=COEFFICIENT)
    includes_itself = gibbs(run.begin, rewards, coefficient=COEFFICIENT * SELF_INCLUDED)
    right, wrong = leaves_itself_out, includes_itself
    if name != "rloo":
        right, wrong = wrong, right
    assert distance(run.begin, right) > FAR
    assert distance(run.end, right) < ARRIVED
    assert distance(run.end, wrong) > ARRIVED


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_where_the_other_estimators_settle(estimator: str, lottery_task: KnownTask, opinionated_model: Path) -> None:
    """k3 estimates the same divergence, but its gradient is that of the divergence the other way round."""
    run = settled("rloo", estimator, lottery_task, opinionated_model)
    rewards = lottery_task.reward_table
    tilted = gibbs(run.begin, rewards, coefficient=COEFFICIENT)
    covering = mode_covering(run.begin, rewards, coefficient=COEFFICIENT)
    right, wrong = (covering, tilted) if estimator == "k3" else (tilted, covering)
    assert distance(run.end, right) < ARRIVED
    assert distance(run.end, wrong) > FAR

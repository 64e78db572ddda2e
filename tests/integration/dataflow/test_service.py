"""The dataflow service on a real NATS, with simulated workers and ranks."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from tests.support.dataflow.books import BATCH, GROUP, STALENESS
from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.polling import eventually, patiently
from trimtab.cli.main import main
from trimtab.dataflow.audit.report import AuditReport, audit
from trimtab.dataflow.audit.streams import read_streams
from trimtab.dataflow.ledger.records import StepGranted, StepTimed, StepTrained, TasksIssued
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.settings import NatsSettings, environment_for
from trimtab.fabric.wire.balance import BalanceReport
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.lease import BatchLease, LeaseAcked, LeaseRefused, Refusal
from trimtab.fabric.wire.progress import StepProgress

BOUND = (STALENESS + 1) * BATCH


async def audited(sim: Simulation) -> AuditReport:
    sizes = {policy.name: sim.job.spec.batch_size(policy.name) for policy in sim.job.spec.learning}
    report = await audit(sim.bus, sim.topology, data=sim.job.spec.data, batch_sizes=sizes)
    assert report.violations == []
    return report


def _balance(sim: Simulation, *options: str) -> str:
    environment = environment_for(_Nats(nats=sim.settings))
    result = CliRunner(env=environment).invoke(main, ["balance", sim.job.metadata.name, *options])
    assert result.exit_code == 0, result.output
    return result.stdout


class _Nats(BaseModel):
    nats: NatsSettings


async def test_a_job_that_is_not_there_is_named(nats_settings: NatsSettings, tmp_path: Path) -> None:
    environment = environment_for(_Nats(nats=nats_settings))
    result = await asyncio.to_thread(CliRunner(env=environment).invoke, main, ["balance", "nobody"])
    assert result.exit_code == 1
    assert "no job nobody in namespace default" in result.output


def test_balance_without_settings_says_what_is_missing() -> None:
    result = CliRunner().invoke(main, ["balance", "job"])
    assert result.exit_code == 1
    assert "TRIMTAB_NATS__SERVERS" in result.output


async def issued(sim: Simulation) -> int:
    records = (await read_streams(sim.bus, sim.topology)).records
    return sum(record.count for record in records if isinstance(record, TasksIssued))


async def test_two_ranks_train_and_each_sample_is_in_one_step(nats_settings: NatsSettings, tmp_path: Path) -> None:
    seen: dict[int, set[str]] = {}
    async with simulation(nats_settings, tmp_path) as sim, sim.service(), running(sim.work()):
        assert await sim.train(steps=range(8), world_size=2, seen=seen) == 8
        report = await audited(sim)
        assert report.steps == {"solver": 8}
        assert report.trained == {"solver": 8 * BATCH}
        assert len(set().union(*seen.values())) == 8 * BATCH
        balance = KeyValue(sim.bus, sim.topology.balance)

        async def progress_of() -> StepProgress:
            return decode((await balance.get(sim.topology.progress_key("solver"))).value, StepProgress)

        async def told_of_the_last() -> bool:
            return (await progress_of()).step == 7

        # Reports are written beside the answers, one after another.
        await eventually(told_of_the_last, timeout_s=30.0)
        progress = await progress_of()
        assert progress.reward == pytest.approx(0.05)
        window = decode((await balance.get(sim.topology.report_key("solver"))).value, BalanceReport)
        # A step more, where the times of two came together.
        steps = window.last_step - window.first_step + 1
        assert steps in (3, 4)
        assert window.consumed.samples == steps * BATCH
        exposed = sim.metrics.exposition("")[0].decode()
        assert f'trimtab_balance_samples{{policy="solver",stage="consumed"}} {float(steps * BATCH)}' in exposed
        assert f'trimtab_balance_wait_fraction{{policy="solver"}} {window.wait_fraction}' in exposed
        assert f'trimtab_staleness_bound{{policy="solver"}} {float(STALENESS)}' in exposed
        assert f'trimtab_buffer_room_samples{{policy="solver"}} {float(BOUND)}' in exposed
        assert f'trimtab_step_staleness{{policy="solver"}} {progress.staleness}' in exposed
        # Nobody asks for more: whatever was under way comes to wait, and the metric shows it without another step.
        await eventually(
            lambda: 'trimtab_running_samples{policy="solver"} 0.0' in sim.metrics.exposition("")[0].decode(),
            timeout_s=30.0,
        )
        assert 'trimtab_buffered_samples{policy="solver"} 0.0' not in sim.metrics.exposition("")[0].decode()
        shown = await asyncio.to_thread(_balance, sim, "--json")
        assert msgspec.json.decode(shown, type=list[BalanceReport]) == [window]
        table = await asyncio.to_thread(_balance, sim)
        assert f"solver, steps {window.first_step} to {window.last_step}" in table
        assert f"zone {window.branch}, 0 instances" in table


async def test_asking_again_gets_the_same_rows_also_after_a_restart(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    def rows(lease: BatchLease | None) -> object:
        assert lease is not None
        return msgspec.structs.replace(lease, issued_at=0.0, expires_at=1.0)

    async with simulation(nats_settings, tmp_path) as sim, running(sim.work()):
        async with sim.service():
            first = [rows(await sim.lease(0, rank=rank, world_size=2)) for rank in range(2)]
            assert first == [rows(await sim.lease(0, rank=rank, world_size=2)) for rank in range(2)]
        async with sim.service():
            assert first == [rows(await sim.lease(0, rank=rank, world_size=2)) for rank in range(2)]


async def test_many_ranks_share_a_step_and_their_times_are_one_record(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    """More ranks than rows: some have none, and all are answered."""
    seen: dict[int, set[str]] = {}
    async with simulation(nats_settings, tmp_path) as sim, sim.service(), running(sim.work()):
        assert await sim.train(steps=range(4), world_size=48, durable_every=10, seen=seen) == 4
        assert len(set().union(*seen.values())) == 4 * BATCH
        records = (await read_streams(sim.bus, sim.topology)).records
        timed = [record for record in records if isinstance(record, StepTimed)]
        assert [(record.step, record.ranks) for record in timed] == [(0, 48), (1, 48), (2, 48)]
        assert timed[0].wait_seconds / timed[0].step_seconds == pytest.approx(0.5)
        # The first rank of a step tells that the one before is trained: rollout may go on at once.
        assert [record.step for record in records if isinstance(record, StepTrained)] == [0, 1, 2]
        await audited(sim)


async def test_admission_holds_while_nothing_is_trained(nats_settings: NatsSettings, tmp_path: Path) -> None:
    async with simulation(nats_settings, tmp_path) as sim, running(sim.work()):
        async with sim.service():
            await eventually(lambda: arrived(sim, BOUND), timeout_s=10.0)
            assert await sim.lease(0) is not None, "a grant makes no room, only training does"
        async with sim.service():
            assert await sim.lease(0) is not None
            assert await issued(sim) * GROUP == BOUND
            assert await sim.lease(1, trained=True) is not None
            await eventually(lambda: arrived(sim, BOUND + BATCH), timeout_s=10.0)
        await audited(sim)


async def arrived(sim: Simulation, wanted: int) -> bool:
    return (await audit(sim.bus, sim.topology)).arrived >= wanted


async def test_killed_again_and_again_nothing_is_lost_and_nothing_doubled(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    """An unreliable worker, a service that is killed at any moment, a trainer that crashes and comes back with another
    number of ranks."""
    chance = random.Random(4)
    seen: dict[int, set[str]] = {}

    def lifetime() -> float:
        """Mostly too short to get far, now and then long enough for a slow machine."""
        return chance.uniform(0.02, 0.15) if chance.random() < 0.93 else 1.0

    async with (
        simulation(nats_settings, tmp_path) as sim,
        running(sim.work(chance=chance), sim.restarting_service(lifetime)),
    ):
        async with patiently(150.0):
            assert await sim.train(steps=range(11), world_size=2, seen=seen) == 11
            refused = await sim.ask(8, world_size=2, attempt=0, rank=1)
            assert isinstance(refused, LeaseRefused)
            assert refused.refusal == "step_consumed"
            steps = await sim.train(steps=range(9, 40), world_size=3, attempt=1, seen=seen)
            while sim.incarnations <= 5:  # a fast machine needs more work to be interrupted as often
                steps = await sim.train(steps=range(steps, steps + 10), world_size=3, attempt=1, seen=seen)
            superseded = await sim.ask(steps, world_size=2, attempt=0)
            assert isinstance(superseded, LeaseRefused)
            assert superseded.refusal == "superseded"
        report = await audited(sim)
        assert report.steps == {"solver": steps}
        assert report.trained == {"solver": steps * BATCH}
        assert report.duplicates_seen > 0, "the worker was meant to repeat itself"
        streams = await read_streams(sim.bus, sim.topology)
        granted = {
            record.step: {f"{group}.{index}" for group in record.groups for index in range(GROUP)}
            for record in streams.records
            if isinstance(record, StepGranted)
        }
        assert granted == seen, "what the ranks trained is what the ledger says"


async def test_two_services_at_once_never_grant_the_same(nats_settings: NatsSettings, tmp_path: Path) -> None:
    """Each write of one refuses the other's next: it ends, recovers and goes on. Nobody trains anything twice."""
    seen: dict[int, set[str]] = {}
    async with (
        simulation(nats_settings, tmp_path) as sim,
        running(sim.work(), sim.restarting_service(lambda: 60.0), sim.restarting_service(lambda: 60.0)),
    ):
        async with patiently(60.0):
            assert await sim.train(steps=range(6), world_size=2, seen=seen) == 6
        report = await audited(sim)
        assert report.trained == {"solver": 6 * BATCH}


async def test_max_steps_ends_the_policy_and_the_last_steps_can_still_be_repeated(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    seen: dict[int, set[str]] = {}
    async with simulation(nats_settings, tmp_path, maxSteps=5) as sim, running(sim.work()):
        async with sim.service():
            assert await sim.train(steps=range(9), seen=seen) == 5
        async with sim.service():
            assert await sim.lease(5, attempt=0) is None
            # The trainer crashed before its last checkpoint: it does steps 3 and 4 again.
            assert await sim.train(steps=range(3, 9), attempt=1, world_size=2, seen=seen) == 5
            assert isinstance(await sim.acknowledge(4, attempt=1), LeaseAcked)
        assert (await audited(sim)).steps == {"solver": 5}


async def test_a_trainer_that_resumes_at_its_last_step_is_finished(nats_settings: NatsSettings, tmp_path: Path) -> None:
    """Its checkpoint was written and the acknowledgement lost: that it asks for the step says that all are trained."""
    async with simulation(nats_settings, tmp_path, maxSteps=2) as sim, running(sim.work()), sim.service():
        await sim.train(steps=range(2), seen={})
        assert await sim.lease(2, attempt=1) is None


async def test_a_job_whose_prompts_are_used_up_ends(nats_settings: NatsSettings, tmp_path: Path) -> None:
    seen: dict[int, set[str]] = {}
    async with (
        simulation(nats_settings, tmp_path, prompts=7, data={"epochs": 1}) as sim,
        running(sim.work()),
        sim.service(),
    ):
        async with patiently(30.0):
            assert await sim.train(steps=range(9), seen=seen) == 3
        report = await audited(sim)
        assert report.arrived == 7 * GROUP
        refused = await sim.ask(3)
        assert isinstance(refused, LeaseRefused)
        assert "data.epochs 1 done" in refused.message


async def test_two_policies_go_at_their_own_pace(nats_settings: NatsSettings, tmp_path: Path) -> None:
    async with (
        simulation(nats_settings, tmp_path, policies=2, maxSteps=6) as sim,
        running(sim.work(policies=("solver", "judge"))),
        sim.service(),
    ):
        ahead = asyncio.create_task(sim.train(steps=range(9), policy="solver", seen={}))
        assert await sim.train(steps=range(2), policy="judge", seen={}) == 2
        assert await sim.train(steps=range(2, 9), policy="judge", attempt=1, seen={}) == 6
        assert await ahead == 6
        assert (await audited(sim)).steps == {"solver": 6, "judge": 6}


async def test_each_policy_has_batches_of_its_own_size_and_neither_waits_for_the_other(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    policies = [{"name": "solver"}, {"name": "judge", "batchSize": BATCH // 2}]
    async with (
        simulation(nats_settings, tmp_path, policies=policies, maxSteps=8) as sim,
        running(sim.work(policies=("solver", "judge"))),
        sim.service(),
    ):
        seen: dict[str, dict[int, set[str]]] = {"solver": {}, "judge": {}}
        solver = asyncio.create_task(sim.train(steps=range(9), policy="solver", seen=seen["solver"]))
        assert await sim.train(steps=range(9), policy="judge", seen=seen["judge"]) == 8
        done = await sim.ask(8, policy="judge", trained=True)
        assert isinstance(done, LeaseRefused)
        assert await solver == 8, "it goes on when the other has finished"
        assert {len(rows) for rows in seen["solver"].values()} == {BATCH}
        assert {len(rows) for rows in seen["judge"].values()} == {BATCH // 2}
        assert (await audited(sim)).steps == {"solver": 8, "judge": 8}


async def test_a_frozen_policy_is_waited_for_by_nobody(nats_settings: NatsSettings, tmp_path: Path) -> None:
    """No row of it ever comes."""
    policies = [{"name": "solver"}, {"name": "judge", "frozen": True, "model": {"uri": "model"}}]
    async with (
        simulation(nats_settings, tmp_path, policies=policies, maxSteps=4) as sim,
        running(sim.work(policies=("solver",))),
        sim.service(),
    ):
        assert await sim.train(steps=range(6), seen={}) == 4
        assert (await audited(sim)).steps == {"solver": 4}


async def test_headers_that_cannot_be_read_stop_neither_the_service_nor_its_recovery(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    async with simulation(nats_settings, tmp_path) as sim, running(sim.work()):
        async with sim.service():
            await sim.train(steps=range(1), seen={})
            subject = sim.topology.trajectory_subject("solver")
            for number, headers in enumerate(({}, {"Trimtab-Trajectory": "[1,]"}, {"Trimtab-Trajectory": "[9]"})):
                await publish(sim.bus, subject, b"", message_id=f"poison-{number}", headers=headers, deadline_s=60.0)
            await sim.train(steps=range(1, 4), seen={})
        async with sim.service():
            await sim.train(steps=range(4, 6), attempt=1, seen={})
        report = await audit(sim.bus, sim.topology, data=sim.job.spec.data)
        assert len(report.violations) == 3
        assert all("unreadable" in violation for violation in report.violations)


async def test_requests_that_make_no_sense_are_refused_with_their_reason(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    async with simulation(nats_settings, tmp_path) as sim, running(sim.work()), sim.service():
        assert await sim.lease(0, world_size=2) is not None
        ahead = await sim.ask(7, world_size=2)
        assert isinstance(ahead, LeaseRefused)
        assert (ahead.refusal, ahead.next_step) == ("step_ahead", 1)
        mixed = await sim.ask(0, world_size=3, rank=2)
        assert isinstance(mixed, LeaseRefused)
        assert mixed.refusal == "world_size"
        early = await sim.acknowledge(5)
        assert isinstance(early, LeaseRefused)
        assert early.refusal == "unknown_lease"
        late = await sim.ask(0, world_size=1, attempt=3)
        assert isinstance(late, BatchLease), "a new attempt may have another number of ranks"


async def test_a_finished_policy_goes_on_where_it_ended_when_it_is_to_do_more_steps(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    """The dataflow is started anew with the changed manifest; what has come in the meantime is used, and used once."""
    seen: dict[int, set[str]] = {}
    async with simulation(nats_settings, tmp_path, maxSteps=3) as sim, running(sim.work()):
        async with sim.service():
            assert await sim.train(steps=range(9), seen=seen) == 3
        sim.job = sim.job.model_copy(update={"spec": sim.job.spec.model_copy(update={"max_steps": 6})})
        async with sim.service():
            assert isinstance(await sim.ask(3, attempt=1, wait_s=5.0), BatchLease)
        # Whoever recovers later finds the same groups in the same steps.
        async with sim.service():
            assert await sim.train(steps=range(3, 9), attempt=2, seen=seen) == 6
        report = await audited(sim)
        assert report.steps == {"solver": 6}
        assert report.trained == {"solver": 6 * BATCH}
        assert len(set().union(*seen.values())) == 6 * BATCH


async def test_a_portion_beyond_those_that_were_granted_is_refused_and_holds_nobody_up(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    """Also where the portion before it does not exist yet: answering it must not keep the service from all others."""
    async with simulation(nats_settings, tmp_path) as sim, sim.service():
        for chunk in (1, 5):
            answer = await sim.ask(0, chunk=chunk, wait_s=20.0)
            assert isinstance(answer, LeaseRefused)
            assert answer.refusal is Refusal.UNKNOWN_LEASE
            assert f"portion {chunk} of step 0 asked for where 0 is due" in answer.message
        async with running(sim.work()):
            assert isinstance(await sim.lease(0), BatchLease)
